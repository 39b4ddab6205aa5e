"""Runs a job whose every iteration starts from the plain loop's state, and records its values."""

import math
from collections.abc import Mapping
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
from mindspore_rl.checking.plain import PlainRun, sites_of
from mindspore_rl.plan.plan import Plan, save_plan
from mindspore_rl.platform import resources
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator import admission
from mindspore_rl.runtime.coordinator.metrics import INFO
from mindspore_rl.runtime.coordinator.run import run_job
from mindspore_rl.runtime.coordinator.state_machine import JobOptions


def names_in_source(plan: Plan, sources: Mapping[str, str]) -> dict[str, str]:
    """Returns a plan's carried variables with their names in the source."""
    return {name: sources[name] for name in plan.carried}


def run_held(
    plan: Plan, run_dir: Path, reference: PlainRun, iterations: int
) -> tuple[dict[str, bool], list[Compared]]:
    """Runs a job whose iterations start from the plain loop's states, and compares its values.

    Args:
        plan: the job's plan, lowered into `run_dir`, with as many iterations and with `MARKS`
            recorded.
        run_dir: the run directory.
        reference: the plain run of the same program and configuration.
        iterations: number of iterations.

    Returns: whether each cell was native in the end, by name, and the compared values.

    Raises:
        JobFailure: the job failed.
        KeyboardInterrupt: the job was interrupted.
    """
    starts = {str(i): str(reference.checkpoints[i]) for i in range(iterations)}
    plan = replace(plan, load_at=starts)
    save_plan(plan, run_dir)
    lines: list[dict[str, Any]] = []
    limit_s = admission.start_timeout_s(plan, resources.available_cores())
    options = JobOptions(False, 0, start_timeout_s=limit_s, on_iteration=lines.append)
    outcome = run_job(plan, run_dir, options)
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    reports = {int(line["iteration"]) - 1: line["values"] for line in lines}
    found = []
    for iteration in range(iterations):
        found += compare_records(run_dir, reference, iteration)
        found += compare_reports(reports.get(iteration, {}), reference, iteration)
    end = checkpoint.load(Path(str(outcome.checkpoint)))[0]
    native = {name: bool(value) for name, value in end.items() if name.startswith(CELLS)}
    return native, found + compare_states(end, reference.states[-1], STATE)


def compare_records(
    run_dir: Path, reference: PlainRun, iteration: int, marks: tuple[str, ...] = MARKS
) -> list[Compared]:
    """Compares a job's values at boundaries in an iteration with the plain loop's, in its order."""
    files = sorted((run_dir / "records").glob(f"{iteration:06d}-*.npz"))
    parts = [dict(np.load(file)) for file in files]
    keys = sorted({key for part in parts for key in part if len(part[key])})
    expected = {k: v for k, v in sites_of(reference, iteration) if mark_of(k) in marks}
    # The turns of an unrolled loop, `gradient#1.2`, are one place in the file.
    passed = {place_of(key.split("/")[0]) for key in keys}
    found = [
        Compared(iteration, site, math.inf, "the reference did not pass it")
        for site in sorted(s for s in passed - set(expected) if mark_of(s) in marks)
    ]
    for site, whole in expected.items():
        wanted = whole
        turns: dict[int, list[np.ndarray]] = {}
        for key in keys:
            name = key.split("/")[0]
            if place_of(name) == site:
                turn = name.removeprefix(site).removeprefix(".")
                axis = key.split("|")[1]
                shares = [part[key] for part in parts if key in part]
                value = np.concatenate(shares, int(axis)) if axis else shares[0]
                turns.setdefault(int(turn or 0), []).append(value.reshape(len(value), -1))
        if turns:
            each = [np.concatenate(turns[turn], axis=1) for turn in sorted(turns)]
            widths = {rows.shape[1] for rows in each}
            if mark_of(site) == "gradient" and len(widths) == 1:  # means, if read, come last
                wanted = wanted[:, : widths.pop()]
            got = each[0]
            if len(each) > 1:  # in the order of the plain loop
                got = np.concatenate([row for rows in zip(*each, strict=True) for row in rows])
                got = got.reshape(wanted.shape) if got.size == wanted.size else got[None]
            found.append(compared(iteration, site, got, wanted))
        else:
            found.append(Compared(iteration, site, math.inf, "the job did not pass it"))
    return found


def compare_reports(
    values: Mapping[str, float | None], reference: PlainRun, iteration: int
) -> list[Compared]:
    """Compares a job's metrics of an iteration with the plain loop's; None: not finite.

    Those from the environments' `info` are left out: the plain loop does not take them.
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
