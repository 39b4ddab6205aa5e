// Launches a kernel whose PTX is in a file, from an operator of MindSpore on the GPU.
#pragma once
#include <dlfcn.h>

// The driver's functions are looked up at run time, so no CUDA toolkit is needed.
struct Driver {
  int (*current)(void **context);
  int (*retain)(void **context, int device);
  int (*enter_context)(void *context);
  int (*load)(void **module, const char *path);
  int (*find)(void **function, void *module, const char *name);
  int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                unsigned shared_bytes, void *stream, void **arguments, void **extra);
  void *function = nullptr;
  int error = 1;

  Driver(const char *kernel, const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (library == nullptr) return;
    current = (decltype(current))dlsym(library, "cuCtxGetCurrent");
    retain = (decltype(retain))dlsym(library, "cuDevicePrimaryCtxRetain");
    enter_context = (decltype(enter_context))dlsym(library, "cuCtxSetCurrent");
    load = (decltype(load))dlsym(library, "cuModuleLoad");
    find = (decltype(find))dlsym(library, "cuModuleGetFunction");
    launch = (decltype(launch))dlsym(library, "cuLaunchKernel");
    error = enter();
    if (error == 0) error = load(&module, kernel);
    if (error == 0) error = find(&function, module, name);
  }

  // The context of MindSpore's arrays; this thread may not have called CUDA yet.
  int enter() {
    void *context = nullptr;
    int code = current(&context);
    if (code != 0 || context != nullptr) return code;
    code = retain(&context, 0);
    return code != 0 ? code : enter_context(context);
  }
};
