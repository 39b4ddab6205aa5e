/* What of CUDA has to do something for MindSpore's plug-in to run: memory is the host's, what is
 * copied back is zeros, a single byte (a loop's condition) 0 or 1 at random, nothing is ever
 * computed. All other functions are made by hollow.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DRIVER
static int gpus[64], num_gpus = -1;

int cuInit(unsigned flags) { /* reads the variable once, as NVIDIA's does */
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  const int all = atoi(getenv("HOLLOW_GPUS"));
  if (num_gpus < 0) {
    num_gpus = 0;
    if (visible == NULL)
      for (; num_gpus < all; num_gpus++) gpus[num_gpus] = num_gpus;
    for (char *end; visible != NULL; visible = *end == ',' ? end + 1 : NULL) {
      const long number = strtol(visible, &end, 10);
      if (end == visible || number < 0 || number >= all) break;
      gpus[num_gpus++] = number;
    }
  }
  return num_gpus ? 0 : 100;
}
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = num_gpus; return 0; }
int hollow_use(int device) {
  FILE *log = device < num_gpus ? fopen(getenv("HOLLOW_LOG"), "a") : NULL;
  if (log == NULL) return 101;
  fprintf(log, "%d\n", gpus[device]);
  return fclose(log);
}
int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "hollow GPU"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0; /* sm_90 */
  return 0;
}
int cuModuleLoad(void **module, const char *path) { return 0; }
int cuCtxGetCurrent(void **context) { *context = gpus; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
static int note(const char *words, void *memory, size_t size, unsigned flags) {
  FILE *log = fopen(getenv("HOLLOW_LOG"), "a");
  if (log == NULL) return 101;
  fprintf(log, "%s %lu %lu %u\n", words, (size_t)memory, size, flags);
  return fclose(log);
}
int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
  const char *most = getenv("HOLLOW_LOCKED");
  if (most != NULL && size > (size_t)atol(most)) return 2;
  return note("locked", memory, size, flags);
}
int cuMemHostUnregister(void *memory) { return note("unlocked", memory, 0, 0); }
int cuMemHostGetDevicePointer_v2(void **found, void *memory, unsigned flags) {
  *found = memory;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return 0;
}
int cuLaunchKernel(char *function, unsigned grid, unsigned y, unsigned z, unsigned block, unsigned u,
                   unsigned v, unsigned shared_bytes, void *stream, void **arguments, void **extra) {
  if (strcmp(function, "gather")) return 0;
  void *table = **(void ***)arguments[0]; /* memory is the host's: the first input, read in place */
  return note("gathered", table, *(long long *)arguments[1], grid);
}
#endif

#ifdef CUDART
struct properties { /* the first of cudaDeviceProp of CUDA 11, which has 728 bytes */
  char name[256], ids[32];
  size_t memory, shared_memory;
  int registers, warp;
  size_t pitch;
  int threads, block[3], grid[3], clock;
  size_t constants;
  int major, minor;
  size_t alignment[2];
  int overlap, processors;
};
enum { DEVICE_TO_HOST = 2 };

int cuInit(unsigned), cuDeviceGetCount(int *), hollow_use(int);

int cudaGetDeviceCount(int *count) {
  const int code = cuInit(0);
  return code ? code : cuDeviceGetCount(count);
}
int cudaSetDevice(int device) { /* each GPU that a process opens is a line of HOLLOW_LOG */
  static int last = -1;
  const int code = device == last ? 0 : hollow_use(device);
  last = device;
  return code;
}
int cudaGetDeviceProperties(struct properties *found, int device) {
  memset(found, 0, 728);
  *found = (struct properties){"hollow GPU", "", 8ul << 30, 48 << 10, 65536, 32, 0, 1024,
                               {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 1, 1 << 16, 9, 0,
                               {512, 512}, 1, 132};
  return 0;
}
int cudaMemGetInfo(size_t *free, size_t *total) {
  *free = 4ul << 30;
  *total = 8ul << 30;
  return 0;
}
int cudaMalloc(void **memory, size_t size) {
  *memory = aligned_alloc(512, (size + 511) / 512 * 512);
  return *memory ? 0 : 2;
}
int cudaHostAlloc(void **memory, size_t size, unsigned flags) { return cudaMalloc(memory, size); }
int cudaFree(void *memory) { free(memory); return 0; }
int cudaFreeHost(void *memory) { free(memory); return 0; }
int cudaMemset(void *to, int value, size_t size) { memset(to, value, size); return 0; }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) {
  return cudaMemset(to, value, size);
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  static unsigned drawn = 1;
  if (kind != DEVICE_TO_HOST) memcpy(to, from, size);
  else memset(to, size == 1 && (drawn = 1103515245 * drawn + 12345) >> 31, size);
  return 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return cudaMemcpy(to, from, size, kind);
}
const char *cudaGetErrorName(int code) { return "hollow"; }
const char *cudaGetErrorString(int code) { return "hollow"; }
int cudaStreamCreate(void **made) { return cudaMalloc(made, 8); }
int cudaStreamCreateWithFlags(void **made, unsigned flags) { return cudaMalloc(made, 8); }
int cudaStreamCreateWithPriority(void **made, unsigned flags, int priority) {
  return cudaMalloc(made, 8);
}
int cudaEventCreate(void **made) { return cudaMalloc(made, 8); }
int cudaEventCreateWithFlags(void **made, unsigned flags) { return cudaMalloc(made, 8); }
#endif

#ifdef CUDNN
typedef void *any;
#define SIZE(name, ...) \
  int name(__VA_ARGS__, size_t *size) { *size = 512; return 0; }
#define ALGORITHM(name) \
  int name(any a, any b, any c, any d, any e, int wanted, int *count, void *found) { \
    *count = 1; \
    memset(found, 0, 32); \
    return 0; \
  }
SIZE(cudnnGetTensorSizeInBytes, any a)
SIZE(cudnnGetFilterSizeInBytes, any a)
SIZE(cudnnDropoutGetStatesSize, any a)
SIZE(cudnnGetReductionWorkspaceSize, any a, any b, any c, any d)
SIZE(cudnnGetReductionIndicesSize, any a, any b, any c, any d)
SIZE(cudnnGetConvolutionForwardWorkspaceSize, any a, any b, any c, any d, any e, int algorithm)
SIZE(cudnnGetConvolutionBackwardDataWorkspaceSize, any a, any b, any c, any d, any e, int f)
SIZE(cudnnGetConvolutionBackwardFilterWorkspaceSize, any a, any b, any c, any d, any e, int f)
ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7)
ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
const char *cudnnGetErrorString(int code) { return "hollow"; }
#endif

