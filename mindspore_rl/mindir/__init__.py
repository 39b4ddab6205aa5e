"""MindSpore's compiled graph as Python objects."""
