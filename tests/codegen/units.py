"""Native units made from nodes by hand, and from cells."""

import contextlib

import mindspore as ms
import numpy as np

from mindspore_rl.codegen.cfg import Block, Blocks
from mindspore_rl.codegen.emit_unit import write
from mindspore_rl.codegen.native_cell import NativeCell, unit_of
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.platform import toolchain
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell


def tensor(name, array):
    return Value("argument", name, type=Type(array.shape, array.dtype.name))


def number(data):
    return Value("constant", "", data=data)


def node(op, *args, type, **attrs):  # noqa: A002  (as the field is called)
    made = Value(op, op, list(args), attrs, type)
    if isinstance(type, tuple):
        parts = [Value("part", f"{op}.{i}", [made], type=t, data=i) for i, t in enumerate(type)]
        made.attrs["parts"] = tuple(parts)
    return made


def native_of(nodes, inputs, results=None, level=None, threads=1):
    """Makes native code of some nodes; its results are in their order, or in that of `results`."""
    results = results or nodes
    block = Block("b0", nodes=list(nodes), results=list(results))
    blocks = Blocks([block], list(inputs), {}, tuple(range(len(results))))
    unit = write(blocks, {})
    library = toolchain.cell_library(unit.text, toolchain.level() if level is None else level)
    return NativeCell(unit, library, {}, threads)


def run(nodes, inputs, results=None, level=None):
    """Runs native code of some nodes on arrays. Returns: results by value."""
    return native_of(nodes, inputs, results, level)(*inputs.values())


@contextlib.contextmanager
def graph_mode():
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE, jit_syntax_level=ms.STRICT)
    try:
        yield
    finally:
        ms.set_context(mode=mode)


def both(cell, inputs, level=None, threads=1):
    """Returns a cell's results and parameters by MindSpore and by native code, from one state."""
    with graph_mode():
        compiled = CompiledCell(cell)
        unit = unit_of(compiled.graph(*inputs))
        library = toolchain.cell_library(unit.text, toolchain.level() if level is None else level)
        parameters = {p.name: p for p in cell.get_parameters()}
        native = NativeCell(unit, library, parameters, threads)
        state = {name: parameter.asnumpy() for name, parameter in parameters.items()}
        before = {name: value.copy() for name, value in state.items()}
        outcomes = []
        for function in (compiled, native):
            results = [np.array(leaf) for leaf in leaves(function(*inputs))]
            outcomes.append((results, {name: value.copy() for name, value in state.items()}))
            for name, value in state.items():
                value[...] = before[name]
    return outcomes


def leaves(value):
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value.asnumpy() if hasattr(value, "asnumpy") else value]
