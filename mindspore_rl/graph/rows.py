"""Row dependence, by trial: each operation on a share of environments or agents, against all.

A reduction over the batch that is not marked is invisible to the analysis; here it is found before
it trains something else than it says.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.graph.ir import Op, Value
from mindspore_rl.operators import leaves, settle, to_array

RANDOM = "it gives another result each time (random numbers come as the noise of `act`)"


@dataclass(frozen=True)
class Rows:
    """What lies along an axis: `env` (environments) or `agent` (agents).

    Attributes:
        split: `env` or `agent`.
        count: how many there are in the data seen.
        shares: the ones tried alone.
    """

    split: str
    count: int
    shares: tuple[range, ...]

    @property
    def noun(self) -> str:
        """What they are called."""
        return "agents" if self.split == "agent" else "environments"

    def select(self, value: Any, meta: Value, share: range) -> Any:
        """The part of a value, or of the parts of a tuple, that a share has."""
        if meta.parts:
            pairs = zip(value, meta.parts, strict=True)
            return tuple(self.select(part, part_meta, share) for part, part_meta in pairs)
        axis = meta.along(self.split)
        return value if axis is None else Tensor(self.take(to_array(value), axis, share))

    def take(self, array: np.ndarray, axis: int, share: range) -> np.ndarray:
        """A share of an axis on which environments are innermost."""
        before, extent, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
        split = array.reshape(*before, extent // self.count, self.count, *after)
        chosen = np.take(split, share, axis=axis + 1)
        return np.ascontiguousarray(chosen.reshape(*before, -1, *after))


def environment_rows(num_envs: int) -> Rows:
    """Two of them, off the ends, where rows that depend on earlier or on later ones alone show.

    And off the middle, which an inversion leaves in place.
    """
    return Rows("env", num_envs, (range(1, 3),))


def agent_rows(num_agents: int) -> Rows:
    """One agent alone, with others before and after it where there are as many."""
    first = range(num_agents) if num_agents == 2 else (num_agents // 2,)
    return Rows("agent", num_agents, tuple(range(agent, agent + 1) for agent in first))


class RowTrials:
    """Tries operations on a share of the environments, or of the agents.

    Args:
        evaluate: an operation's results for given inputs.
        rows: what is shared.
        generator: draws other data.
    """

    def __init__(
        self,
        evaluate: Callable[[Op, dict[str, Any]], tuple],
        rows: Rows,
        generator: np.random.Generator,
    ) -> None:
        self.evaluate, self.rows, self.generator = evaluate, rows, generator

    def evidence(self, op: Op, inputs: dict, values: dict[str, Value]) -> str:
        """Evidence that a row of the result depends on other rows; empty if there is none.

        It has to be found twice: under load an operation that MindSpore runs uncompiled has given,
        once in hundreds of times, what it did not give again.
        """
        return self._evidence(op, inputs, values) and self._evidence(op, inputs, values)

    def _evidence(self, op: Op, inputs: dict, values: dict[str, Value]) -> str:
        split = self.rows.split
        if not any(name in values and values[name].split_by(split) for name in inputs):
            twice = [self._results(op, inputs) for _ in range(2)]
            return "" if all(map(_close, *twice)) else RANDOM
        op = without_differentiation(op)
        for chosen in self.rows.shares:
            whole = inputs
            for attempt, scale in enumerate((0.1, 2.0, 0.0)):
                share = {
                    name: self.rows.select(value, values[name], chosen)
                    for name, value in whole.items()
                }
                evidence = self._differs(op, whole, share, chosen, lenient=attempt > 0)
                if evidence:
                    return evidence
                # Again with other data: in a rollout's first steps much is zero or False.
                whole = {
                    name: self._shaken(value, values[name], scale) for name, value in inputs.items()
                }
        return ""

    def _results(self, op: Op, inputs: dict) -> list[Any]:
        results = leaves(self.evaluate(op, inputs))
        settle(results)
        return results

    def _shaken(self, value: Any, meta: Value, scale: float) -> Any:
        if meta.parts:
            return tuple(self._shaken(v, m, scale) for v, m in zip(value, meta.parts, strict=True))
        if meta.along(self.rows.split) is None:
            return value
        array = to_array(value)
        if array.dtype == np.bool_:
            return Tensor(self.generator.random(array.shape) < 0.5)
        if array.dtype.kind != "f":
            return value
        noise = self.generator.normal(0.0, scale, array.shape)
        return Tensor((array + noise * (1.0 + np.abs(array))).astype(array.dtype))

    def _differs(self, op: Op, whole: dict, share: dict, chosen: range, lenient: bool) -> str:
        try:
            full = self._results(op, whole)
        except Exception:
            if lenient:  # other data may lie outside an operation's domain
                return ""
            raise
        if not all(_close(a, b) for a, b in zip(full, self._results(op, whole), strict=True)):
            return RANDOM
        rows = self.rows
        try:
            part = self._results(op, share)
        except Exception as error:  # noqa: BLE001  (told as what it means)
            text = next(iter(str(error).strip().splitlines()), "")
            return (
                f"it fails on {len(chosen)} of {rows.count} {rows.noun} alone: "
                f"{type(error).__name__}: {text}"
            )
        for index, (a, b) in enumerate(zip(full, part, strict=True)):
            name = op.targets[index] if index < len(op.targets) else op.targets[-1]
            if isinstance(a, int) and a != b:
                return (
                    f"{name} is part of the shape of one replica's share: write `x.shape` in "
                    "the expression that needs it"
                )
            evidence = self._row_evidence(name, to_array(a), to_array(b), chosen)
            if evidence:
                return evidence
        return ""

    def _row_evidence(self, name: str, full: np.ndarray, some: np.ndarray, chosen: range) -> str:
        rows = self.rows
        if full.ndim != some.ndim:
            return f"{name} {list(full.shape)} has another rank for a share of the {rows.noun}"
        axis = [i for i in range(full.ndim) if full.shape[i] != some.shape[i]]
        if not axis:
            if full.size and not _close(full, some):
                return f"{name} {list(full.shape)} sums up rows of all {rows.noun}"
            return ""
        if full.shape[axis[0]] % rows.count or not _close_rows(
            rows.take(full, axis[0], chosen), some
        ):
            return (
                f"{name} {list(full.shape)}: rows of {len(chosen)} {rows.noun} computed alone "
                f"differ from the same rows computed among {rows.count}"
            )
        return ""


def without_differentiation(op: Op) -> Op:
    """The loss itself of a gradient, every other operation as it is."""
    if op.kind != "gradient":
        return op
    call = f"{op.attr('objects')[0]}({', '.join(op.args)})"
    return replace(op, kind="glue", args=(call,), targets=("loss",))


def _close(left: Any, right: Any) -> bool:
    """Whether two results are the same but for rounding, which is that of the largest terms."""
    one, other = (np.asarray(to_array(value), np.float64) for value in (left, right))
    scale = np.abs(one[np.isfinite(one)]).max(initial=1.0)
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-5 * scale, equal_nan=True))


def _close_rows(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and _close(left, right)
