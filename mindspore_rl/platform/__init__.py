"""What the machine gives: cache, compilers, GPUs, cores, modules of the user, streams."""
