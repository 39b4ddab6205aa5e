"""Runs a job whose every iteration starts from the plain loop's state, and records its values."""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.checking.compared import (
    ATOL,
    CELLS,
    MARKS,
    METRIC,
    PARAMETERS,
    RTOL,
    STATE,
    Compared,
    compared,
    mark_of,
    place_of,
)
from mindspore_rl.checking.plain import PlainRun
from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.plan.plan import Plan, save_plan
from mindspore_rl.platform import resources
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator import admission
from mindspore_rl.runtime.coordinator.metrics import INFO
from mindspore_rl.runtime.coordinator.run import run_job
from mindspore_rl.runtime.coordinator.state_machine import JobOptions


def names_in_source(plan: Plan, cut: Partition) -> dict[str, str]:
    """Returns a plan's carried variables with their names in the source."""
    names = dict(cut.program.locals)
    return {name: names[name] for name in plan.carried}


def unread_sites(cut: Partition) -> frozenset[str]:
    """Returns the sites of boundaries whose values nobody reads, which no fragment computes."""
    run = {name for fragment in cut.fragments for name in fragment.ops}
    marked = [op for op, _ in walk(cut.program.body) if op.kind == "boundary"]
    sites = {place_of(op.attr["site"]): False for op in marked}
    sites |= {place_of(op.attr["site"]): True for op in marked if op.name in run}
    return frozenset(site for site, passed in sites.items() if not passed)


def run_held(
    plan: Plan,
    run_dir: Path,
    reference: PlainRun,
    iterations: int,
    unread: Container[str] = frozenset(),
) -> tuple[dict[str, bool], list[Compared]]:
    """Runs a job whose iterations start from the plain loop's states, and compares its values.

    A job whose plan records no marks has the cells of a training: loops that recorded values would
    divide are one cell, with their draws made ahead. Its metrics and its state are compared.

    Args:
        plan: the job's plan, lowered into `run_dir`, with as many iterations; the values at the
            marks that it records are compared.
        run_dir: the run directory.
        reference: the plain run of the same program and configuration.
        iterations: number of iterations.
        unread: sites that the job does not pass, see `unread_sites`.

    Returns: whether each cell was native in the end, by name, and the compared values.

    Raises:
        JobFailure: the job failed.
        KeyboardInterrupt: the job was interrupted.
    """
    starts = {str(i): str(reference.checkpoints[i]) for i in range(iterations)}
    end, lines = run_plan(replace(plan, load_at=starts), run_dir)
    reports = {int(line["iteration"]) - 1: line["values"] for line in lines}
    found = []
    for iteration in range(iterations):
        found += compare_records(run_dir, reference, iteration, plan.record, unread)
        found += compare_reports(reports.get(iteration, {}), reference, iteration)
    found += compare_states(end, reference.states[-1], STATE)
    return native_cells(end), [replace(one, as_trained=not plan.record) for one in found]


def run_plan(plan: Plan, run_dir: Path) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Runs a job. Returns: the arrays of its last checkpoint, and its lines of metrics.

    Raises:
        JobFailure: the job failed.
        KeyboardInterrupt: the job was interrupted.
    """
    save_plan(plan, run_dir)
    lines: list[dict[str, Any]] = []
    limit_s = admission.start_timeout_s(plan, resources.available_cores())
    options = JobOptions(False, 0, start_timeout_s=limit_s, on_iteration=lines.append)
    outcome = run_job(plan, run_dir, options)
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    return checkpoint.load(Path(str(outcome.checkpoint)))[0], lines


def native_cells(end: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Returns whether each cell was native at a checkpoint, by name."""
    return {name: bool(value) for name, value in end.items() if name.startswith(CELLS)}


