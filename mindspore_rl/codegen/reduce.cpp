// Collectives inside cells on the CPU: operators that pass their input to a Python function.
#include <cstdint>

typedef int (*reduce_function)(int slot, const float *from, float *to, int64_t count);
static reduce_function reduce;
extern "C" void set_reduce(reduce_function function) { reduce = function; }

__attribute__((noinline)) static int call(int slot, void **params, int rank, const int64_t *shape) {
  int64_t count = 1;
  for (int axis = 0; axis < rank; axis++) count *= shape[axis];
  return reduce ? reduce(slot, (const float *)params[0], (float *)params[1], count) : 1;
}

// One symbol for each collective of a rank, because MindSpore passes no other argument.
#define SLOT(n)                                                                                 \
  extern "C" int reduce_##n(int, void **params, int *ranks, int64_t **shapes, const char **,    \
                            void *, void *) {                                                   \
    return call(0##n, params, ranks[0], shapes[0]);                                             \
  }
#define SLOTS(n) SLOT(n##0) SLOT(n##1) SLOT(n##2) SLOT(n##3) SLOT(n##4) SLOT(n##5) SLOT(n##6) SLOT(n##7)
SLOTS() SLOTS(1) SLOTS(2) SLOTS(3) SLOTS(4) SLOTS(5) SLOTS(6) SLOTS(7)
