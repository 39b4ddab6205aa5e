// Convolutions and pools of images [C, H, W]. kernels.h includes this file.
//
// A convolution is a product of matrices, whose sums go over the numbers under a window, over the
// channels of a place, or over the places of an image. Here the vectors are channels of one operand,
// which is packed for that; the other operand's numbers are read from where they are.
#pragma once
#include <type_traits>

// Channels next to each other in a panel; the last panel may have fewer vectors.
constexpr int PANEL = 2 * LANES;
// Calls f(number of vectors, first channel, number of channels) for each panel of N channels.
template <int N, class F> static inline void each_panel(F f) {
  constexpr int REST = N % PANEL;
  for (int at = 0; at + PANEL <= N; at += PANEL) f(std::integral_constant<int, 2>(), at, PANEL);
  if constexpr (REST > 0)
    f(std::integral_constant<int, (REST + LANES - 1) / LANES>(), N - REST, REST);
}
// y[c * to + r] = x[r * from + c].
static void turn(const float *x, int from, int rows, int columns, float *y, int to) {
  if (rows < 4 || columns < 4) {
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < columns; c++) y[c * to + r] = x[r * from + c];
    return;
  }
  for (int i = 0; i < rows; i += 4)  // the last squares overlap the ones before
    for (int j = 0; j < columns; j += 4) {
      const int r = i + 4 > rows ? rows - 4 : i, c = j + 4 > columns ? columns - 4 : j;
      transpose_square(x + r * from + c, from, y + c * to + r, to);
    }
}

// Adds A B to R1 x R2 rows of V vectors of C, for sums of K1 x K2 x K3 products. The indices r1, r2,
// k1, k2, k3 of A's element are AR1, AR2, A1, A2, A3 apart; B's rows follow each other.
template <int R1, int AR1, int R2, int AR2, int V, int K1, int A1, int K2, int A2, int K3, int A3,
          int LDC>
static inline void taps_block(const float *a, const float *b, float *c) {
  vec s[R1 * R2][V];
#pragma GCC unroll 16
  for (int r = 0; r < R1 * R2; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) s[r][v] = vec{};
  for (int k1 = 0; k1 < K1; k1++)
    for (int k2 = 0; k2 < K2; k2++) {
      const float *at = a + k1 * A1 + k2 * A2;
#pragma GCC unroll 4
      for (int k3 = 0; k3 < K3; k3++, at += A3, b += V * LANES) {
        vec t[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) t[v] = load(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R1 * R2; r++) {
          const float x = at[r / R2 * AR1 + r % R2 * AR2];
#pragma GCC unroll 2
          for (int v = 0; v < V; v++) s[r][v] += x * t[v];
        }
      }
    }
#pragma GCC unroll 16
  for (int r = 0; r < R1 * R2; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      float *to = c + r * LDC + v * LANES;
      store(to, load(to) + s[r][v]);
    }
}
// The same for N1 x N2 rows, in blocks for which there are registers.
template <int N1, int AR1, int N2, int AR2, int V, int K1, int A1, int K2, int A2, int K3, int A3,
          int LDC>
static inline void taps_rows(const float *a, const float *b, float *c) {
  constexpr int MOST = LANES == 16 ? 12 : 6;
  if constexpr (N2 <= MOST) {
    constexpr int R = std::min(N1, MOST / N2), REST = N1 % R;
    for (int i = 0; i + R <= N1; i += R)
      taps_block<R, AR1, N2, AR2, V, K1, A1, K2, A2, K3, A3, LDC>(a + i * AR1, b, c + i * N2 * LDC);
    if constexpr (REST > 0)
      taps_block<REST, AR1, N2, AR2, V, K1, A1, K2, A2, K3, A3, LDC>(
          a + (N1 - REST) * AR1, b, c + (N1 - REST) * N2 * LDC);
  } else {
    constexpr int BLOCKS = (N2 + MOST - 1) / MOST, R = (N2 + BLOCKS - 1) / BLOCKS;
    constexpr int LAST = N2 - (BLOCKS - 1) * R;
    for (int i = 0; i < N1; i++, a += AR1, c += N2 * LDC) {
      for (int j = 0; j < BLOCKS - 1; j++)
        taps_block<1, 0, R, AR2, V, K1, A1, K2, A2, K3, A3, LDC>(a + j * R * AR2, b, c + j * R * LDC);
      taps_block<1, 0, LAST, AR2, V, K1, A1, K2, A2, K3, A3, LDC>(
          a + (N2 - LAST) * AR2, b, c + (N2 - LAST) * LDC);
    }
  }
}

