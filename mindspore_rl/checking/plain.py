"""Runs the plain loop twice, and once more with nudged parameters where a job differs."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.checking.compared import METRIC, Compared, compared
from mindspore_rl.compiler.frontend.build import read
from mindspore_rl.config import to_dict
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.parameters import named_parameters, set_parameter
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.plain_loop import Draws
from mindspore_rl.runtime.reference import Reference

ATTEMPTS = 4
NUDGE = 1e-6
"""Relative change of the parameters: about 8 units in the last place, as rounding in a layer.

The entries of a gradient change by as much of the largest: each is a sum of terms as large.
"""
ROUNDING = 2.0
"""A job's difference is rounding if its largest and its mean are at most this multiple of the
nudged loop's."""


@dataclass
class PlainRun:
    """The results of the plain loop: values at boundaries and states between iterations.

    Attributes:
        records: `{(iteration, site): [arrays of every pass, leaves flattened]}`.
        reports: the metrics of each iteration.
        states: the state before each iteration, and the one after the last.
        env_steps: environment steps taken, over all environments.
        checkpoints: files of the states.
        lag: of the loop's schedule.
    """

    records: dict[tuple[int, str], list[list[np.ndarray]]] = field(default_factory=dict)
    reports: list[dict[str, float]] = field(default_factory=list)
    states: list[dict[str, np.ndarray]] = field(default_factory=list)
    env_steps: int = 0
    checkpoints: list[Path] = field(default_factory=list)
    lag: int = 0


class UnsteadyError(MsrlError):
    """The plain loop gives different results each time.

    Args:
        place: the line in the user's file.
        first: the first value that differs between two runs.
    """

    exit_code = 1

    def __init__(self, place: str, first: Compared) -> None:
        super().__init__(
            f"{place}: two runs of the plain loop differ, first in {first}; expected a function of "
            "the configuration: look for the clock, for what Python counts or keeps between calls, "
            "for generators other than `noise`, and at an environment that does not go by its seed"
        )
        self.first = first


def run_reference(
    algorithm: Path,
    config: Any,
    folder: Path,
    iterations: int,
    carried: dict[str, str],
    lag: int = 0,
    once: bool = False,
) -> PlainRun:
    """Runs the algorithm as plain Python, until two runs agree to the last bit.

    Repetition guards against a wrong reference: once, MindSpore's eager mode returned zeros for the
    log-probabilities of a step. A thousand further runs did not show it again.

    Args:
        algorithm: the algorithm's file.
        config: an instance of its `Config`.
        folder: where the checkpoints are saved.
        iterations: number of iterations.
        carried: the graph's names of the loop's carried variables, and their names in the source.
        lag: of the schedule, see `policy.Schedule`.
        once: whether one run is enough.

    Raises:
        UnsteadyError: no two runs agree.
    """
    found = plain_run(algorithm, config, iterations, carried, lag=lag)
    for _ in range(0 if once else ATTEMPTS - 1):
        earlier, found = found, plain_run(algorithm, config, iterations, carried, lag=lag)
        if same(earlier, found):
            break
    else:
        if not once:
            raise UnsteadyError(algorithm.name, _first_difference(earlier, found))
    steps = found.env_steps // iterations
    about = {
        "algorithm": algorithm.stem,
        "environment": config.env,
        "config": to_dict(config),
        "num_envs": config.num_envs,
        "steps_per_iteration": steps,
    }
    found.checkpoints = [
        checkpoint.save(folder / f"before-{i}", i, state, {**about, "env_steps": i * steps})
        for i, state in enumerate(found.states)
    ]
    return found


def plain_run(
    algorithm: Path,
    config: Any,
    iterations: int,
    carried: dict[str, str],
    nudged_at: int | None = None,
    lag: int = 0,
) -> PlainRun:
    """Runs the algorithm as plain Python once.

    Args:
        algorithm: the algorithm's file.
        config: an instance of its `Config`.
        iterations: number of iterations.
        carried: see `run_reference`.
        nudged_at: an iteration before which the parameters are changed by a relative `NUDGE`, and
            in which the gradients are.
        lag: see `run_reference`.
    """
    mindspore_device.use()
    trainer = programs.make_trainer(programs.trainer_class(algorithm), config, spec(config.env))
    run = PlainRun(lag=lag)

    def keep(iteration: int, site: str, values: list[np.ndarray]) -> None:
        run.records.setdefault((iteration, site), []).append(values)

    def snapshot(iteration: int, variables: dict[str, Any]) -> None:
        if iteration:
            reported: dict[str, float] = {}
            for report in reference.reports:
                reported |= report
            run.reports.append(reported)
            reference.reports.clear()
        chosen = {name: eval(source, {}, dict(variables)) for name, source in carried.items()}
        run.states.append({name: np.array(v) for name, v in reference.state(chosen).items()})
        if iteration == nudged_at:
            _nudge(trainer)
            reference.nudge = partial(_nudged_sum, signs=signs)
            reference.versions[0] = [_nudged(v, signs) for v in reference.versions[0]]

    signs = np.random.default_rng(1)
    program = read(trainer)
    reference = Reference(trainer, iterations, keep, snapshot, program.marks, lag)
    marked = read(trainer, program.marks).marked.items()
    reference.by_priority = program.by_priority
    reference.draws = draws_of(program) | {name: Draws(*call) for name, call in marked}
    reference.run()
    run.env_steps = int(reference._env_steps)
    return run


