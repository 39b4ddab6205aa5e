"""Compiled cells as native code on the CPU: MindSpore's graph of a cell becomes a C++ function.

The stages in order: `program` reads the graph that MindSpore compiled, `control` turns its
functions into blocks that jump, `writer` orders and fuses the nodes of a block and writes them by
the rows of `primitives`, `cell` compiles, checks and calls the function.
"""
