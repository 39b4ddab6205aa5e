// A driver whose GPU is this processor: threads of a block follow each other, up to each barrier.
#include GATHER_H

#include <cstdio>
#include <cstring>

extern "C" {
int cuCtxGetCurrent(void **found) {
  *found = (void *)3;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **, int) { return 1; }
int cuCtxSetCurrent(void *) { return 1; }
int cuModuleLoad(void **module, const char *) {
  *module = (void *)4;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = module;
  return std::strcmp(name, "gather") ? 500 : 0;
}
int cuLaunchKernel(void *, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                   unsigned, void *stream, void **arguments, void **) {
  if (stream != (void *)7) return 400;
  const Arrays &arrays = *(Arrays *)arguments[0];
  const Number count = *(Number *)arguments[1];
  for (unsigned at = 0; at < grid; at++)
    for (Number row = at; row < count; row += grid) {
      for (unsigned thread = 0; thread < block; thread++)
        copy_part(arrays, row, is_there(arrays, row), thread, block);
      arrays.whole[row] = is_there(arrays, row);
      for (unsigned thread = 0; thread < block && !arrays.whole[row]; thread++)
        copy_part(arrays, row, false, thread, block);
    }
  return 0;
}
}
