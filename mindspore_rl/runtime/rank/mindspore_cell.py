"""Calls compiled MindSpore cells from Python."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mindspore import GRAPH_MODE, Tensor, get_context, mutable, nn

from mindspore_rl.errors import ProgramError
from mindspore_rl.mindir.graph import Graph, graph_of
from mindspore_rl.mindir.source_lines import noting_sources

try:  # internals of MindSpore 2.10
    from mindspore.graph.api import _cell_graph_executor, _convert_python_data, _real_phase
except ImportError:
    _cell_graph_executor = None


def to_tensor(value: Any) -> Any:
    """Converts an array, a number or a nested tuple of them to a cell's input, without copies."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple):
        return mutable(tuple(to_tensor(part) for part in value))
    if isinstance(value, np.ndarray) and value.ndim:
        return Tensor.from_numpy(value if value.flags.c_contiguous else value.copy())
    return Tensor(np.int32(value) if isinstance(value, int) else value)


class CompiledCell:
    """A MindSpore cell whose inputs keep their shapes.

    The first call compiles. Later calls skip MindSpore's check whether to compile again, which
    costs more than a small cell itself (150 us of 280 for an act cell).
    """

    def __init__(self, cell: nn.Cell) -> None:
        self._cell = cell
        self._run: Callable[..., Any] | None = None

    def graph(self, *inputs: Any) -> Graph:
        """Returns the graph that MindSpore compiles the cell to for such inputs."""
        with _named_errors(), noting_sources() as sources:
            self._cell.compile(*(to_tensor(value) for value in inputs))
        return Graph(graph_of(self._cell, _real_phase(self._cell.phase, self._cell)), sources)

    def __call__(self, *inputs: Any) -> Any:
        """Runs the cell on arrays, numbers and tensors."""
        tensors = tuple(to_tensor(value) for value in inputs)
        if self._run is not None:
            return self._run(*tensors)
        with _named_errors():
            result = self._cell(*tensors)
        plain = not any(isinstance(tensor, tuple) for tensor in tensors)
        if plain and _cell_graph_executor is not None and get_context("mode") == GRAPH_MODE:
            self._run = _direct(self._cell)
        else:
            self._run = self._cell
        return result


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if lacking := re.search(r"Unsupported op \[(\w+)\] on GPU", str(error)):
            raise ProgramError(
                f"MindSpore has no kernel of {lacking[1]} for the GPU; compute it by other "
                "operators, or use --device cpu"
            ) from error
        raise


def _direct(cell: nn.Cell) -> Callable[..., Any]:
    executor = _cell_graph_executor._graph_executor
    phase = _real_phase(cell.phase, cell)
    mutable_flags = list(cell._has_mutable_args_list or [])

    def run(*tensors: Tensor) -> Any:
        args = executor.get_args_for_run(cell, tensors, {}, mutable_flags, [], False, False)
        return _convert_python_data(executor(args, phase))

    return run