// N images, STRIDE_X and STRIDE_Y numbers apart, of C channels become O channels.
template <int N, int STRIDE_X, int STRIDE_Y, int C, int H, int W, int O, int KH, int KW, int SH,
          int SW, int TOP, int LEFT, int DH, int DW, int OH, int OW>
struct convolution {
  static constexpr int P = OH * OW, T = C * KH * KW;  // places of a result, taps of a place
  // An image with its padding, and with what the last windows reach.
  static constexpr int HP = std::max(TOP + H, (OH - 1) * SH + (KH - 1) * DH + 1);
  static constexpr int WP = std::max(LEFT + W, (OW - 1) * SW + (KW - 1) * DW + 1);
  static constexpr bool PADDED = HP != H || WP != W;

  // Returns an image as floats, with zeros around it.
  template <class X> static const float *staged(const X *x, float *padded) {
    if constexpr (!PADDED && std::is_same_v<X, float>) return x;
    for (int c = 0; c < C; c++)
      for (int h = 0; h < H; h++, x += W) {
        float *row = padded + (c * HP + TOP + h) * WP + LEFT;
        for (int i = 0; i < W; i++) row[i] = (float)x[i];
      }
    return padded;
  }
  static void clear(float *padded) {
    if (PADDED) memset(padded, 0, sizeof(float) * C * HP * WP);
  }

  // y is the convolution of x * scale.
  template <class X>
  static void forward(const X *x, const float *w, float *y, float *room, float scale = 1.0f) {
    float *const weights = room, *const places = weights + T * whole(O);
    float *const padded = places + P * PANEL;
    memset(weights, 0, sizeof(float) * T * whole(O));
    each_panel<O>([&](auto V, int at, int count) {
      turn(w + at * T, T, count, T, weights + at * T, V * LANES);
    });
    for (int i = 0; i < T * whole(O); i++) weights[i] *= scale;
    clear(padded);
    for (int n = 0; n < N; n++, x += STRIDE_X, y += STRIDE_Y) {
      const float *image = staged(x, padded);
      each_panel<O>([&](auto V, int at, int count) {
        constexpr int LD = V * LANES;
        memset(places, 0, sizeof(float) * P * LD);
        for (int i = 0; i < OH; i++)
          taps_rows<1, 0, OW, SW, V, C, HP * WP, KH, DH * WP, KW, DW, LD>(
              image + i * SH * WP, weights + at * T, places + i * OW * LD);
        turn(places, LD, P, count, y + at * P, P);
      });
    }
  }

  template <class X>
  static void by_weights(const float *dy, const X *x, float *dw, float *room, float scale = 1.0f) {
    float *const taps = room, *const places = taps + T * whole(O);
    float *const padded = places + P * PANEL;
    memset(taps, 0, sizeof(float) * T * whole(O));
    memset(places, 0, sizeof(float) * P * PANEL);
    clear(padded);
    for (int n = 0; n < N; n++, x += STRIDE_X, dy += STRIDE_Y) {
      const float *image = staged(x, padded);
      each_panel<O>([&](auto V, int at, int count) {
        constexpr int LD = V * LANES;
        turn(dy + at * P, P, count, P, places, LD);
        for (int c = 0; c < C; c++)
          taps_rows<KH, DH * WP, KW, DW, V, 1, 0, OH, SH * WP, OW, SW, LD>(
              image + c * HP * WP, places, taps + at * T + c * KH * KW * LD);
      });
    }
    each_panel<O>([&](auto V, int at, int count) {
      turn(taps + at * T, V * LANES, T, count, dw + at * T, T);
    });
    for (int i = 0; i < O * T; i++) dw[i] *= scale;
  }

