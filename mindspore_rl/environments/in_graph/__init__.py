"""Environments written in MindSpore operators, which run inside a compiled cell."""
