"""What a cell's collectives are made of, by how the replicas of a fragment reach each other."""

import ctypes
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindspore_rl import toolchain

Reduce = Callable[[str, np.ndarray], np.ndarray]
SLOTS = 64
_SOURCE = Path(__file__).parents[1] / "native" / "reduce.cpp"


class Group(Protocol):
    """The replicas of a fragment."""

    def collective(self, reduction: str) -> Callable[[Any], Any]:
        """An operator from one replica's `[n]` float32 to all replicas' `sum`, `max` or `min`."""


class DebugGroup:
    """Threads of one process, whose cells are plain Python.

    Args:
        reduce: of a reduction and an array.
    """

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce

    def collective(self, reduction: str) -> Callable[[Any], Any]:
        """See `Group`."""
        from mindspore import Tensor  # noqa: PLC0415

        return lambda flat: Tensor(self._reduce(reduction, flat.asnumpy()))


class MindSporeGroup:
    """MindSpore's own: NCCL on GPUs.

    Args:
        name: that it was created with.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def collective(self, reduction: str) -> Callable[[Any], Any]:
        """See `Group`."""
        from mindspore import ops  # noqa: PLC0415

        if reduction == "sum":
            return ops.AllReduce(ops.ReduceOp.SUM, self._name)
        from mindspore_rl.operators import GatherAndReduce  # noqa: PLC0415

        return GatherAndReduce(self._name, reduction)


class HostGroup:
    """Processes with an MPI, which cells on the CPU reach by an operator that calls back.

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

    def collective(self, reduction: str) -> Callable[[Any], Any]:
        """See `Group`."""
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
