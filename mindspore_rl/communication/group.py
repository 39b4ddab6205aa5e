"""Collectives inside cells, chosen by how a fragment's replicas reach each other."""

import contextlib
import ctypes
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.platform import toolchain

Reduce = Callable[[str, np.ndarray], np.ndarray]
SLOTS = 64
_SOURCE = Path(__file__).parents[1] / "codegen" / "reduce.cpp"


Group = Callable[[str], Callable[[Any], Any]]
"""Makes collectives for the replicas of a fragment: for `sum`, `max` or `min`, an operator that
reduces one replica's `[n]` float32 over all replicas."""


def debug_group(reduce: Reduce) -> Group:
    """Makes a group of threads of one process, whose cells are plain Python.

    Args:
        reduce: of a reduction's name and an array.
    """

    def collective(reduction: str) -> Callable[[Any], Any]:
        from mindspore import Tensor  # noqa: PLC0415

        return lambda flat: Tensor(reduce(reduction, flat.asnumpy()))

    return collective


def mindspore_group(name: str, device: str) -> Group:
    """Makes a group of MindSpore's own: NCCL on GPUs."""
    from mindspore import ops  # noqa: PLC0415

    from mindspore_rl.rl.operators import GatherAndReduce, ScatterAndGather  # noqa: PLC0415

    def collective(reduction: str) -> Callable[[Any], Any]:
        if reduction != "sum":
            return GatherAndReduce(name, reduction)
        if device == "GPU":
            return ScatterAndGather(name)
        return ops.AllReduce(ops.ReduceOp.SUM, name)

    return collective


def library() -> Path:
    """Returns the library of operators that call back into Python. Raises: MsrlError."""
    return toolchain.library(_SOURCE, {})


class HostGroup:
    """A `Group` over MPI, for cells on the CPU: an operator in the cell calls back into Python.

    Each collective has its own channel, so that independent collectives of a graph may run in any
    order.

    Args:
        open_channel: makes a function of a reduction and an array; all replicas open alike.

    Attributes:
        around: wraps each call, with the channel's number, 0 and the bytes; profiles use it.
    """

    def __init__(self, open_channel: Callable[[], Reduce]) -> None:
        self._open = open_channel
        self.around: Callable[..., Any] = lambda _slot, _none, _size, work: work()
        self._channels: list[tuple[str, Reduce]] = []
        self._alone = False
        self._path = library()
        loaded = ctypes.CDLL(str(self._path))
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
        )
        self._callback = kind(self._call)
        loaded.set_reduce(self._callback)
        self.error: BaseException | None = None

    def __call__(self, reduction: str) -> Callable[[Any], Any]:
        """Opens a channel. Returns: the operator that uses it."""
        from mindspore import ops  # noqa: PLC0415

        assert len(self._channels) < SLOTS
        self._channels.append((reduction, self._open()))
        function = f"{self._path}:reduce_{len(self._channels) - 1:o}"
        return ops.Custom(function, lambda x: x, lambda x: x, func_type="aot")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which collectives return what they are given: no other replica takes part.

        There one replica can run a cell, to check it.
        """
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def _call(self, slot: int, source: int, target: int, count: int) -> int:
        """Runs a collective for the operator; an exception must not pass through C."""
        try:
            reduction, reduce = self._channels[slot]
            kind = ctypes.c_float * count
            given = np.ctypeslib.as_array(kind.from_address(source))
            result = given
            if not self._alone:
                result = self.around(slot, 0, given.nbytes, lambda: reduce(reduction, given))
            np.ctypeslib.as_array(kind.from_address(target))[:] = result
        except BaseException as error:  # noqa: BLE001  (raised again by the cell's caller)
            self.error = error
            traceback.print_exc()
            return 1
        return 0
