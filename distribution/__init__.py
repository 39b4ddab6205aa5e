"""Distribution policies: one per file, found by name (`GPUOnly` or `gpu_only`)."""
