"""Row trials: compares a share of environments or agents with the whole.

An unmarked reduction over the batch would give other results on several replicas. To find it, each
operation is run on a share of the rows and compared with all rows, and its compiled graph is read
as well, because booleans and integers may agree by chance.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.compiler.analysis.compiled_ops import Reading
from mindspore_rl.compiler.analysis.row_lattice import Sharding
from mindspore_rl.compiler.frontend.records import flattened
from mindspore_rl.compiler.ir.ir import Expr, Op, Program, walk
from mindspore_rl.errors import first_line
from mindspore_rl.plan.value import Value
from mindspore_rl.purity.calls import RANDOM
from mindspore_rl.rl.operators import leaves, settle, to_array

SIDE_BY_SIDE = (
    "do not lie side by side along one axis: of x [n, k, ...] x.swapaxes(0, 1).reshape((-1, ...)) "
    "keeps them so"
)
"""Evidence about results that mix no rows but interleave the entries of different rows."""
MAX_ENTRIES = 1_000_000
"""Input entries above which nothing is tried if the graph decides: it would take minutes."""
LARGE = 20_000
"""Input entries, such as of small images, above which one trial is enough if the graph decides.

So it is for a long operation (`Reading.is_long`), of which each trial runs all turns of its loops,
uncompiled; but that one is tried with many environments, too.
"""
UNSTEADY = 6
"""Evaluations that must all differ before an operation counts as random against its graph."""
UNDECIDED = (0.1, 2.0, 1e-3, 30.0, 1e3, 0.5, 1e5, 0.0)


@dataclass(frozen=True)
class Rows:
    """The rows along an axis: environments or agents.

    Attributes:
        split: `env` or `agent`.
        count: number of rows in the data.
        shares: the rows of each trial.
        more: further trials, for operations whose graph does not decide.
    """

    split: str
    count: int
    shares: tuple[range, ...]
    more: tuple[range, ...] = ()

    @property
    def noun(self) -> str:
        """The plural noun of the rows, for messages."""
        return "agents" if self.split == "agent" else "environments"

    def select(self, value: Any, meta: Value, share: Sequence[int]) -> Any:
        """Selects a share of the rows of a value, or of each part of a tuple."""
        if meta.parts:
            pairs = zip(value, meta.parts, strict=True)
            return tuple(self.select(part, part_meta, share) for part, part_meta in pairs)
        axis = meta.along(self.split)
        return value if axis is None else Tensor(self.take(to_array(value), axis, share))

    def take(self, array: np.ndarray, axis: int, share: Sequence[int]) -> np.ndarray:
        """Selects a share of the rows along an axis whose entry i belongs to row i mod `count`."""
        before, extent, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
        split = array.reshape(*before, extent // self.count, self.count, *after)
        chosen = np.take(split, share, axis=axis + 1)
        rows = extent // self.count * len(share)
        return np.ascontiguousarray(chosen.reshape(*before, rows, *after))


def drawn(program: Program) -> set[str]:
    """Returns the variables of a program that hold random numbers in [0, 1)."""
    found = set[str]()
    for op, _ in walk(program.body):
        noise = op.kind in ("noise", "uniform_of_all")
        if noise or (op.kind in ("index", "uniform") and op.reads[0] in found):
            found |= set(op.targets)
    return found


def environment_rows(num_envs: int) -> Rows:
    """Returns the trials over environments: first two rows, neither at an end nor symmetric.

    Between the ends, a dependence on only earlier or only later rows shows. Off the middle, a
    reversal of the rows shows.
    """
    others = (range(1), range(num_envs - 1, num_envs), range(2, num_envs))
    return Rows("env", num_envs, (range(1, 3),), others)


def agent_rows(num_agents: int) -> Rows:
    """Returns the trials over agents: a single agent from the middle, or each one of two."""
    first = range(num_agents) if num_agents == 2 else (num_agents // 2,)
    return Rows("agent", num_agents, tuple(range(agent, agent + 1) for agent in first))


class RowTrials:
    """Tries operations on a share of the environments or agents.

    Args:
        evaluate: computes an operation's results for given inputs.
        rows: the rows and the shares to try.
        generator: draws new data.
        reading: the compiled graphs of the operations; None: only trials.
        drawn: variables with random numbers, which stay in [0, 1).
    """

    def __init__(
        self,
        evaluate: Callable[[Op, dict[str, Any]], tuple],
        rows: Rows,
        generator: np.random.Generator,
        reading: Reading | None = None,
        drawn: Collection[str] = (),
    ) -> None:
        self.evaluate, self.rows, self.generator = evaluate, rows, generator
        self.reading, self.drawn = reading, drawn

    def evidence(self, op: Op, inputs: dict, values: dict[str, Value]) -> str:
        """Returns evidence that a row of the result depends on other rows; empty if there is none.

        Evidence of a trial must be found twice, on data without subnormal numbers. MindSpore's
        threads treat those differently (`x > 0`, `log(x)`), and the split of an operation over
        threads changes in the first calls for a shape and under load.
        """
        shardings = self._shardings(op, inputs, values)
        read = [self._read(*one, values) for one in shardings]
        if layout := next((text for text in read if text.endswith(SIDE_BY_SIDE)), ""):
            return layout
        decided = bool(shardings) and all(sharding.kind != "unknown" for _, sharding in shardings)
        inputs = {name: _without_subnormals(value) for name, value in inputs.items()}
        trial = self._evidence(op, inputs, values, decided)
        if trial and (trial := self._evidence(op, inputs, values, decided)):
            return trial
        return next(filter(None, read), "")

    def makes_all(self, op: Op, inputs: dict, values: dict[str, Value]) -> bool:
        """Returns whether a share of the rows gives all rows, as `ops.zeros((num_envs, 2))`."""
        chosen = self.rows.shares[0]
        share = {name: self.rows.select(v, values[name], chosen) for name, v in inputs.items()}
        sizes = [[leaf.shape for leaf in self._arrays(op, given)] for given in (inputs, share)]
        axes = [leaf.axis for name in op.targets for leaf in values[name].leaves]
        return any(
            axis is not None and whole[axis] == part[axis]
            for axis, whole, part in zip(axes, *sizes, strict=True)
        )

    def _arrays(self, op: Op, inputs: dict) -> list[np.ndarray]:
        return list(map(to_array, self._results(op, inputs)))

    def _shardings(self, op: Op, inputs: dict, values: dict) -> list[tuple[str, Sharding]]:
        """Returns the sharding of each result array by the graph, with its variable's name."""
        if self.reading is None:
            return []
        results = self.reading.sharding(op, inputs, values, self.rows.split, self.rows.count)
        names = without_differentiation(op).targets
        parts = results if isinstance(results, tuple) and len(names) > 1 else (results,)
        return [
            (name, sharding)
            for name, part in zip(names, parts, strict=False)
            for sharding in flattened(part)
        ]

    def _read(self, name: str, sharding: Sharding, values: dict[str, Value]) -> str:
        noun = self.rows.noun
        axes = {leaf.axis for leaf in values[name].leaves} if self.rows.split == "env" else {}
        alone = bool(axes) and axes == {None}
        if sharding.kind == "mixed" or (sharding.kind == "unknown" and alone):
            return (
                f"{name} depends on several {noun} at once, by {sharding.by} in its compiled graph"
            )
        if (
            sharding.kind == "sharded"
            and axes
            and (sharding.inner != 1 or sharding.axis not in axes)
        ):
            return f"{name}: its {noun} {SIDE_BY_SIDE}"
        return ""

    def _evidence(self, op: Op, inputs: dict, values: dict[str, Value], decided: bool) -> str:
        split = self.rows.split
        if not any(name in values and values[name].split_by(split) for name in inputs):
            return "" if self._steady(op, inputs, decided) else RANDOM
        op = without_differentiation(op)
        entries = sum(to_array(leaf).size for leaf in leaves(tuple(inputs.values())))
        if decided and entries > MAX_ENTRIES:
            return ""
        long = decided and self.reading is not None and self.reading.is_long(op)
        known: list[Any] = []  # all trials begin with the same inputs
        amplified, agreed = "", False
        for chosen, scales in self._trials(decided, entries, long):
            whole = inputs
            for attempt, scale in enumerate(scales):
                share = {
                    name: self.rows.select(value, values[name], chosen)
                    for name, value in whole.items()
                }
                if attempt > 0:
                    evidence, proves = self._differs_on_others(op, whole, share, chosen)
                    agreed = agreed or (proves and not evidence)
                    if not proves:
                        amplified, evidence = amplified or evidence, ""
                else:
                    evidence = self._differs(op, whole, share, chosen, known, long)
                if evidence and not (evidence == RANDOM and self._steady(op, whole, decided)):
                    return evidence
                # Repeat with new data: in the first steps of a rollout much is zero or False.
                whole = {
                    name: self._shaken(value, values[name], scale, name in self.drawn)
                    for name, value in inputs.items()
                }
        if decided or agreed or not amplified:
            return ""
        return f"{amplified}, and in all data a millionth of the inputs moves it as far"

    def _trials(
        self, decided: bool, entries: int, long: bool
    ) -> list[tuple[Sequence[int], tuple[float, ...]]]:
        """Returns the shares to try, each with the scales of the changes that make new data."""
        # Where the graph does not decide, more trials give a dependence more chances to show.
        scales: tuple[float, ...] = (0.1, 2.0, 0.0) if decided else UNDECIDED
        shares = self.rows.shares if decided else (*self.rows.shares, *self.rows.more)
        large = decided and entries > LARGE
        if large or long:
            scales, shares = scales[:1], shares[:1]
        trials: list[tuple[Sequence[int], tuple[float, ...]]] = [(one, scales) for one in shares]
        if self.rows.split == "env" and not large:  # a job may have many more than the probe
            times = min(max(MAX_ENTRIES // max(entries, 1), 2), 40)
            trials.append((tuple(range(self.rows.count)) * times, (0.1,)))
        return trials

    def _steady(self, op: Op, inputs: dict, decided: bool) -> bool:
        """Returns whether any two evaluations of an operation agree.

        If the graph has nothing random, a single difference proves nothing, because MindSpore's
        threads may round differently; results that depend on Python state never agree.
        """
        found: list[list[Any]] = []
        for _ in range(UNSTEADY if decided else 2):
            results = self._results(op, inputs)
            if any(all(map(_close, results, other)) for other in found):
                return True
            found.append(results)
        return False

    def _results(self, op: Op, inputs: dict) -> list[Any]:
        results = leaves(self.evaluate(op, inputs))
        settle(results)
        return results

    def _shaken(self, value: Any, meta: Value, scale: float, drawn: bool = False) -> Any:
        if meta.parts:
            return tuple(self._shaken(v, m, scale) for v, m in zip(value, meta.parts, strict=True))
        if meta.along(self.rows.split) is None:
            return value
        array = to_array(value)
        if drawn:  # log(u) and sqrt(1 - u) are defined in [0, 1) alone
            return Tensor(self.generator.random(array.shape, np.float32))
        if array.dtype == np.bool_:
            return Tensor(
                self.generator.random(array.shape) < self.generator.choice((0.1, 0.5, 0.9))
            )
        if array.dtype == np.uint8:  # images
            return Tensor(self.generator.integers(0, 256, array.shape).astype(np.uint8))
        if array.dtype.kind != "f":
            return value
        noise = self.generator.normal(0.0, scale, array.shape)
        return Tensor((array + noise * (1.0 + np.abs(array))).astype(array.dtype))

    def _differs(
        self, op: Op, whole: dict, share: dict, chosen: Sequence[int], known: list[Any], long: bool
    ) -> str:
        """Compares a share with all rows, of the inputs that every trial begins with.

        `known` gets the results of all rows, once two evaluations have agreed on them; those of a
        long operation at once, as what is random in it shows in the share.
        """
        if not known:
            full = self._results(op, whole)
            if not long and self._odd(op, whole, full):
                return RANDOM
            known += full
        evidence = self._of_share(op, known, share, chosen)
        return RANDOM if evidence and long and self._odd(op, whole, known) else evidence

    def _differs_on_others(
        self, op: Op, whole: dict, share: dict, chosen: Sequence[int]
    ) -> tuple[str, bool]:
        """Compares a share with all rows, of other inputs; these need not be in the domain.

        Returns: the evidence, and whether the inputs prove anything.
        """
        try:
            full = self._results(op, whole)
        except Exception:  # noqa: BLE001
            return "", False
        evidence = self._of_share(op, full, share, chosen)
        # The first inputs showed what is random; here a second evaluation is only to blame it.
        if evidence and self._odd(op, whole, full):
            return RANDOM, True
        if evidence:
            return evidence, not self._amplifies(op, whole, full)
        return "", all(np.isfinite(to_array(result)).all() for result in full)

    def _amplifies(self, op: Op, inputs: dict, found: list[Any]) -> bool:
        """Returns whether a millionth of an operation's inputs moves its results beyond rounding.

        Such data prove nothing: the number of rows alone changes how their results are rounded.
        """

        def nudged(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(nudged, value))
            array = to_array(value)
            if array.dtype.kind != "f":
                return value
            by = self.generator.choice((-1e-6, 1e-6), array.shape)
            return Tensor((array * (1.0 + by)).astype(array.dtype))

        others = {
            name: value if name in self.drawn else nudged(value) for name, value in inputs.items()
        }
        return self._odd(op, others, found)

    def _odd(self, op: Op, inputs: dict, found: list[Any]) -> bool:
        """Returns whether another evaluation of an operation gives other results."""
        return not all(_close(a, b) for a, b in zip(found, self._results(op, inputs), strict=True))

    def _of_share(self, op: Op, full: list, share: dict, chosen: Sequence[int]) -> str:
        """Returns how the results of a share of the rows differ from those of all rows."""
        rows = self.rows
        try:
            part = self._results(op, share)
        except Exception as error:  # noqa: BLE001  (returned as evidence)
            return (
                f"it fails on {len(chosen)} of {rows.count} {rows.noun} alone: "
                f"{type(error).__name__}: {first_line(error)}"
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

    def _row_evidence(
        self, name: str, full: np.ndarray, some: np.ndarray, chosen: Sequence[int]
    ) -> str:
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


def _without_subnormals(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_without_subnormals, value))
    if not isinstance(value, Tensor) or (array := to_array(value)).dtype.kind != "f":
        return value
    small = (array != 0.0) & (np.abs(array) < np.finfo(array.dtype).tiny)
    return Tensor(np.where(small, array.dtype.type(0.0), array)) if small.any() else value


def without_differentiation(op: Op) -> Op:
    """Replaces a gradient by the evaluation of its loss; returns other operations unchanged."""
    if op.kind != "gradient":
        return op
    loss, forms = op.attr["objects"][0], op.attr.get("forms", ())
    call = f"{f'by_place({loss}, {forms})' if forms else loss}({', '.join(op.args)})"
    return replace(op, kind="glue", args=(Expr(call),), targets=op.targets[-1:], attrs=())


def _close(left: Any, right: Any) -> bool:
    """Returns whether two results agree up to rounding relative to the largest entry."""
    one, other = (np.asarray(to_array(value), np.float64) for value in (left, right))
    scale = np.abs(one[np.isfinite(one)]).max(initial=1.0)
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-5 * scale, equal_nan=True))


def _close_rows(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and _close(left, right)
