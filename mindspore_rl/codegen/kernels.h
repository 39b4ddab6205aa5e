// Building blocks of generated cells: scalar arithmetic, and loops of fixed sizes.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

// MindSpore's signature of an ahead-of-time operator: operands, their ranks, shapes and types.
typedef int (*custom)(int, void **, int *, int64_t **, const char **, void *, void *);

// Runs the parts of some work, on several cores if this process has them. Returns: how many it has.
typedef int (*in_parts)(void (*part)(void *context, int64_t part), void *context, int64_t parts);
template <class F> static inline void run_parts(void *function, int64_t parts, F f) {
  ((in_parts)function)([](void *f, int64_t part) { (*(F *)f)(part); }, &f, parts);
}
// Whether this call of the cell has several cores; one for both halves of a cell.
inline bool several __attribute__((visibility("hidden"))) = false;

// Writes a number of each line of the cache, unchanged, if another core may have read the lines: this
// core waits for several at once here, but for one after the other in a loop that computes.
template <class T> static inline void own(T *p, int64_t n) {
  if (!several) return;
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) *(volatile T *)(p + i) = p[i];
}

// ---- scalars: IEEE semantics, as in NumPy ------------------------------------------------------

// The C library's vector functions, where it has them; loops over the scalar ones otherwise.
#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 35) && !defined(__clang__)
#define VECTOR __attribute__((simd("notinbranch")))
extern "C" {
VECTOR float expf(float) noexcept;
VECTOR float expm1f(float) noexcept;
VECTOR float logf(float) noexcept;
VECTOR float log1pf(float) noexcept;
VECTOR float log2f(float) noexcept;
VECTOR float sinf(float) noexcept;
VECTOR float cosf(float) noexcept;
VECTOR float tanf(float) noexcept;
VECTOR float asinf(float) noexcept;
VECTOR float acosf(float) noexcept;
VECTOR float atanf(float) noexcept;
VECTOR float atan2f(float, float) noexcept;
VECTOR float sinhf(float) noexcept;
VECTOR float coshf(float) noexcept;
VECTOR float tanhf(float) noexcept;
VECTOR float erff(float) noexcept;
VECTOR float erfcf(float) noexcept;
VECTOR float powf(float, float) noexcept;
}
#endif