def draws_of(program: Any) -> dict[str, Draws]:
    """Returns the calls of a program, as `build.read` returns it, that draw random numbers."""
    return {name: Draws(*draw) for name, draw in program.draws.items()}


def _nudge(trainer: Any) -> None:
    """Changes each entry of the parameters by `NUDGE`, up or down."""
    signs = np.random.default_rng(0)
    for _, parameter in named_parameters(trainer, "all"):
        set_parameter(parameter, _nudged(parameter.asnumpy(), signs))


def _nudged(value: np.ndarray, signs: np.random.Generator) -> np.ndarray:
    """Returns an array with each entry changed by `NUDGE`; one of integers as it is."""
    if value.dtype != np.float32:
        return value
    by = signs.choice((-NUDGE, NUDGE), value.shape)
    return (value * (1.0 + by)).astype(np.float32)


def _nudged_sum(value: Tensor, signs: np.random.Generator) -> Tensor:
    """Returns a gradient with each entry but zeros changed by `NUDGE` of the largest."""
    array = value.asnumpy()
    by = signs.choice((-NUDGE, NUDGE), array.shape) * np.abs(array).max(initial=0.0)
    return Tensor(np.where(array, array + by, array).astype(array.dtype))


def same(first: PlainRun, second: PlainRun) -> bool:
    """Returns whether two plain runs agree bit by bit."""
    parts = ("records", "reports", "states")
    return all(_equal(getattr(first, part), getattr(second, part)) for part in parts)


def _equal(first: Any, second: Any) -> bool:
    """Returns whether nested lists and dictionaries of numbers and arrays agree bit by bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and first.tobytes() == second.tobytes()


def _first_difference(first: PlainRun, second: PlainRun) -> Compared:
    """Finds the first value that differs between two plain runs, by any amount."""
    for iteration in range(len(first.reports)):
        got, wanted = (values_of(run, iteration) for run in (second, first))
        for name in wanted:
            if name not in got:
                return Compared(iteration, name, math.inf, "only one of them comes here")
            if not _equal(got[name], wanted[name]):
                one = compared(iteration, name, got[name], wanted[name], 0.0, 0.0)
                return one if one.wrong else replace(one, wrong="another type")
    names = [name for name in first.states[-1] if name in second.states[-1]]
    pairs = ((name, second.states[-1][name], first.states[-1][name]) for name in names)
    found = [compared(None, name, got, wanted, 0.0, 0.0) for name, got, wanted in pairs]
    return next((one for one in found if one.wrong), Compared(None, "the state at the end"))


def values_of(run: PlainRun, iteration: int) -> dict[str, np.ndarray]:
    """Returns the values at boundaries and the metrics of an iteration, by name."""
    metrics = run.reports[iteration].items()
    named = ((METRIC + name, np.array(value)) for name, value in metrics)
    return dict([*sites_of(run, iteration), *named])


def sites_of(run: PlainRun, iteration: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the boundaries of an iteration with their values, `[passes, entries]`, in order."""
    for (number, site), turns in run.records.items():
        if number == iteration:
            rows = [np.concatenate([leaf.ravel() for leaf in turn]) for turn in turns]
            same = len({len(row) for row in rows}) == 1  # else of networks of several sizes
            yield site, np.stack(rows) if same else np.concatenate(rows)[None]


def rounding_alone(
    found: Iterable[Compared],
    algorithm: Path,
    config: Any,
    reference: PlainRun,
    carried: dict[str, str],
) -> dict[Compared, Compared]:
    """Measures how far values move in the plain loop if parameters and gradients change by `NUDGE`.

    Args:
        found: values of a job that differ.
        algorithm: the program's file.
        config: the program's configuration.
        reference: its plain run.
        carried: see `run_reference`.

    Returns: for each value that of the changed loop beside that of the plain loop.
    """
    iterations = len(reference.reports)
    nudged: dict[int, PlainRun] = {}
    moved = {}
    for one in found:
        at = iterations - 1 if one.iteration is None else one.iteration
        if at not in nudged:
            nudged[at] = plain_run(algorithm, config, iterations, carried, at, reference.lag)
        if one.iteration is None:
            got, wanted = (run.states[-1] for run in (nudged[at], reference))
        else:
            got, wanted = (values_of(run, at) for run in (nudged[at], reference))
        known = one.name in got and one.name in wanted
        still = Compared(at, one.name)
        moved[one] = compared(at, one.name, got[one.name], wanted[one.name]) if known else still
    return moved


def is_rounding(one: Compared, moved: Compared) -> bool:
    """Returns whether a job's difference is explained by rounding.

    Args:
        one: the value that differs.
        moved: how far it moves in the plain loop, see `rounding_alone`.
    """
    few = one.far <= ROUNDING * moved.far and one.mean <= ROUNDING * moved.mean
    return math.isfinite(moved.far) and few
