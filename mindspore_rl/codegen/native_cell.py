"""A compiled cell as a native function: builds it, binds the cell's parameters, calls it."""

import ctypes
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from mindspore_rl.codegen.build_cfg import blocks_of
from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.cost import work_of
from mindspore_rl.codegen.emit_unit import write
from mindspore_rl.codegen.memory_plan import ALIGNED, aligned
from mindspore_rl.codegen.unit import Unit
from mindspore_rl.mindir.graph import Graph, Value, read
from mindspore_rl.platform.trial import Trial

FOLDER = Path(__file__).parent


def unit_of(graph: Graph) -> Unit:
    """Generates the C++ of a graph that MindSpore compiled.

    Raises:
        Unsupported: a part of the graph has no native form.
    """
    blocks = blocks_of(read(graph.data))
    # Before `write`, which fuses operators.
    work, scales = work_of(blocks), tuple(map(_scale, blocks.results))
    return replace(write(blocks, graph.sources), work=work, scales=scales)


def _scale(result: Value) -> float:
    """Returns the size of the number in a result that is a sum with one, or 0.0."""
    if result.op not in ("Add", "Sub") or result.type.dtype != "float32":
        return 0.0
    constants = (np.asarray(arg.data) for arg in result.args if arg.op == "constant")
    sizes = [abs(constant.item()) for constant in constants if constant.size == 1]
    return max(filter(math.isfinite, sizes), default=0.0)


class NativeCell:
    """A cell's function, called with arrays.

    It works directly on the memory of the cell's parameters. Results are new arrays.

    Args:
        unit: the unit of the cell's graph.
        library: the compiled unit.
        parameters: by name, at least those that the graph reads or writes.
        threads: number of threads that it may use; all cells of a process share them. It runs on
            one of them where that is faster, with the same results.

    Raises:
        Unsupported: a parameter of the graph is missing.
    """

    def __init__(
        self, unit: Unit, library: Path, parameters: dict[str, Parameter], threads: int = 1
    ) -> None:
        self.unit = unit
        self._library = ctypes.CDLL(str(library))
        self._run = self._library.run
        self._run.argtypes = [ctypes.c_void_p] * 4
        self._memory = np.zeros(unit.memory_bytes + ALIGNED, np.uint8)
        start = -self._memory.ctypes.data % ALIGNED
        if lacking := [name for name in unit.weights if name not in parameters]:
            raise Unsupported(f"a parameter that is not found by its name, {lacking[0]}")
        self._weights = [parameters[name].asnumpy() for name in unit.weights]
        count = len(unit.inputs)
        self._data = (ctypes.c_void_p * (count + len(self._weights)))()
        for position, array in enumerate(self._weights):
            self._data[count + position] = array.ctypes.data
        self._loaded, functions, self._set_threads = _functions(unit, threads)
        self._threads = threads
        self._trial = Trial(threads) if self._set_threads and threads > 1 else None
        self._arguments = (
            ctypes.addressof(self._data),
            self._memory.ctypes.data + start,
            ctypes.addressof(functions),
        )
        self._keep = functions
        self._inputs = [(np.dtype(t.dtype), t.shape) for t in unit.inputs]
        self._outputs = []
        size = 0
        for found in unit.results:
            self._outputs.append((found.shape, np.dtype(found.dtype), size))
            size += aligned(found.nbytes)
        self._size = max(size, 1)

    def __call__(self, *inputs: Any) -> Any:
        """Runs the function on arrays, numbers and nested tuples of them."""
        held = []
        for position, value in enumerate(_flat(inputs)):
            dtype, shape = self._inputs[position]
            array = value if isinstance(value, np.ndarray) else as_array(value)
            if array.dtype != dtype or not array.flags.c_contiguous:
                array = np.array(array, dtype, order="C")
            if array.shape != shape:
                raise ValueError(f"input {position} has shape {array.shape}, expected {shape}")
            held.append(array)
            self._data[position] = array.__array_interface__["data"][0]
        results = np.empty(self._size, np.uint8)
        if self._trial is not None:
            self._set_threads(self._trial.begin())
        failed = self._run(*self._arguments, results.__array_interface__["data"][0])
        if self._trial is not None:
            self._trial.end()
            self._set_threads(self._threads)  # the replay copies on them, too
        if failed:
            raise RuntimeError("an operator in a native cell failed")
        arrays: list[np.ndarray] = [
            np.ndarray(shape, dtype, results, at) for shape, dtype, at in self._outputs
        ]
        return _nested(self.unit.structure, arrays)


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def as_array(value: Any) -> np.ndarray:
    """Returns a tensor, array or number as an array."""
    return np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)


def _nested(structure: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(structure, tuple):
        return tuple([_nested(part, arrays) for part in structure])
    return arrays[structure]


def _functions(unit: Unit, threads: int) -> tuple[list[Any], Any, Any]:
    """Loads the functions of other libraries that a unit calls.

    Returns: libraries, addresses, and the function that sets the number of threads; None without.
    """
    loaded, set_threads = [], None
    addresses = (ctypes.c_void_p * max(len(unit.functions), 1))()
    for position, name in enumerate(unit.functions):
        path, symbol = name.rsplit(":", 1)
        library = ctypes.CDLL(path)
        loaded.append(library)
        if symbol == "in_parts":
            set_threads = library.set_threads
            set_threads(threads)
        addresses[position] = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    return loaded, addresses, set_threads
