"""Finds Python integers that would overflow the 32 bits they have in a compiled cell.

Loop indices and numbers that a loop changes are Python integers in the uncompiled loop. The part of
a program that computes with them alone is run, up to `MAX_TURNS` operations. Operations that take
such integers beside arrays are tried with the largest value of each, as a Python integer and as an
int32 tensor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.compiler.analysis.interpret import Probe
from mindspore_rl.compiler.analysis.row_trials import without_differentiation
from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op, Where
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.operators import leaves, to_array

MAX_TURNS = 10_000
"""Limit on the operations that are run; after it each loop jumps to its last turn."""
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class _Number(int):
    """An integer whose arithmetic raises `_TooLarge` if a result does not fit into 32 bits."""


class _TooLarge(Exception):  # noqa: N818
    """A number that does not fit into 32 bits."""


def _checked(name: str) -> Callable[..., Any]:
    def compute(left: int, *others: Any) -> Any:
        result = getattr(int, name)(left, *others)
        for number in (*others, result):
            if isinstance(number, int) and not INT32_MIN <= number <= INT32_MAX:
                raise _TooLarge(number)
        return _Number(result) if type(result) is int else result

    return compute


for _name in (
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
):
    for _side in ("", "r"):
        setattr(_Number, f"__{_side}{_name}__", _checked(f"__{_side}{_name}__"))
for _name in ("neg", "abs", "pos"):
    setattr(_Number, f"__{_name}__", _checked(f"__{_name}__"))


def check_integers(probe: Probe) -> None:
    """Checks that integers fit into 32 bits and give the same results in a compiled cell.

    Raises:
        ProgramError: an integer overflows, or an operation's result differs; names line and number.
    """
    run = _Run(probe)
    run.items(probe.program.body)
    for op, inputs in probe.evaluated:
        numbers = {name: run.largest[name] for name in inputs if name in run.largest}
        if numbers and OPERATIONS[op.kind].tried and not run.alone(op):
            _compare(probe, without_differentiation(op), inputs, numbers)


def _compare(probe: Probe, op: Op, inputs: dict[str, Any], numbers: dict[str, int]) -> None:
    in_cell = {name: Tensor(np.int32(number)) for name, number in numbers.items()}
    try:
        one, other = (probe.evaluate(op, inputs | given) for given in (numbers, in_cell))
    except Exception:  # noqa: BLE001  (a failure is reported elsewhere)
        return
    if not all(map(_close, leaves(one), leaves(other))):
        text = ", ".join(f"{name} = {number}" for name, number in numbers.items())
        raise ProgramError(
            f"{op.where}\n  {op.name} gives something else for {text} as Python's integers, which "
            "the plain loop has, and in the 32 bits of a compiled cell: keep integers small, or "
            "compute with real numbers (1.0 * k)"
        )


def _close(one: Any, other: Any) -> bool:
    left, right = (np.asarray(to_array(value), np.float64) for value in (one, other))
    return left.shape == right.shape and np.allclose(left, right, 1e-3, 1e-5, equal_nan=True)


class _Run:
    """Runs the part of a program that computes with Python numbers alone.

    Attributes:
        largest: the integer of largest magnitude that each variable had.
    """

    def __init__(self, probe: Probe) -> None:
        self.largest: dict[str, int] = {}
        self._probe, self._left, self._now = probe, MAX_TURNS, dict[str, Any]()
        self._give_arrays: set[str] = set()

    def alone(self, op: Op) -> bool:
        """Returns whether an operation takes Python numbers only."""
        return op.kind in ("glue", "copy") and all(name in self._now for name in op.reads)

    def items(self, items: tuple[Item, ...]) -> None:
        """Runs a body."""
        for item in items:
            if isinstance(item, Op):
                self._op(item)
            elif isinstance(item, Branch):  # the condition may be an array: runs both sides
                self.items(item.body)
                self.items(item.orelse)
            else:
                self._loop(item)

    def _loop(self, loop: Loop) -> None:
        turns = loop.count if loop.count is not None else self._iterations()
        turn = 0
        while turn < turns:
            left = self._left
            self._set(loop.index, turn, loop.where)
            self.items(loop.body)
            idle = self._left == left  # the body ran no operation on numbers
            last = turn == turns - 1
            turn = turns if last else turns - 1 if idle or self._left <= 0 else turn + 1

    def _iterations(self) -> int:
        config, steps = self._probe.trainer.config, self._probe.program.steps_per_env
        return max(config.total_steps // (config.num_envs * steps), 1)

    def _op(self, op: Op) -> None:
        if op.kind == "constant":
            value = eval(op.args[0])  # noqa: S307  (a literal)
        elif self.alone(op) and len(op.targets) == 1 and op.name not in self._give_arrays:
            self._left -= 1
            value = self._result(op)
            if not isinstance(value, (bool, int, float)):
                self._give_arrays.add(op.name)
        else:
            for name in op.targets:
                self._now.pop(name, None)
            return
        self._set(op.targets[0], value, op.where)

    def _result(self, op: Op) -> Any:
        try:
            return eval(op.args[0], {**self._probe.names, **self._now})  # noqa: S307
        except _TooLarge as error:
            raise _refused(op.where, error.args[0]) from None
        except Exception:  # noqa: BLE001  (reported where the operation is evaluated)
            return None

    def _set(self, name: str, value: Any, where: Where) -> None:
        if not isinstance(value, (bool, int, float)):
            self._now.pop(name, None)
            return
        if type(value) is int and not INT32_MIN <= value <= INT32_MAX:
            raise _refused(where, value)
        if type(value) in (int, _Number):
            largest = self.largest.get(name, 0)
            self.largest[name] = int(value) if abs(value) >= abs(largest) else largest
            value = _Number(value)
        self._now[name] = value


def _refused(where: Where, number: int) -> ProgramError:
    return ProgramError(
        f"{where}\n  an integer becomes {number}, and a compiled cell has 32 bits for it "
        f"({INT32_MIN} to {INT32_MAX}): keep integers smaller, or compute with real numbers "
        "(1.0 * k)"
    )
