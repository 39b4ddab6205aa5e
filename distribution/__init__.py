"""Where it runs: one distribution policy a file, found here by its name (`GPUOnly`, `gpu_only`)."""
