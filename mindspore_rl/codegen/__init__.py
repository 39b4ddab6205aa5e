"""Compiled cells as native code on the CPU: MindSpore's graph of a cell becomes a C++ function.

The stages in order: `mindir.graph` reads the graph that MindSpore compiled, `build_cfg` turns its
functions into blocks with jumps, `tiling` and `fusion` order and join the nodes of a block,
`emit_unit` emits C++ with the rules in `ops`, `native_cell` calls the function, and
`differential_check` compares it with MindSpore.
"""
