"""The axis of agents of every value, and the operations that mix agents.

The axis starts at the environment's outputs and is followed through the program: each operation is
evaluated again for some of the agents, and the axis whose extent changes is that of agents. Only
`msrl.joint` removes it on purpose; other operations that mix agents are found by trial
(`row_trials`).
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_rl.compiler.analysis.compiled_ops import Reading
from mindspore_rl.compiler.analysis.row_trials import RowTrials, agent_rows, without_differentiation
from mindspore_rl.compiler.ir.ir import Op
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.plan.value import Value
from mindspore_rl.rl.operators import leaves, to_array


class AgentAxes:
    """Follows the axis of agents through a program.

    Args:
        evaluate: computes an operation's results for given inputs.
        teams: the environment's teams; empty for a single agent.
        values: the values of all variables, without the axis of agents.
        generator: draws new data for the trials.
        reading: the compiled graphs of the operations.
        drawn: variables with random numbers.

    Attributes:
        values: the values of all variables, with the axis of agents.
        mixed: operations that mix agents, with the evidence.
    """

    def __init__(
        self,
        evaluate: Callable[[Op, dict[str, Any]], tuple],
        teams: tuple,
        values: dict[str, Value],
        generator: np.random.Generator,
        reading: Reading,
        drawn: Collection[str],
    ) -> None:
        self.values = dict(values)
        self._bare = dict(values)
        self.mixed: dict[str, str] = {}
        self._count = sum(team.num_agents for team in teams)
        self._evaluate = evaluate
        self._rows = agent_rows(self._count)
        self._trials = RowTrials(evaluate, self._rows, generator, reading, drawn)
        self._inserted: dict[str | None, tuple[str, ...]] = {}
        self._set: set[str] = set()

    def follow(self, op: Op, inputs: dict[str, Any]) -> None:
        """Sets the axis of agents in the results of the program's next operation."""
        if self._count < 2:
            return
        agents = OPERATIONS[op.kind].agents
        if agents:
            self._give(op, agents)
        elif op.kind == "noise" and op.attr["owner"] == "agents":
            self._give(op, (2,))
        elif op.kind == "index":
            self._give(op, (_moved(self.values[op.args[0]], -1),))
        elif op.kind in ("replay_insert", "replay_keep"):
            self._inserted[op.replay] = op.args
        elif op.kind == "replay_sample":
            self._give(op, tuple(_moved(self.values[name], 1) for name in self._given(op)))
        elif op.kind == "replay_draw":
            behind = int(op.attr["steps"] > 0)
            axes = [_moved(self.values[name], behind) for name in self._given(op)]
            self._give(op, (*axes, *[None] * (len(op.targets) - len(axes))))
        elif agents is None and any(self._has_agents(name) for name in inputs):
            self._try(op, inputs)
        else:
            for name in op.targets:
                self._put(op, name, self._bare[name])

    def _given(self, op: Op) -> tuple[str, ...]:
        """Returns the variables that were inserted last into the replay that `op` samples."""
        return self._inserted.get(op.replay, ())

    def _has_agents(self, name: str) -> bool:
        return name in self.values and self.values[name].split_by("agent")

    def _give(self, op: Op, axes: tuple[int | None, ...]) -> None:
        for name, axis in zip(op.targets, axes, strict=True):
            given = self._bare[name].dtype != "none"
            self._put(op, name, replace(self._bare[name], agent_axis=axis if given else None))

    def _put(self, op: Op, name: str, value: Value) -> None:
        if name in self._set and self.values[name] != value:
            self.mixed[op.name] = (
                f"`{name}` has an entry for each agent in one place and not in another: derive "
                "its first value from one that has, for example ops.zeros_like(reward)"
            )
            return
        self._set.add(name)
        self.values[name] = value

    def _try(self, op: Op, inputs: dict[str, Any]) -> None:
        """Tests whether an operation mixes agents; if not, finds the agent axis of its results."""
        evidence = ""
        if OPERATIONS[op.kind].tried:
            evidence = self._trials.evidence(op, inputs, self.values)
        if evidence:
            self.mixed[op.name] = op.told(evidence)
            return
        differentiates = op.kind == "gradient"
        op = without_differentiation(op)
        share = {
            name: self._rows.select(value, self.values[name], self._rows.shares[0])
            for name, value in inputs.items()
        }
        full, part = self._evaluate(op, inputs), self._evaluate(op, share)
        if differentiates:  # a loss, perhaps with statistics beside it
            full, part = ((tuple(leaves(results)),) for results in (full, part))
        for name, whole, some in zip(op.targets, full, part, strict=True):
            self._put(op, name, _compared(self._bare[name], whole, some))


def _moved(value: Value, by: int) -> int | None:
    return None if value.agent_axis is None else value.agent_axis + by


def _compared(value: Value, whole: Any, some: Any) -> Value:
    if value.parts:
        triples = zip(value.parts, whole, some, strict=True)
        return replace(value, parts=tuple(_compared(*triple) for triple in triples))
    if value.dtype == "none":
        return value
    full, share = to_array(whole).shape, to_array(some).shape
    axes = [i for i, (a, b) in enumerate(zip(full, share, strict=True)) if a != b]
    return replace(value, agent_axis=axes[0] if axes else None)
