"""Collectives inside cells, chosen by how a fragment's replicas reach each other."""

import ctypes
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.platform import toolchain

Reduce = Callable[[str, np.ndarray], np.ndarray]
SLOTS = 64
_SOURCE = Path(__file__).parents[1] / "codegen" / "reduce.cpp"


Group = Callable[[str], Callable[[Any], Any]]
"""The replicas of a fragment: for `sum`, `max` or `min` gives an operator from one replica's `[n]`
float32 to that of all replicas."""


def debug_group(reduce: Reduce) -> Group:
    """Threads of one process, whose cells are plain Python.

    Args:
        reduce: of a reduction and an array.
    """

    def collective(reduction: str) -> Callable[[Any], Any]:
        from mindspore import Tensor  # noqa: PLC0415

        return lambda flat: Tensor(reduce(reduction, flat.asnumpy()))

    return collective


def mindspore_group(name: str) -> Group:
    """MindSpore's own, by the name that it was created with: NCCL on GPUs."""
    from mindspore import ops  # noqa: PLC0415

    from mindspore_rl.rl.operators import GatherAndReduce  # noqa: PLC0415

    def collective(reduction: str) -> Callable[[Any], Any]:
        if reduction == "sum":
            return ops.AllReduce(ops.ReduceOp.SUM, name)
        return GatherAndReduce(name, reduction)

    return collective


class HostGroup:
    """A `Group` of processes with an MPI; cells on the CPU reach it by an operator that calls back.

    Each collective has a channel of its own, so that it does not matter in which order a graph runs
    those that do not depend on each other.

    Args:
        open_channel: makes a function of a reduction and an array; all replicas call it alike.

    Attributes:
        around: calls what it is given, with the channel's number, 0 and the bytes; may take note.
    """

    def __init__(self, open_channel: Callable[[], Reduce]) -> None:
        self._open = open_channel
        self.around: Callable[..., Any] = lambda _slot, _none, _size, work: work()
        self._channels: list[tuple[str, Reduce]] = []
        self._path = toolchain.library(_SOURCE, {})
        library = ctypes.CDLL(str(self._path))
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
        )
        self._callback = kind(self._call)
        library.set_reduce(self._callback)
        self.error: BaseException | None = None

    def __call__(self, reduction: str) -> Callable[[Any], Any]:
        """Opens a channel, and gives the operator that uses it."""
        from mindspore import ops  # noqa: PLC0415

        assert len(self._channels) < SLOTS
        self._channels.append((reduction, self._open()))
        function = f"{self._path}:reduce_{len(self._channels) - 1:o}"
        return ops.Custom(function, lambda x: x, lambda x: x, func_type="aot")

    def _call(self, slot: int, source: int, target: int, count: int) -> int:
        """What the operator calls; an exception must not pass through C."""
        try:
            reduction, reduce = self._channels[slot]
            kind = ctypes.c_float * count
            given = np.ctypeslib.as_array(kind.from_address(source))
            result = self.around(slot, 0, given.nbytes, lambda: reduce(reduction, given))
            np.ctypeslib.as_array(kind.from_address(target))[:] = result
        except BaseException as error:  # noqa: BLE001  (raised again by who called the cell)
            self.error = error
            traceback.print_exc()
            return 1
        return 0