  static void by_input(const float *dy, const float *w, float *dx, float *room) {
    constexpr int TAPS = KH * KW;
    float *const weights = room, *const padded = weights + TAPS * O * whole(C);
    memset(weights, 0, sizeof(float) * TAPS * O * whole(C));
    each_panel<C>([&](auto V, int at, int count) {
      for (int o = 0; o < O; o++)
        turn(w + (o * C + at) * TAPS, TAPS, count, TAPS,
             weights + TAPS * O * at + o * V * LANES, O * V * LANES);
    });
    for (int n = 0; n < N; n++, dy += STRIDE_Y, dx += STRIDE_X)
      each_panel<C>([&](auto V, int at, int count) {
        constexpr int LD = V * LANES;
        memset(padded, 0, sizeof(float) * HP * WP * LD);
        for (int i = 0; i < OH; i++)
          for (int t = 0; t < TAPS; t++)
            taps_rows<1, 0, OW, 1, V, O, P, 1, 0, 1, 0, SW * LD>(
                dy + i * OW, weights + TAPS * O * at + t * O * LD,
                padded + ((i * SH + t / KW * DH) * WP + t % KW * DW) * LD);
        if (!PADDED) turn(padded, LD, H * W, count, dx + at * H * W, H * W);
        else
          for (int h = 0; h < H; h++)
            turn(padded + ((TOP + h) * WP + LEFT) * LD, LD, W, count, dx + (at * H + h) * W, H * W);
      });
  }
};

// The largest number under each window of each plane, and where in the plane it is; NaN is the
// largest, and of equal numbers the first counts.
template <int PLANES, int H, int W, int KH, int KW, int SH, int SW, int TOP, int LEFT, int OH,
          int OW, class I>
static void max_pool(const float *x, float *y, I *index) {
  for (int p = 0; p < PLANES; p++, x += H * W)
    for (int i = 0; i < OH; i++) {
      float most[OW];
      int32_t where[OW];
      for (int j = 0; j < OW; j++) most[j] = -INFINITY, where[j] = -1;
      for (int h = std::max(i * SH - TOP, 0); h < std::min(i * SH - TOP + KH, H); h++)
        for (int k = 0; k < KW; k++) {  // the windows whose column k is in the plane
          const int first = k < LEFT ? (LEFT - k + SW - 1) / SW : 0, at = h * W + k - LEFT;
          const int end = W + LEFT > k ? std::min((W + LEFT - k + SW - 1) / SW, OW) : 0;
#pragma GCC ivdep
          for (int j = first; j < end; j++) {
            const float a = x[at + j * SW], b = most[j];
            const bool taken = (where[j] < 0) | ((b == b) & ((a != a) | (a > b)));
            most[j] = taken ? a : b;
            where[j] = taken ? at + j * SW : where[j];
          }
        }
      for (int j = 0; j < OW; j++) {
        if (y) *y++ = most[j];
        *index++ = (I)where[j];
      }
    }
}
template <int64_t PLANES, int64_t SIZE, int64_t WINDOWS, class I>
static void max_pool_grad(const I *index, const float *dy, float *dx) {
  memset(dx, 0, sizeof(float) * PLANES * SIZE);
  for (int64_t p = 0; p < PLANES; p++, dx += SIZE)
    for (int64_t i = 0; i < WINDOWS; i++, index++, dy++)
      if (*index >= 0 && *index < SIZE) dx[*index] += *dy;
}
// The mean under each window; with BACK the gradient by the input.
template <int PLANES, int H, int W, int KH, int KW, int SH, int SW, int TOP, int LEFT, int OH,
          int OW, bool BACK>
static void average_pool(float *x, float *y) {
  if (BACK) memset(x, 0, sizeof(float) * PLANES * H * W);
  for (int p = 0; p < PLANES; p++, x += H * W)
    for (int i = 0; i < OH; i++)
      for (int j = 0; j < OW; j++, y++) {
        const int h0 = std::max(i * SH - TOP, 0), h1 = std::min(i * SH - TOP + KH, H);
        const int w0 = std::max(j * SW - LEFT, 0), w1 = std::min(j * SW - LEFT + KW, W);
        const float count = (float)((h1 - h0) * (w1 - w0));
        float s = 0.0f;
        for (int h = h0; h < h1; h++)
          for (int w = w0; w < w1; w++)
            if (BACK) x[h * W + w] += *y / count;
            else s += x[h * W + w];
        if (!BACK) *y = s / count;
      }
}