// NaN propagates, as in NumPy.
template <class T> static inline T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> static inline T smaller(T a, T b) { return a < b || a != a ? a : b; }
static inline float relu(float x) { return x < 0.0f ? 0.0f : x; }
static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// MindSpore's fraction on the CPU: off by up to 1e-4 near 5, and up to 1.00001, where tanhf is exact.
static inline float tanh_fraction(float x) {
  const float s = x * x;
  const float over = (((s + 378.0f) * s + 17325.0f) * s + 135135.0f) * x;
  const float under = ((28.0f * s + 3150.0f) * s + 62370.0f) * s + 135135.0f;
  return x > 5.0f ? 1.0f : x < -5.0f ? -1.0f : over / under;
}
static inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x > 20.0f ? 20.0f : x));
}
static inline float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
static inline int32_t sign(int32_t x) { return (x > 0) - (x < 0); }
static inline int64_t sign(int64_t x) { return (x > 0) - (x < 0); }
// Rounds towards zero (1) or down (2), by MindSpore's numbers of the modes.
static inline float rounded(float x, int mode) { return mode == 1 ? truncf(x) : floorf(x); }
static inline float gelu_slope(float given) {
  const float x = smaller(larger(given, -10.0f), 10.0f);
  const float s = sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
  return s + x * s * (1.0f - s) * 1.5957691216f * (1.0f + 0.134145f * x * x);
}
// log(x / (1 - x)), with x clamped to [edge, 1 - edge]; not clamped if edge is negative.
static inline float log_odds(float x, float edge) {
  if (edge >= 0.0f) x = smaller(larger(x, edge), 1.0f - edge);
  return logf(x / (1.0f - x));
}
// Giles, "Approximating the erfinv function", 2010.
static inline float erfinv(float x) {
  if (std::abs(x) == 1.0f) return x * INFINITY;
  float w = -logf((1.0f - x) * (1.0f + x));
  const bool near = w < 5.0f;
  w = near ? w - 2.5f : sqrtf(w) - 3.0f;
  const float a[] = {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f,
                     0.00021858087f,  -0.00125372503f, -0.00417768164f, 0.246640727f, 1.50140941f};
  const float b[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f,
                     0.00573950773f,   -0.0076224613f,  0.00943887047f, 1.00167406f, 2.83297682f};
  float p = near ? a[0] : b[0];
  for (int i = 1; i < 9; i++) p = (near ? a[i] : b[i]) + p * w;
  return p * x;
}
// By recurrence up to where the asymptotic series holds; by reflection below 0.
static inline float digamma(float given) {
  double x = given, shift = 0.0;
  if (x == 0.0) return x == 0.0 && std::signbit(given) ? INFINITY : -INFINITY;
  if (x < 0.0) {
    if (x == floor(x)) return NAN;
    shift = -M_PI / tan(M_PI * (x - floor(x)));
    x = 1.0 - x;
  }
  for (; x < 8.0; x += 1.0) shift -= 1.0 / x;
  const double y = 1.0 / (x * x);
  return (float)(shift + log(x) - 0.5 / x -
                 y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y / 240))));
}
static inline float floor_mod(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
template <class T> static inline T floor_div(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return (T)(0 - a);
  const T q = (T)(a / b);
  return (T)(q - (a % b != 0 && (a < 0) != (b < 0)));
}
static inline float floor_div(float a, float b) { return floorf(a / b); }
template <class T> static inline T floor_mod(T a, T b) {
  return b == 0 ? 0 : (T)(a - floor_div(a, b) * b);
}
template <class T, class U> static inline T to(U x) { return (T)x; }
// The result for numbers beyond an integer's range is arbitrary, but must not trap or depend on the
// vector width.
template <> inline int32_t to<int32_t, float>(float x) {
  return x > -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT32_MIN;
}
template <> inline int64_t to<int64_t, float>(float x) {
  return x > -9223372036854775808.0f && x < 9223372036854775808.0f ? (int64_t)x : INT64_MIN;
}

// ---- vectors -----------------------------------------------------------------------------------

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
// Reads the first COUNT numbers only; the others are 0.
template <int COUNT> static inline vec load_first(const float *p) {
#if defined(__AVX512F__)
  typedef float masked __attribute__((vector_size(64)));
  return (vec)__builtin_ia32_loadups512_mask(p, masked{}, (1u << COUNT) - 1);
#else
  float lanes[LANES] = {};
  memcpy(lanes, p, sizeof(float) * COUNT);
  return load(lanes);
#endif
}
// Writes the first COUNT numbers only, or adds to them.
template <int COUNT, bool ADD> static inline void store_first(float *p, vec v) {
  if (ADD) v += load_first<COUNT>(p);
#if defined(__AVX512F__)
  typedef float masked __attribute__((vector_size(64)));
  __builtin_ia32_storeups512_mask(p, (masked)v, (1u << COUNT) - 1);
#else
  float lanes[LANES];
  store(lanes, v);
  for (int i = 0; i < COUNT; i++) p[i] = lanes[i];
#endif
}
static inline float total(vec v) {
  float lanes[LANES];
  store(lanes, v);
  for (int n = LANES / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
  return lanes[0];
}

struct number { float operator()(const float *p) const { return *p; } };
struct lanes { vec operator()(const float *p) const { return load(p); } };

// The sum of f(i, at), where at(p) reads numbers from p on; four vectors of partial sums, so that
// the order never depends on more than N.
template <int64_t N, class F> static inline float sum_each(F f) {
  if (N < 2 * LANES) {
    float s = 0.0f;
    for (int64_t i = 0; i < N; i++) s += f(i, number());
    return s;
  }
  vec s[4] = {};
  int64_t i = 0;
  for (; i + 4 * LANES <= N; i += 4 * LANES)
    for (int k = 0; k < 4; k++) s[k] += f(i + k * LANES, lanes());
  for (; i + LANES <= N; i += LANES) s[0] += f(i, lanes());
  float rest = 0.0f;
  for (; i < N; i++) rest += f(i, number());
  return total((s[0] + s[1]) + (s[2] + s[3])) + rest;
}
template <int64_t N, class F> static inline float sum_of(const float *x, F f) {
  return sum_each<N>([&](int64_t i, auto at) { return f(at(x + i)); });
}
struct plain { template <class T> T operator()(T x) const { return x; } };
struct squared { template <class T> T operator()(T x) const { return x * x; } };

// Adds the sums of n rows of `width` numbers, INNER apart, to y.
template <int64_t INNER>
static inline void add_rows(const float *x, int64_t n, int64_t width, float *y) {
  for (; n >= 4; n -= 4, x += 4 * INNER)
#pragma GCC ivdep
    for (int64_t i = 0; i < width; i++)
      y[i] += (x[i] + x[i + INNER]) + (x[i + 2 * INNER] + x[i + 3 * INNER]);
  for (; n > 0; n--, x += INNER)
#pragma GCC ivdep
    for (int64_t i = 0; i < width; i++) y[i] += x[i];
}
constexpr int64_t block_of(int64_t n) {
  int64_t block = 128;
  while (block * block < n) block *= 2;
  return block;
}
// Reductions of [OUTER, N, INNER] over the middle axis. Long columns are summed in blocks, so that
// rounding grows with the square root of N: a running sum loses the digits of small terms.
template <int64_t OUTER, int64_t N, int64_t INNER> static void sum(const float *x, float *y) {
  constexpr int64_t BLOCK = block_of(N), WIDTH = INNER < 512 ? INNER : 512;
  for (int64_t o = 0; o < OUTER; o++, x += N * INNER, y += INNER) {
    if (INNER == 1) {
      *y = sum_of<N>(x, plain());
      continue;
    }
    for (int64_t i = 0; i < INNER; i += WIDTH) {
      const int64_t width = INNER - i < WIDTH ? INNER - i : WIDTH;
      for (int64_t k = 0; k < width; k++) y[i + k] = 0.0f;
      add_rows<INNER>(x + i, N < BLOCK ? N : BLOCK, width, y + i);
      for (int64_t n = BLOCK; n < N; n += BLOCK) {
        float part[WIDTH] = {};
        add_rows<INNER>(x + n * INNER + i, N - n < BLOCK ? N - n : BLOCK, width, part);
        for (int64_t k = 0; k < width; k++) y[i + k] += part[k];
      }
    }
  }
}
// Adds the results of a tile to those of the tiles before it, if any.
template <int64_t N, class T> static void add_tile(const T *x, T *y, bool first) {
  if (first) memcpy(y, x, sizeof(T) * N);
  else
#pragma GCC ivdep
    for (int64_t i = 0; i < N; i++) y[i] += x[i];
}
// Adds the sums of PARTS parts in order; they are STRIDE bytes apart.
template <int64_t N, int64_t PARTS, int64_t STRIDE, class T>
static void add_parts(const T *x, T *y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < N; i++) {
    T s = x[i];
#pragma GCC unroll 8
    for (int64_t p = 1; p < PARTS; p++) s += ((const T *)((const char *)x + p * STRIDE))[i];
    y[i] = s;
  }
}
// Adds the sums of parts in pairs, those of pairs, and so on to two halves. The thread that computed
// the later one adds it, as it is in its core's cache. `done` has a counter for each sum of two.
template <int PARTS, class F> static void meet(int64_t part, int *done, F add) {
  for (int64_t span = 1; 4 * span <= PARTS; span *= 2) {
    const int64_t first = part / (2 * span) * (2 * span);
    if (__atomic_fetch_add(done + (PARTS + first) / (2 * span), 1, __ATOMIC_ACQ_REL) == 0) return;
    add(first + span, first);
  }
}
template <int64_t OUTER, int64_t N, int64_t INNER, class S, class T, class F>
static void fold(const S *x, T *y, T start, F f) {
  for (int64_t o = 0; o < OUTER; o++, x += N * INNER, y += INNER)
    for (int64_t i = 0; i < INNER; i++) {
      T r = start;
      for (int64_t n = 0; n < N; n++) r = f(r, (T)x[n * INNER + i]);
      y[i] = r;
    }
}
template <int64_t OUTER, int64_t N, int64_t INNER, bool LARGEST, class T, class I>
static void arg_of(const T *x, I *index, T *value) {
  for (int64_t o = 0; o < OUTER; o++)
    for (int64_t i = 0; i < INNER; i++) {
      const T *column = x + o * N * INNER + i;
      int64_t best = 0;
      for (int64_t n = 1; n < N; n++) {
        const T a = column[n * INNER], b = column[best * INNER];
        if (b == b && (a != a || (LARGEST ? a > b : a < b))) best = n;
      }
      if (index) index[o * INNER + i] = (I)best;
      if (value) value[o * INNER + i] = column[best * INNER];
    }
}

// ---- products ----------------------------------------------------------------------------------

// Transposes a 4 x 4 square: pairs of rows exchange halves, then single numbers.
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#ifdef __clang__
#define MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int four_places __attribute__((vector_size(16)));
#define MIXED(a, b, ...) __builtin_shuffle(a, b, four_places{__VA_ARGS__})
#endif
static inline void transpose_square(const float *x, int from, float *y, int to) {
  const four a = *(const four *)x, b = *(const four *)(x + from);
  const four c = *(const four *)(x + 2 * from), d = *(const four *)(x + 3 * from);
  const four e = MIXED(a, b, 0, 4, 1, 5), f = MIXED(a, b, 2, 6, 3, 7);
  const four g = MIXED(c, d, 0, 4, 1, 5), h = MIXED(c, d, 2, 6, 3, 7);
  *(four *)y = MIXED(e, g, 0, 1, 4, 5);
  *(four *)(y + to) = MIXED(e, g, 2, 3, 6, 7);
  *(four *)(y + 2 * to) = MIXED(f, h, 0, 1, 4, 5);
  *(four *)(y + 3 * to) = MIXED(f, h, 2, 3, 6, 7);
}
// y[c * to + r] = x[r * from + c]; sixteen columns at a time, the numbers of one line of the cache.
template <int ROWS, int COLUMNS>
static inline void transpose(const float *x, int from, float *y, int to) {
  constexpr int TALL = ROWS / 4 * 4, WIDE = COLUMNS / 4 * 4;
  for (int line = 0; line < WIDE; line += 16)
    for (int r = 0; r < TALL; r += 4)
      for (int c = line; c < line + 16 && c < WIDE; c += 4)
        transpose_square(x + r * from + c, from, y + c * to + r, to);
  for (int c = WIDE; c < COLUMNS; c++)
    for (int r = 0; r < TALL; r++) y[c * to + r] = x[r * from + c];
  for (int c = 0; c < COLUMNS; c++)
    for (int r = TALL; r < ROWS; r++) y[c * to + r] = x[r * from + c];
}

// Calls f(start, size) for steps of N; `size` is a constant, the last one may be smaller.
template <int N, int STEP, class F> static inline void in_steps(F f) {
  for (int i = 0; i + STEP <= N; i += STEP) f(i, std::integral_constant<int, STEP>());
  if constexpr (N % STEP > 0) f(N - N % STEP, std::integral_constant<int, N % STEP>());
}

// R rows and V vectors of columns of C = A B. A's element (m, k) is a[m * AM + k * AK]; B is
// [K, LDB] with whole vectors; of C only COLS columns are written, or added to if ADD. The last ones
// are half a vector if they fit: some processors compute that in half the time.
typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
template <int R, int V, int K, int AM, int AK, int LDB, int LDC, int COLS, bool ADD>
static inline void product_block(const float *a, const float *b, float *c) {
  constexpr int REST = COLS % LANES, H = LANES == 16 && REST > 0 && REST <= 8, W = V - H;
  vec s[R][W > 0 ? W : 1];
  half h[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    if (H) h[r] = half{};
#pragma GCC unroll 8
    for (int v = 0; v < W; v++) s[r][v] = vec{};
  }
  for (int k = 0; k < K; k++) {
    vec t[W > 0 ? W : 1];
    half u;
#pragma GCC unroll 8
    for (int v = 0; v < W; v++) t[v] = load(b + k * LDB + v * LANES);
    if (H) u = *(const half *)(b + k * LDB + W * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const float x = a[r * AM + k * AK];
#pragma GCC unroll 8
      for (int v = 0; v < W; v++) s[r][v] += x * t[v];
      if (H) h[r] += x * u;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < W; v++) {
      float *const at = c + r * LDC + v * LANES;
      if ((v + 1) * LANES <= COLS) {
        store(at, ADD ? load(at) + s[r][v] : s[r][v]);
      } else {
        store_first<REST, ADD>(at, s[r][v]);
      }
    }
    if (H) {
      float *const at = c + r * LDC + W * LANES;
      half old = {};
      if (ADD) memcpy(&old, at, sizeof(float) * REST), h[r] += old;
      memcpy(at, &h[r], sizeof(float) * REST);
    }
  }
}
template <int M, int V, int K, int AM, int AK, int LDB, int LDC, int COLS, bool ADD>
static inline void product_rows(const float *a, const float *b, float *c) {
  constexpr int HELD = (LANES == 16 ? 24 : 12) / V, R = HELD > 8 ? 8 : HELD;
  in_steps<M, R>([&](int m, auto rows) {
    product_block<rows.value, V, K, AM, AK, LDB, LDC, COLS, ADD>(a + m * AM, b, c + m * LDC);
  });
}
// Sums of four vectors.
static inline four totals(const float *v) {
  four s[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const four *const part = (const four *)(v + i * LANES);
    if (LANES == 16) s[i] = (part[0] + part[1]) + (part[2] + part[3]);
    else s[i] = LANES == 8 ? part[0] + part[1] : part[0];
  }
  const four a = MIXED(s[0], s[1], 0, 4, 1, 5) + MIXED(s[0], s[1], 2, 6, 3, 7);
  const four b = MIXED(s[2], s[3], 0, 4, 1, 5) + MIXED(s[2], s[3], 2, 6, 3, 7);
  return MIXED(a, b, 0, 1, 4, 5) + MIXED(a, b, 2, 3, 6, 7);
}
// C [M, N] = A [M, K] B [N, K]^T for few rows or columns: dot products along K.
template <int M, int N, int K, int LDA, int LDB>
static void product_dots(const float *a, const float *b, float *c) {
  constexpr int WIDE = K / LANES * LANES;
  in_steps<N, 4>([&](int n, auto columns) {
    in_steps<M, LANES == 16 ? 4 : 2>([&](int m, auto rows) {
      constexpr int R = rows.value, C = columns.value;
      const float *const x = a + m * LDA, *const y = b + n * LDB;
      vec s[R][4] = {};
      for (int k = 0; k < WIDE; k += LANES)
#pragma GCC unroll 4
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
          for (int j = 0; j < C; j++) s[i][j] += load(x + i * LDA + k) * load(y + j * LDB + k);
      if (WIDE < K) {
        vec rest[C];
        for (int j = 0; j < C; j++) rest[j] = load_first<K - WIDE>(y + j * LDB + WIDE);
        for (int i = 0; i < R; i++) {
          const vec t = load_first<K - WIDE>(x + i * LDA + WIDE);
          for (int j = 0; j < C; j++) s[i][j] += t * rest[j];
        }
      }
      float lanes[R][4 * LANES];
#pragma GCC unroll 16
      for (int i = 0; i < R * 4; i++) store(lanes[0] + i * LANES, s[i / 4][i % 4]);
      for (int i = 0; i < R; i++) {
        const four sums = totals(lanes[i]);
        memcpy(c + (m + i) * N + n, &sums, sizeof(float) * C);
      }
    });
  });
}
constexpr int whole(int n) { return (n + LANES - 1) / LANES * LANES; }
// Zeros behind N columns in K rows.
template <int N, int K, int WIDTH> static void fill(float *y) {
  for (int k = 0; k < K; k++)
    for (int n = N; n < WIDTH; n++) y[k * WIDTH + n] = 0.0f;
}

// N columns of B [K, LDB], or of B [N, LDB] transposed, as K rows of whole vectors.
template <int N, int K, int LDB, bool TB, int WIDTH = whole(N)>
static void pack(const float *b, float *y) {
  for (int from = N / LANES * LANES; from < WIDTH; from += LANES)
    for (int k = 0; k < K; k++) store(y + k * WIDTH + from, vec{});
  if (TB) transpose<N, K>(b, LDB, y, WIDTH);
  else
    for (int k = 0; k < K; k++) memcpy(y + k * WIDTH, b + k * LDB, sizeof(float) * N);
}

// Columns of C that are computed together.
constexpr int COLUMNS = (LANES == 16 ? 4 : 2) * LANES;

// Sums are cut into equal steps, so that a panel of B stays in a core's cache.
constexpr int terms_of(int k) {
  const int steps = (k + 383) / 384;
  return steps > 1 ? (k + steps - 1) / steps : k > 0 ? k : 1;
}
// C [M, N] = op(A) op(B): A is [M, K], or [K, M] if TA; B is [K, N], or [N, K] if TB. Rows of A are
// LDA apart, rows of B LDB, rows of C LDC. Rows of B that are whole vectors end in any numbers.
template <int M, int N, int K, bool TA, bool TB, int LDA = TA ? M : K, int LDB = TB ? K : N,
          int LDC = N>
static void product(const float *a, const float *b, float *c, float *scratch) {
  // For few rows or columns, transposing B takes longer than summing over the lanes of a vector.
  constexpr bool FEW = K >= 128 && K % LANES == 0 && 16 * std::min(M, N) <= K && LDC == N;
  // Few columns that fill no vectors.
  constexpr bool NARROW = 2 * N <= LANES || N < 7 * LANES / 4 && N % (LANES / 2) > 0;
  if constexpr (TB && !TA && K >= LANES && (N <= 4 && LDC == N || FEW)) {
    product_dots<M, N, K, LDA, LDB>(a, b, c);
  } else if constexpr (TA && !TB && NARROW && M >= 2 * LANES && M <= 1024 && LDC == N) {
    float turned[N * M];  // the rows of A fill vectors, those of B do not
    product<N, M, K, true, false, LDB, LDA>(b, a, turned, scratch);
    transpose<N, M>(turned, M, c, N);
  } else {
    constexpr int ROWS = 192, TERMS = terms_of(K);
    constexpr int AM = TA ? 1 : LDA, AK = TA ? LDA : 1, BK = TB ? 1 : LDB, BN = TB ? LDB : 1;
    in_steps<M, ROWS>([&](int m, auto rows) {
      in_steps<(K > 0 ? K : 1), TERMS>([&](int k, auto terms) {
        in_steps<N, COLUMNS>([&](int n, auto columns) {
          constexpr int R = rows.value, T = K > 0 ? terms.value : 0, C = columns.value;
          constexpr int V = whole(C) / LANES;
          constexpr bool PACK = TB || C % LANES && LDB % LANES;
          constexpr int STEP = PACK ? whole(C) : LDB;
          const float *const x = a + m * AM + k * AK, *y = b + k * BK + n * BN;
          float *const z = c + m * LDC + n;
          if constexpr (PACK) pack<C, T, LDB, TB>(y, scratch), y = scratch;
          if (TERMS < K && k > 0) product_rows<R, V, T, AM, AK, STEP, LDC, C, true>(x, y, z);
          else product_rows<R, V, T, AM, AK, STEP, LDC, C, false>(x, y, z);
        });
      });
    });
  }
}

// B as panels of COLUMNS of its columns, one after the other: [N / COLUMNS, TALL, COLUMNS]. Of the
// TALL rows only K are written.
template <int N, int K, bool TB, int LDB, int TALL> static void panels(const float *b, float *y) {
  for (int n = 0; n < N; n += COLUMNS) {
    own(y + n * TALL, COLUMNS * K);
    pack<COLUMNS, K, LDB, TB>(b + n * (TB ? LDB : 1), y + n * TALL);
  }
}
// C [M, N] = A [M, K] B, B as panels.
template <int M, int N, int K>
static void product_panels(const float *a, const float *b, float *c) {
  constexpr int TERMS = terms_of(K);
  in_steps<K, TERMS>([&](int k, auto terms) {
    for (int n = 0; n < N; n += COLUMNS) {
      constexpr int T = terms.value, V = COLUMNS / LANES;
      const float *const x = a + k, *const y = b + n * K + k * COLUMNS;
      float *const z = c + n;
      if (k > 0) product_rows<M, V, T, K, 1, COLUMNS, N, COLUMNS, true>(x, y, z);
      else product_rows<M, V, T, K, 1, COLUMNS, N, COLUMNS, false>(x, y, z);
    }
  });
}

// One of the parts of a product, STEP of its rows.
template <int M, int N, int K, bool TA, bool TB, int STEP>
static void product_part(int64_t part, const float *a, const float *b, float *c, float *scratch) {
  in_steps<M, STEP>([&](int m, auto rows) {
    if (m == part * STEP)
      product<rows.value, N, K, TA, TB, TA ? M : K>(a + m * (TA ? 1 : K), b, c + m * N, scratch);
  });
}

// The same of its columns: each part reads few columns of a wide B, and all of A.
template <int M, int N, int K, bool TA, bool TB, int STEP>
static void product_columns(int64_t part, const float *a, const float *b, float *c, float *scratch) {
  constexpr int LDA = TA ? M : K, LDB = TB ? K : N;
  const int64_t n = part * STEP;
  product<M, STEP, K, TA, TB, LDA, LDB, N>(a, b + n * (TB ? K : 1), c + n, scratch);
}

#include "convolution.h"

// ---- rows of a table, probabilities ------------------------------------------------------------

// The softmax of short rows in vectors across rows: f(x, s, width) replaces the numbers of `width`
// rows. x[i][r] is number i of row r less the row's largest, s[r] the sum of their exponentials.
template <int64_t ROWS, int64_t N, class F>
static void softmax_short(const float *given, float *y, F f) {
  constexpr int64_t MOST = 4 * LANES, WIDTH = ROWS < MOST ? whole(ROWS + (ROWS == 0)) : MOST;
  float x[N + (N == 0)][WIDTH] = {}, most[WIDTH], s[WIDTH];  // no dimension is empty
  for (int64_t done = 0; done < ROWS; done += WIDTH) {
    const int64_t some = ROWS - done < WIDTH ? ROWS - done : WIDTH;
    for (int64_t r = 0; r < some; r++)
      for (int64_t i = 0; i < N; i++) x[i][r] = *given++;
    for (int64_t r = 0; r < WIDTH; r++) most[r] = x[0][r], s[r] = 0.0f;
    for (int64_t i = 1; i < N; i++)
      for (int64_t r = 0; r < WIDTH; r++) most[r] = larger(most[r], x[i][r]);
    for (int64_t i = 0; i < N; i++)
      for (int64_t r = 0; r < WIDTH; r++) x[i][r] -= most[r];
    for (int64_t i = 0; i < N; i++)
      for (int64_t r = 0; r < WIDTH; r++) s[r] += expf(x[i][r]);
    f(x, s, std::integral_constant<int64_t, WIDTH>());
    for (int64_t r = 0; r < some; r++)
      for (int64_t i = 0; i < N; i++) *y++ = x[i][r];
  }
}
template <int64_t ROWS, int64_t N> static void log_softmax(const float *x, float *y) {
  if constexpr (N < LANES) {
    softmax_short<ROWS, N>(x, y, [](auto &x, float *s, auto width) {
      for (int64_t r = 0; r < width; r++) s[r] = logf(s[r]);
      for (int64_t i = 0; i < N; i++)
        for (int64_t r = 0; r < width; r++) x[i][r] -= s[r];
    });
    return;
  }
  for (int64_t r = 0; r < ROWS; r++, x += N, y += N) {
    float most = x[0], s = 0.0f;
    for (int64_t i = 1; i < N; i++) most = larger(most, x[i]);
    for (int64_t i = 0; i < N; i++) s += expf(x[i] - most);
    const float shift = logf(s);
    for (int64_t i = 0; i < N; i++) y[i] = x[i] - most - shift;
  }
}
template <int64_t N> static inline float largest(const float *x) {
  vec m = load(x);
  int64_t i = LANES;
  for (; i + LANES <= N; i += LANES) {
    const vec v = load(x + i);
    m = (m > v) | (m != m) ? m : v;
  }
  float most = m[0];
  for (int k = 1; k < LANES; k++) most = larger(most, m[k]);
  for (; i < N; i++) most = larger(most, x[i]);
  return most;
}
// Long rows: the exponentials of several rows are one loop, which fills whole vectors. Those below
// LEAST, as of masked numbers, become 0: the vector function is slow for them.
template <int64_t ROWS, int64_t N> static void softmax_long(const float *x, float *y) {
  constexpr float LEAST = 1.7e-38f, LOG_LEAST = -87.0f;
  for (int64_t r = 0; r < ROWS; r++) {
    const float most = largest<N>(x + r * N);
    for (int64_t i = 0; i < N; i++) y[r * N + i] = larger(x[r * N + i] - most, LOG_LEAST);
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < ROWS * N; i++) y[i] = expf(y[i]);
  for (int64_t r = 0; r < ROWS; r++) {
    for (int64_t i = 0; i < N; i++) y[r * N + i] = y[r * N + i] < LEAST ? 0.0f : y[r * N + i];
    const float s = sum_of<N>(y + r * N, plain());
    for (int64_t i = 0; i < N; i++) y[r * N + i] /= s;
  }
}
template <int64_t ROWS, int64_t N> static void softmax(const float *x, float *y) {
  if constexpr (N >= LANES) {
    constexpr int64_t SOME = N < 4096 ? 4096 / N : 1;
    for (int64_t r = 0; r + SOME <= ROWS; r += SOME) softmax_long<SOME, N>(x + r * N, y + r * N);
    constexpr int64_t DONE = ROWS / SOME * SOME;
    softmax_long<ROWS - DONE, N>(x + DONE * N, y + DONE * N);
    return;
  }
  softmax_short<ROWS, N>(x, y, [](auto &x, float *s, auto width) {
    for (int64_t i = 0; i < N; i++)
      for (int64_t r = 0; r < width; r++) x[i][r] = expf(x[i][r]) / s[r];
  });
}
template <int64_t ROWS, int64_t N>
static void log_softmax_grad(const float *y, const float *dy, float *dx) {
  constexpr int64_t SOME = N > 0 && N < 512 ? 512 / N : 1;  // rows whose exponentials are one loop
  for (int64_t done = 0; done < ROWS; done += SOME) {
    const int64_t some = ROWS - done < SOME ? ROWS - done : SOME;
    float e[SOME * N];
    for (int64_t i = 0; i < some * N; i++) e[i] = expf(y[done * N + i]);
    for (int64_t r = 0; r < some; r++) {
      const float *const given = dy + (done + r) * N;
      float *const result = dx + (done + r) * N;
      float s = 0.0f;
      for (int64_t i = 0; i < N; i++) s += given[i];
      for (int64_t i = 0; i < N; i++) result[i] = given[i] - e[r * N + i] * s;
    }
  }
}
template <int64_t ROWS, int64_t N>
static void softmax_grad(const float *y, const float *dy, float *dx) {
  for (int64_t r = 0; r < ROWS; r++, y += N, dy += N, dx += N) {
    const float s = sum_each<N>([&](int64_t i, auto at) { return at(y + i) * at(dy + i); });
    for (int64_t i = 0; i < N; i++) dx[i] = y[i] * (dy[i] - s);
  }
}
template <int64_t ROWS, int64_t N>
static void layer_norm(const float *x, const float *gain, const float *shift, float epsilon,
                       float *y, float *mean, float *variance) {
  for (int64_t r = 0; r < ROWS; r++, x += N, y += N) {
    const float m = mean[r] = sum_of<N>(x, plain()) / N;
    const float v = sum_of<N>(x, [m](auto n) { return (n - m) * (n - m); });
    variance[r] = v / N;
    const float scale = 1.0f / sqrtf(v / N + epsilon);
    for (int64_t i = 0; i < N; i++) y[i] = (x[i] - m) * scale * gain[i] + shift[i];
  }
}
template <int64_t ROWS, int64_t N>
static void layer_norm_grad(const float *x, const float *dy, const float *variance,
                            const float *mean, const float *gain, float epsilon, float *dx,
                            float *dgain, float *dshift) {
  for (int64_t i = 0; i < N; i++) dgain[i] = dshift[i] = 0.0f;
  for (int64_t r = 0; r < ROWS; r++, x += N, dy += N, dx += N) {
    const float scale = 1.0f / sqrtf(variance[r] + epsilon);
    const float m = mean[r];
    const float sum = sum_each<N>([&](int64_t i, auto at) { return at(dy + i) * at(gain + i); });
    const float along = sum_each<N>([&](int64_t i, auto at) {
      return at(dy + i) * at(gain + i) * ((at(x + i) - m) * scale);
    });
#pragma GCC ivdep
    for (int64_t i = 0; i < N; i++) {
      const float h = (x[i] - m) * scale;
      dgain[i] += dy[i] * h;
      dshift[i] += dy[i];
      dx[i] = scale * (dy[i] * gain[i] - sum / N - h * (along / N));
    }
  }
}
// x [OUTER, N, INNER] at index [COUNT] of the middle axis; zeros where there is no such row.
template <int64_t OUTER, int64_t N, int64_t INNER, int64_t COUNT, class T, class I>
static void gather(const T *x, const I *index, T *y) {
  for (int64_t o = 0; o < OUTER; o++, x += N * INNER)
    for (int64_t i = 0; i < COUNT; i++, y += INNER) {
      const int64_t at = index[i] < 0 ? index[i] + N : index[i];
      if (at < 0 || at >= N) memset(y, 0, sizeof(T) * INNER);
      else memcpy(y, x + at * INNER, sizeof(T) * INNER);
    }
}
// y [SEGMENTS, INNER] += x [COUNT, INNER] by index; rows out of range are left out.
template <int64_t SEGMENTS, int64_t INNER, int64_t COUNT, class T, class I>
static void scatter_sum(const T *x, const I *index, T *y) {
  for (int64_t i = 0; i < COUNT; i++) {
    const int64_t at = index[i];
    if (at < 0 || at >= SEGMENTS) continue;
#pragma GCC ivdep
    for (int64_t j = 0; j < INNER; j++) y[at * INNER + j] += x[i * INNER + j];
  }
}
// Along the middle axis of x [OUTER, N, INNER], by index [OUTER, M, INNER].
template <int64_t OUTER, int64_t N, int64_t M, int64_t INNER, class T, class I>
static void gather_along(const T *x, const I *index, T *y) {
  for (int64_t o = 0; o < OUTER; o++)
    for (int64_t m = 0; m < M; m++)
      for (int64_t i = 0; i < INNER; i++) {
        const int64_t e = (o * M + m) * INNER + i, at = index[e] < 0 ? index[e] + N : index[e];
        y[e] = at < 0 || at >= N ? T(0) : x[(o * N + at) * INNER + i];
      }
}
template <int64_t OUTER, int64_t N, int64_t M, int64_t INNER, class T, class I>
static void scatter_along(const I *index, const T *dy, T *dx) {
  memset(dx, 0, sizeof(T) * OUTER * N * INNER);
  for (int64_t o = 0; o < OUTER; o++)
    for (int64_t m = 0; m < M; m++)
      for (int64_t i = 0; i < INNER; i++) {
        const int64_t e = (o * M + m) * INNER + i, at = index[e] < 0 ? index[e] + N : index[e];
        if (at >= 0 && at < N) dx[(o * N + at) * INNER + i] += dy[e];
      }
}
// Cumulative sums or products along the middle axis.
template <int64_t OUTER, int64_t N, int64_t INNER, bool EXCLUSIVE, bool REVERSE, bool SUMS, class S,
          class T>
static void running(const S *x, T *y) {
  for (int64_t o = 0; o < OUTER; o++)
    for (int64_t i = 0; i < INNER; i++) {
      T s = SUMS ? 0 : 1;
      for (int64_t n = 0; n < N; n++) {
        const int64_t e = (o * N + (REVERSE ? N - 1 - n : n)) * INNER + i;
        const T v = (T)x[e];
        if (EXCLUSIVE) y[e] = s;
        s = SUMS ? s + v : s * v;
        if (!EXCLUSIVE) y[e] = s;
      }
    }
}
// The cumulative extremum and its index, the last of equal ones; NaN stays.
template <int64_t OUTER, int64_t N, int64_t INNER, bool LARGEST, class T, class I>
static void running_most(const T *x, T *y, I *index) {
  for (int64_t o = 0; o < OUTER; o++)
    for (int64_t i = 0; i < INNER; i++) {
      int64_t best = 0;
      for (int64_t n = 0; n < N; n++) {
        const int64_t e = (o * N + n) * INNER + i;
        const T a = x[e], b = x[(o * N + best) * INNER + i];
        if (a != a || (b == b && (LARGEST ? a >= b : a <= b))) best = n;
        y[e] = x[(o * N + best) * INNER + i];
        index[e] = (I)best;
      }
    }
}
// Sorts each row, stably and with NaN last.
template <bool DESCENDING, class T> static inline bool before(T a, T b) {
  return (DESCENDING ? a > b : a < b) | ((a == a) & (b != b));
}
template <int64_t ROWS, int64_t N, bool DESCENDING, class T, class I>
static void sort_rows(const T *x, T *y, I *index) {
  for (int64_t r = 0; r < ROWS; r++, x += N, y += N, index += N) {
    if constexpr (N <= 256) {  // vectors count what comes before an element faster than a sort does
      for (int32_t i = 0; i < N; i++) {
        const T one = x[i];
        int32_t place = 0;
        for (int32_t j = 0; j < i; j++) place += !before<DESCENDING>(one, x[j]);
        for (int32_t j = i + 1; j < N; j++) place += before<DESCENDING>(x[j], one);
        y[place] = one;
        index[place] = (I)i;
      }
      continue;
    }
    for (int64_t i = 0; i < N; i++) index[i] = (I)i;
    std::stable_sort(index, index + N,
                     [&](I a, I b) { return before<DESCENDING>(x[a], x[b]); });
    for (int64_t i = 0; i < N; i++) y[i] = x[index[i]];
  }
}
// The first K of each row in sorted order; NaN is the largest number, as in NumPy.
template <int64_t ROWS, int64_t N, int64_t K, bool LARGEST, class T, class I>
static void top_rows(const T *x, T *y, I *index, int32_t *order) {
  for (int64_t r = 0; r < ROWS; r++, x += N) {
    for (int64_t i = 0; i < N; i++) order[i] = (int32_t)i;
    const auto first = [&](int32_t a, int32_t b) {
      const T p = x[a], q = x[b];
      const bool less = p < q || (p == p && q != q), more = p > q || (p != p && q == q);
      return (LARGEST ? more : less) || (!less && !more && a < b);
    };
    std::partial_sort(order, order + K, order + N, first);
    for (int64_t i = 0; i < K; i++) {
      *y++ = x[order[i]];
      *index++ = (I)order[i];
    }
  }
}
template <int64_t ROWS, int64_t N, int64_t M, bool RIGHT, class T, class I>
static void search(const T *sorted, const T *value, I *y) {
  for (int64_t r = 0; r < ROWS; r++, sorted += N)
    for (int64_t m = 0; m < M; m++) {
      const T v = value[r * M + m];
      const T *at = RIGHT ? std::upper_bound(sorted, sorted + N, v)
                          : std::lower_bound(sorted, sorted + N, v);
      y[r * M + m] = (I)(v == v ? at - sorted : N);
    }
}
