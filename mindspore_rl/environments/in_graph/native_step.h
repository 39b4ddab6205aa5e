// One step of every environment as a custom operator of MindSpore: a loop over the environments on
// the CPU, a kernel with one thread per environment on the GPU.
//
// SOURCE is the environment's file; it defines, for ONE environment,
//
//   ROW void start(const float *noise, float *state);    the state at the start of an episode
//   ROW void observe(const float *state, float *obs);
//   ROW void advance(const float *state, const Action *action, float *next, float *reward,
//                    bool *terminated, bool *truncated);
//
// and this file makes them into a step that resets environments whose episode ended. The spec gives
// STATE, NOISE, OBS, ACTION and REWARD, the numbers of values of one environment, MAX_STEPS of an
// episode (0: no limit), and DISCRETE: 1 if an Action is an int, 0 if it is a float.
//
// NVRTC compiles this file to a kernel (and has the mathematical functions: sinf, fabsf, ...). The C++
// compiler makes the operators, including the GPU's if KERNEL, the path of that kernel's PTX, is set.
#ifdef __CUDACC_RTC__
#define ROW __device__ static inline
#else
#include <cmath>
#include <cstdint>
#define ROW static inline
#endif

#if DISCRETE
typedef int Action;
#else
typedef float Action;
#endif

#include SOURCE

// The operator's inputs and outputs, in order.
struct Arrays {
  const float *state;
  const Action *action;
  const float *noise;
  float *next_state, *next_obs, *final_obs, *reward;
  bool *terminated, *truncated;
};

ROW void step_row(const Arrays &arrays, long long row) {
  float *next = arrays.next_state + row * STATE;
  bool *terminated = arrays.terminated + row, *truncated = arrays.truncated + row;
  advance(arrays.state + row * STATE, arrays.action + row * ACTION, next,
          arrays.reward + row * REWARD, terminated, truncated);
  observe(next, arrays.final_obs + row * OBS);
  if (*terminated || *truncated) start(arrays.noise + row * NOISE, next);
  observe(next, arrays.next_obs + row * OBS);
}

#ifdef __CUDACC_RTC__

extern "C" __global__ void step(Arrays arrays, long long count) {
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (row < count) step_row(arrays, row);
}

#else

static Arrays arrays_of(void **params) {
  return {(const float *)params[0], (const Action *)params[1], (const float *)params[2],
          (float *)params[3],       (float *)params[4],        (float *)params[5],
          (float *)params[6],       (bool *)params[7],         (bool *)params[8]};
}

#ifndef KERNEL

extern "C" int step(int, void **params, int *, int64_t **shapes, const char **, void *, void *) {
  const Arrays arrays = arrays_of(params);
  for (int64_t row = 0; row < shapes[0][0]; row++) step_row(arrays, row);
  return 0;
}

#else
#include "../../codegen/driver.h"

// On MindSpore's stream; the count is not 0.
extern "C" int step(int, void **params, int *, int64_t **shapes, const char **, void *stream,
                    void *) {
  static Driver driver(KERNEL, "step");
  if (driver.error != 0) return driver.error;
  if (int code = driver.enter()) return code;
  Arrays arrays = arrays_of(params);
  long long count = shapes[0][0];
  void *arguments[] = {&arrays, &count};
  const unsigned block = 128, grid = (unsigned)((count + block - 1) / block);
  return driver.launch(driver.function, grid, 1, 1, block, 1, 1, 0, stream, arguments, nullptr);
}

#endif
#endif
