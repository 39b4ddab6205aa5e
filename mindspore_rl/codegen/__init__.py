"""Compiled cells as native code on the CPU: MindSpore's graph of a cell becomes a C++ function.

The stages in order: `program` reads the graph that MindSpore compiled, `control` turns its
functions into blocks that jump, `tiles` and `fusion` order and join the nodes of a block, `writer`
writes them by the table in `rows`, `cell` calls the function, `check` holds it to MindSpore.
"""
