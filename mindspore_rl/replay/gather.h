// The gather of a replay table as a custom operator of MindSpore: on the CPU that of table.cpp, on
// the GPU a kernel that reads the table in the host's memory, with a block of threads for each
// record.
//
// Of the table's specification come RECORDS, CAPACITY, RECORD_BYTES, LANES, ENTRIES and DATA (where they
// begin; ENTRIES is 0 in a sequential table), COLUMNS, and of these STARTS in a record and STEP_BYTES,
// each list with commas; WINDOW is how many steps are copied. KERNEL is as in native_step.h.
#ifdef __CUDACC_RTC__
#define ROW __device__ static inline
#else
#include "views.h"
#define ROW static inline
#endif

typedef long long Number;

// The operator's inputs and outputs, in their order; columns are those of STARTS.
struct Arrays {
  const Number *table;  // where it begins, for whoever copies
  const Number *ids;
  const int *first;
  char *columns[COLUMNS];
  bool *whole;
};

// Whether a record is still the one of an id; its memory changes under us.
ROW bool is_there(const Arrays &arrays, Number row) {
  const Number id = arrays.ids[row], record = id % RECORDS, times = id / RECORDS;
  const char *base = (const char *)arrays.table[0];
  if (ENTRIES) {
    const char *entry = base + ENTRIES + record * 32;
    return id >= 0 && *(const volatile unsigned *)entry == (unsigned)(times * 2);
  }
  const volatile Number *lane = (const volatile Number *)(base + LANES + record / CAPACITY * 128);
  const Number number = (times - 1) * CAPACITY + record % CAPACITY;  // in its lane
  return times > 0 && number < lane[7] && lane[6] <= number + CAPACITY;  // committed, begun
}

// What one of several threads copies of a record; of what lies behind its end, or where it is not
// there, zeros.
ROW void copy_part(const Arrays &arrays, Number row, bool there, int thread, int threads) {
  const Number starts[] = {STARTS}, step_bytes[] = {STEP_BYTES};
  const Number record = arrays.ids[row] % RECORDS, first = arrays.first[row];
  const char *base = (const char *)arrays.table[0];
  Number steps = 0;
  if (there)
    steps = (ENTRIES ? *(const volatile unsigned *)(base + ENTRIES + record * 32 + 4) : 1) - first;
  if (steps > WINDOW) steps = WINDOW;
  for (int c = 0; c < COLUMNS; c++) {
    char *to = arrays.columns[c] + row * WINDOW * step_bytes[c];
    const Number offset = starts[c] + first * step_bytes[c];
    const char *from = base + DATA + record * RECORD_BYTES + offset;
    const Number copied = steps > 0 ? steps * step_bytes[c] : 0, all = WINDOW * step_bytes[c];
    const bool words = ((Number)to | (Number)from | copied | all) % 16 == 0;
    struct alignas(16) Word {
      Number parts[2];
    };
    if (words) {
      for (Number at = thread; at < all / 16; at += threads)
        ((Word *)to)[at] = at < copied / 16 ? ((const Word *)from)[at] : Word{{0, 0}};
    } else {
      for (Number at = thread; at < all; at += threads) to[at] = at < copied ? from[at] : 0;
    }
  }
}

#ifdef __CUDACC_RTC__

extern "C" __global__ void gather(Arrays arrays, Number count) {
  for (Number row = blockIdx.x; row < count; row += gridDim.x) {
    const int thread = threadIdx.x, threads = blockDim.x;
    copy_part(arrays, row, is_there(arrays, row), thread, threads);
    __threadfence_system();
    __syncthreads();
    if (thread == 0) arrays.whole[row] = is_there(arrays, row);
    __syncthreads();
    if (!arrays.whole[row]) copy_part(arrays, row, false, thread, threads);
  }
}

#else

static Arrays arrays_of(void **params) {
  Arrays arrays{(const Number *)params[0], (const Number *)params[1], (const int *)params[2], {},
                (bool *)params[3 + COLUMNS]};
  for (int c = 0; c < COLUMNS; c++) arrays.columns[c] = (char *)params[3 + c];
  return arrays;
}

#ifndef KERNEL

extern "C" int gather(int, void **params, int *, int64_t **shapes, const char **, void *, void *) {
  const int64_t starts[] = {STARTS}, step_bytes[] = {STEP_BYTES};
  const Arrays arrays = arrays_of(params);
  table_gather((char *)arrays.table[0], nullptr, 0, shapes[1][0], (const int64_t *)arrays.ids,
               arrays.first, WINDOW, COLUMNS, starts, step_bytes, arrays.columns,
               (uint8_t *)arrays.whole, nullptr);
  for (int64_t row = 0; row < shapes[1][0]; row++)
    if (!arrays.whole[row]) copy_part(arrays, row, false, 0, 1);
  return 0;
}

#else
#include "../codegen/driver.h"

// On MindSpore's stream; the count is not 0.
extern "C" int gather(int, void **params, int *, int64_t **shapes, const char **, void *stream,
                      void *) {
  static Driver driver(KERNEL, "gather");
  if (driver.error != 0) return driver.error;
  if (int code = driver.enter()) return code;
  Arrays arrays = arrays_of(params);
  Number count = shapes[1][0];
  void *arguments[] = {&arrays, &count};
  const unsigned most = 1 << 16, grid = count < most ? (unsigned)count : most;
  return driver.launch(driver.function, grid, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr);
}

#endif
#endif