def compare_records(
    run_dir: Path,
    reference: PlainRun,
    iteration: int,
    marks: tuple[str, ...] = MARKS,
    unread: Container[str] = frozenset(),
) -> list[Compared]:
    """Compares a job's values at boundaries in an iteration with the plain loop's, in its order.

    A job has no values that nobody reads.
    """
    expected = {
        site: passes
        for (number, site), passes in reference.records.items()
        if number == iteration and mark_of(site) in marks and site not in unread
    }
    # The turns of an unrolled loop, `gradient#1.2`, are one site of the plain loop.
    turns: dict[str, dict[int, dict[int, np.ndarray]]] = {}
    inside: dict[str, int] = {}
    for site, first, value in _recorded(run_dir, iteration):
        place, *numbers = site.split(".")
        turn, inside[place] = [*map(int, numbers), *(0, 1)[len(numbers) :]]
        turns.setdefault(place, {}).setdefault(turn, {})[first] = value
    found = [
        Compared(iteration, site, math.inf, "the reference did not pass it")
        for site in sorted(turns.keys() - expected)
        if mark_of(site) in marks
    ]
    for site, passes in expected.items():
        if site not in turns:
            found.append(Compared(iteration, site, math.inf, "the job did not pass it"))
            continue
        got = [turns[site][turn] for turn in sorted(turns[site])]
        lengths, inner = {len(v) for values in got for v in values.values()}, inside[site]
        uneven = len(lengths) > 1 or not inner or any(length % inner for length in lengths)
        if uneven and sum(len(next(iter(v.values()))) for v in got) == len(passes):
            found.append(Compared(iteration, site, uneven=True))  # it is not known which turns
            continue
        if lengths != {len(passes) // len(got)} or len(passes) % len(got):
            wrong = f"passed {len(got)} x {lengths} times, expected {len(passes)}"
            found.append(Compared(iteration, site, math.inf, wrong))
            continue
        pairs = [
            (value[row].ravel(), passes[(row - at) * len(got) + turn * inner + at], first)
            for row, at in ((row, row % inner) for row in range(*lengths))
            for turn, values in enumerate(got)
            for first, value in sorted(values.items())
        ]
        found.append(
            compared(
                iteration,
                site,
                np.concatenate([value for value, _, _ in pairs]),
                np.concatenate(
                    [_leaves(whole, first, value.size) for value, whole, first in pairs]
                ),
            )
        )
    return found


def _recorded(run_dir: Path, iteration: int) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields sites, the places of values in them and the values of all ranks, `[passes, ...]`."""
    files = sorted((run_dir / "records").glob(f"{iteration:06d}-*.npz"))
    parts = [dict(np.load(file)) for file in files]
    places: dict[tuple[str, str], list[tuple[np.ndarray, str]]] = {}
    for part in parts:
        for key, value in part.items():
            name, axis, own = key.split("|")
            if len(value):
                places.setdefault((name, axis), []).append((value, own))
    for (name, axis), shares in sorted(places.items()):
        site, first = name.split("/")
        whole = joined(shares, int(axis)) if axis else shares[0][0]
        yield site, int(first), whole


def joined(shares: Sequence[tuple[np.ndarray, str]], axis: int) -> np.ndarray:
    """Returns the rows of all replicas in the order of the plain loop.

    Args:
        shares: arrays, each with how many environments or agents its replica has: n. Entry i along
            the axis is of number i mod n of these.
        axis: of the rows.
    """
    split = []
    for value, own in shares:
        before, extent, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        split.append(value.reshape(*before, extent // int(own), int(own), *after))
    found = np.concatenate(split, axis + 1)
    rows = found.shape[axis] * found.shape[axis + 1]
    return found.reshape(*found.shape[:axis], rows, *found.shape[axis + 2 :])


def _leaves(arrays: Sequence[np.ndarray], first: int, size: int) -> np.ndarray:
    """Returns as many numbers of the arrays, from the first entry of one of them."""
    numbers = [array.ravel() for array in arrays[first:]]
    return np.concatenate([*numbers, np.zeros(0)])[:size]


def compare_reports(
    values: Mapping[str, float | None], reference: PlainRun, iteration: int
) -> list[Compared]:
    """Compares a job's metrics of an iteration with the plain loop's; None: not finite.

    Metrics from the environments' `info` are left out: the plain loop does not take them.
    """
    wanted = {k: v if math.isfinite(v) else None for k, v in reference.reports[iteration].items()}
    found = []
    for name in dict.fromkeys([*wanted, *values]):
        if name in wanted and name in values:
            got, expected = (np.array(side[name], np.float64) for side in (values, wanted))
            found.append(compared(iteration, METRIC + name, got, expected))
        elif name in wanted or not name.startswith(INFO):
            found.append(Compared(iteration, METRIC + name, math.inf, "only one of the two has it"))
    return found


def compare_states(
    got: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    prefixes: tuple[str, ...] = (PARAMETERS,),
    rtol: float = RTOL,
    atol: float = ATOL,
) -> list[Compared]:
    """Compares the arrays of two checkpoints whose names begin with one of the prefixes."""
    found = []
    for name in sorted(name for name in wanted if name.startswith(prefixes)):
        if name in got:
            found.append(compared(None, name, got[name], wanted[name], rtol, atol))
        else:
            found.append(Compared(None, name, math.inf, "the job's checkpoint does not hold it"))
    return found
