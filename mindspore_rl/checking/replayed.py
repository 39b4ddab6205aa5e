"""Compares an asynchronous run with the plain loop that its log of arrivals drives."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mindspore_rl import programs
from mindspore_rl.checking.compared import METRIC, PARAMETERS, Compared, compared
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.parameters import named_parameters
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator.metrics import METRICS_FILE, read_lines
from mindspore_rl.runtime.rank.batch_server import ARRIVALS_FILE
from mindspore_rl.runtime.replayed import ReplayedLoop, read_log

TOLERANCE = 1e-3
"""Of an entry, relative to itself and to its array's largest: rounding errors grow by updates."""


def replay(run_dir: Path, on_update: Callable[[int, int], None]) -> list[Compared]:
    """Runs an asynchronous run again, as the plain loop that its log of arrivals drives.

    Args:
        run_dir: of the run.
        on_update: called with the number of updates made, and of all.

    Returns: for each kept checkpoint the parameters that differ most, and for the metrics of each
        line of metrics.jsonl the one that does; `iteration` is the number of updates before.

    Raises:
        MsrlError: the run has no log of arrivals from the initial parameters on.
    """
    plan = _plan(run_dir)
    log = read_log(run_dir, plan)
    mindspore_device.use()
    trainer = programs.load_trainer(plan.algorithm, plan.config, spec(plan.environment))
    per_update = plan.steps_per_update
    found: list[Compared] = []
    saved = {}
    for path in checkpoint.list_checkpoints(run_dir / checkpoint.FOLDER):
        arrays, meta = checkpoint.load(path, replay=False)
        saved[int(meta["env_steps"]) // per_update] = arrays

    def after_update(update: int) -> None:
        on_update(update, len(log))
        if update in saved:
            named = named_parameters(trainer, "state")
            pairs = ((f"{PARAMETERS}{name}", parameter.asnumpy()) for name, parameter in named)
            found.append(_worst(update, ((n, saved[update][n], value) for n, value in pairs)))

    loop = ReplayedLoop(trainer, plan, log, after_update)
    loop.run()
    for line in read_lines(run_dir / METRICS_FILE):
        update = -(-line["iteration"] * plan.steps_per_iteration // per_update)
        if "iterations" in line or update > len(loop.reports):
            continue  # one line covers several iterations
        values, wanted = line["values"], loop.reports[update - 1]
        names = [name for name in wanted if values.get(name) is not None]
        if names:
            rows = ((f"{METRIC}{n}", np.array(values[n]), np.array(wanted[n])) for n in names)
            found.append(_worst(update, rows))
    return found


def _plan(run_dir: Path) -> Plan:
    plan = load_plan(run_dir)
    if plan.arrivals is None or not plan.arrivals.gather:
        raise MsrlError(
            f"{run_dir} has no {ARRIVALS_FILE}; expected an asynchronous run whose learner takes "
            "batches, such as `msrl train ppo --policy SingleLearnerCoarse --schedule "
            "order=asynchronous`. `msrl check` compares synchronous programs with their plain loop"
        )
    if plan.resume:
        raise MsrlError(
            f"{run_dir} was resumed from {plan.resume}, and the plain loop begins with an "
            "untrained policy; expected a run from its beginning"
        )
    return plan


def _worst(update: int, values: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> Compared:
    return worst(compared(update, *value, rtol=TOLERANCE, atol=TOLERANCE) for value in values)


def worst(found: Iterable[Compared]) -> Compared:
    """Returns the value that differs most; one that is wrong comes before any that is not."""
    return max(found, key=lambda one: (bool(one.wrong), one.far))
