"""Row dependence, by trial: each operation on one share of the environments against the whole.

A reduction over the batch that is not marked is invisible to the analysis; here it is found before
it trains something else than it says.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.graph.ir import Op, Value
from mindspore_rl.operators import leaves, settle, to_array

SHARE = range(1, 3)
"""Off the ends, so that rows that depend only on earlier or only on later ones show; and off the
middle, which an inversion leaves in place."""
RANDOM = "it gives another result each time (random numbers come as the noise of `act`)"


class RowTrials:
    """Tries operations on a share of the environments.

    Args:
        evaluate: an operation's results for given inputs.
        num_envs: environments in the data seen.
        generator: draws other data.
    """

    def __init__(
        self,
        evaluate: Callable[[Op, dict[str, Any]], tuple],
        num_envs: int,
        generator: np.random.Generator,
    ) -> None:
        self.evaluate, self.num_envs, self.generator = evaluate, num_envs, generator

    def evidence(self, op: Op, inputs: dict, values: dict[str, Value]) -> str:
        """Evidence that a row of the result depends on other rows; empty if there is none."""
        if not any(name in values and values[name].split for name in inputs):
            twice = [self._results(op, inputs) for _ in range(2)]
            return "" if all(map(_close, *twice)) else RANDOM
        if op.kind == "gradient":
            op = replace(
                op,
                kind="glue",
                args=(f"{op.attr('objects')[0]}({', '.join(op.args)})",),
                targets=("loss",),
            )
        whole = inputs
        for attempt, scale in enumerate((0.1, 2.0, 0.0)):
            share = {
                name: _select(value, values[name], self.num_envs) for name, value in whole.items()
            }
            evidence = self._differs(op, whole, share, lenient=attempt > 0)
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
        if meta.axis is None:
            return value
        array = to_array(value)
        if array.dtype == np.bool_:
            return Tensor(self.generator.random(array.shape) < 0.5)
        if array.dtype.kind != "f":
            return value
        noise = self.generator.normal(0.0, scale, array.shape)
        return Tensor((array + noise * (1.0 + np.abs(array))).astype(array.dtype))

    def _differs(self, op: Op, whole: dict, share: dict, lenient: bool) -> str:
        try:
            full = self._results(op, whole)
        except Exception:
            if lenient:  # other data may lie outside an operation's domain
                return ""
            raise
        if not all(_close(a, b) for a, b in zip(full, self._results(op, whole), strict=True)):
            return RANDOM
        try:
            part = self._results(op, share)
        except Exception as error:  # noqa: BLE001  (told as what it means)
            text = next(iter(str(error).strip().splitlines()), "")
            return (
                f"it fails on {len(SHARE)} of {self.num_envs} environments alone: "
                f"{type(error).__name__}: {text}"
            )
        for index, (a, b) in enumerate(zip(full, part, strict=True)):
            name = op.targets[index] if index < len(op.targets) else op.targets[-1]
            if isinstance(a, int) and a != b:
                return (
                    f"{name} is part of the shape of one replica's share: write `x.shape` in "
                    "the expression that needs it"
                )
            evidence = self._row_evidence(name, to_array(a), to_array(b))
            if evidence:
                return evidence
        return ""

    def _row_evidence(self, name: str, full: np.ndarray, some: np.ndarray) -> str:
        axis = [i for i in range(full.ndim) if full.shape[i] != some.shape[i]]
        if not axis:
            if full.size and not _close(full, some):
                return f"{name} {list(full.shape)} sums up rows of all environments"
            return ""
        chosen = _columns(full, axis[0], self.num_envs)
        if chosen.shape != some.shape or not _close(chosen, some):
            return (
                f"{name} {list(full.shape)}: rows of {len(SHARE)} environments computed alone "
                f"differ from the same rows computed among {self.num_envs}"
            )
        return ""


def _close(left: Any, right: Any) -> bool:
    return bool(np.allclose(to_array(left), to_array(right), rtol=1e-3, atol=1e-5, equal_nan=True))


def _select(value: Any, meta: Value, num_envs: int) -> Any:
    if meta.parts:
        pairs = zip(value, meta.parts, strict=True)
        return tuple(_select(part, part_meta, num_envs) for part, part_meta in pairs)
    if meta.axis is None:
        return value
    return Tensor(_columns(to_array(value), meta.axis, num_envs))


def _columns(array: np.ndarray, axis: int, num_envs: int) -> np.ndarray:
    """A share of the environments of an axis on which they are innermost."""
    before, extent, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    split = array.reshape(*before, extent // num_envs, num_envs, *after)
    share = np.take(split, SHARE, axis=axis + 1)
    return np.ascontiguousarray(share.reshape(*before, -1, *after))
