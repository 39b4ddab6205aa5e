"""Interprets a program and watches its operations for side effects and impure calls."""

import sys
from typing import Any

import numpy as np

from mindspore_rl.compiler.analysis.interpret import Probe
from mindspore_rl.compiler.ir.ir import Op, Program
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.errors import ProgramError
from mindspore_rl.purity.calls import watch
from mindspore_rl.purity.in_place import HINT, PARTS, copies, first_changed, watch_changes
from mindspore_rl.purity.state import KEPT, State
from mindspore_rl.rl.operators import to_array


class WatchfulProbe(Probe):
    """A probe that finds operations that are no functions of their arguments and parameters.

    Attributes:
        impure: these operations, with the reason.
    """

    def __init__(self, trainer: Any, program: Program, num_envs: int, environment: Any) -> None:
        super().__init__(trainer, program, num_envs, environment)
        self.impure: dict[str, str] = {}
        self.parameters = self._parameters()

    def run(self) -> None:
        """Evaluates the whole program, and once more the operations if Python state changed.

        State made only in the first call, such as a cache, does not count.
        """
        before = State(self.names)
        self.misread = before.misread()
        self._items(self.program.body)
        if before.changed(after := State(self.names)):
            self._look_for_changes(after)

    def _look_for_changes(self, before: State) -> None:
        for op, inputs in self.evaluated:
            if OPERATIONS[op.kind].traced:
                self.evaluate(op, inputs)
                after = State(self.names)
                if path := before.changed(after):
                    self.impure.setdefault(op.name, f"changes {path}: {KEPT}")
                before = after

    def _first(self, op: Op, inputs: dict[str, Any]) -> tuple:
        if not OPERATIONS[op.kind].traced:
            return self.evaluate(op, inputs)
        with watch(self.misread) as watched:
            results = self._unchanged(op, inputs)
        for asked, why in watched.impure[:1]:
            self.impure[op.name] = f"draws from {asked}: {why}"
        if watched.misread:  # compiling it would not tell the cause
            raise ProgramError(f"{op.where}\n  {op.name} {watched.misread[0]}")
        self._check_parameters(op)
        return results

    def _unchanged(self, op: Op, inputs: dict[str, Any]) -> tuple:
        """Evaluates an operation; refuses what a compiled cell would not do as Python does.

        It changes a shared value in place, or takes a slice of a Parameter.
        """
        before = copies(inputs)
        with watch_changes(sys._getframe()) as (changed, slices):
            results = self.evaluate(op, inputs)
        if slices:
            raise ProgramError(f"{op.where}\n  {op.name} takes a slice of {slices[0]}, {PARTS}")
        given = first_changed(before, inputs)
        if changed or given:
            what = changed[0] if changed else f"`{given}`, which it is given,"
            raise ProgramError(f"{op.where}\n  {op.name} changes {what} in place: {HINT}")
        return results

    def _parameters(self) -> list[np.ndarray]:
        return [to_array(p) for p in self._cell_parameters()]

    def _check_parameters(self, op: Op) -> None:
        """Checks that only `msrl.update` changes parameters; other calls may run anywhere."""
        now = self._parameters()
        same = len(now) == len(self.parameters) and all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(now, self.parameters, strict=True)
        )
        if not same and op.kind != "update":
            raise ProgramError(
                f"{op.where}\n  {op.name} changes parameters or learner state, "
                "which only msrl.update(self.method, ...) may do"
            )
        self.parameters = now
