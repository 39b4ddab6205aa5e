"""The machine: cache, compilers, GPUs, resources, user modules, streams."""
