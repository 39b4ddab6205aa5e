"""What native code knows of each primitive of MindSpore: `primitives` gathers the table."""
