"""Environments written in tensors, that run inside a compiled cell."""
