"""Compiles a method of an actor that takes long, such as a search."""

import time
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from mindspore_rl.platform import mindspore_device, toolchain
from mindspore_rl.platform.resources import available_cores
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime.rank.mindspore_cell import to_tensor
from mindspore_rl.runtime.rank.native_or_mindspore import LoweredCell

LONG_S, FIRST_S = 0.5, 3.0
"""Times of a call, and of the first one, after which a compilation is worth its seconds."""


class _Act(nn.Cell):
    """Cell of an actor's `act`."""

    def __init__(self, actor: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.actor = actor

    def construct(self, *inputs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN201
        return self.actor.act(*inputs)


class _ActGreedily(_Act):
    """Cell of an actor's `act_greedily`."""

    def construct(self, *inputs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN201
        return self.actor.act_greedily(*inputs)


class Hastened:
    """A method of an actor, run operator by operator until a call has taken long.

    Then it is compiled to native code, if it is a function of arrays that has such a form.

    Args:
        actor: the actor.
        name: `act` or `act_greedily`.
    """

    def __init__(self, actor: nn.Cell, name: str) -> None:
        self._method, self._name, self._calls = getattr(actor, name), name, 0
        self._cell: nn.Cell | None = (_Act if name == "act" else _ActGreedily)(actor)
        self._native: LoweredCell | None = None
        self._types: list[tuple] | None = None  # of the arguments that it was compiled for

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the method."""
        if self._native is not None and not named and _types(args) == self._types:
            found = self._native(*args)
            return tuple(map(to_tensor, found)) if isinstance(found, tuple) else to_tensor(found)
        began = time.monotonic()
        found = self._method(*args, **named)
        self._calls += 1
        took = time.monotonic() - began
        # The first call also loads kernels.
        if took > (LONG_S if self._calls > 1 else FIRST_S) and self._cell is not None:
            self._compile(args, named, found)
        return found

    def _compile(self, args: tuple, named: dict[str, Any], found: Any) -> None:
        """Compiles the method for such arguments, once."""
        cell, self._cell = self._cell, None
        values = [*args, *(found if type(found) is tuple else (found,))]
        if cell is None or named or not all(isinstance(value, Tensor) for value in values):
            return
        if toolchain.compiler() is None:
            return
        chosen: list[bool] = []
        lowered = LoweredCell(
            cell,
            [cell],
            [],
            agree=lambda number: number,
            chosen=lambda native, _: chosen.append(native),
            keep=lambda _: None,
            threads=available_cores(),
        )
        say(f"compiling {self._name}, a step of which takes long")
        ms.set_context(mode=ms.GRAPH_MODE)
        try:
            lowered(*args)
        except Exception:  # noqa: BLE001  (MindSpore does not compile it: it stays as it is)
            return
        finally:
            mindspore_device.use()
        self._native, self._types = lowered if chosen == [True] else None, _types(args)


def _types(args: tuple) -> list[tuple] | None:
    """Returns the shapes and types of tensors; None if other values are among them."""
    if not all(isinstance(value, Tensor) for value in args):
        return None
    return [(value.shape, value.dtype) for value in args]
