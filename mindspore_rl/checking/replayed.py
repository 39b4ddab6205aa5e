"""Compares an asynchronous run with the plain loop that its log of arrivals drives."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mindspore_rl import programs
from mindspore_rl.api import Trainer
from mindspore_rl.checking.compared import METRIC, PARAMETERS, REPLAYED_TOL, Compared, compared
from mindspore_rl.checking.plain import draws_of
from mindspore_rl.compiler.analysis.infer import infer
from mindspore_rl.compiler.analysis.own_rows import OWN_ROWS
from mindspore_rl.compiler.frontend.build import build, read
from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError, ProgramError
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl.parameters import named_parameters
from mindspore_rl.runtime import arrivals_log, checkpoint
from mindspore_rl.runtime.arrivals_log import ARRIVALS_FILE, Arrived
from mindspore_rl.runtime.coordinator.metrics_file import METRICS_FILE, read_lines
from mindspore_rl.runtime.replayed import Names, ReplayedLoop, State


def replay(run_dir: Path, on_update: Callable[[int, int], None]) -> list[Compared]:
    """Runs an asynchronous run again, as the plain loop that its log of arrivals drives.

    A run that was resumed or restarted is run again from its first start on that took batches.

    Args:
        run_dir: of the run.
        on_update: called with the number of updates made, and of all.

    Returns: for each kept checkpoint the parameters that differ most, and for the metrics of each
        line of metrics.jsonl the one that does; `iteration` is the number of updates before.

    Raises:
        MsrlError: the run has no log of arrivals, or nothing to compare, or the checkpoint with
            which it begins is gone.
    """
    plan, starts = _starts(run_dir)
    mindspore_device.use()
    saved = {}
    for path in checkpoint.list_checkpoints(run_dir / checkpoint.FOLDER):
        arrays, meta = checkpoint.load(path, replay=False)
        saved[int(meta["env_steps"])] = arrays
    found: list[Compared] = []
    reported: list[tuple[int, dict[str, float]]] = []
    total = sum(len(log.rows) for _, log in starts)
    made = 0

    def after_update(env_steps: int) -> None:
        on_update(made + len(loop.reported), total)
        if (there := saved.pop(env_steps, None)) is not None:
            named = named_parameters(loop.trainer, "state")
            pairs = ((f"{PARAMETERS}{name}", parameter.asnumpy()) for name, parameter in named)
            rows = ((name, there[name], value) for name, value in pairs)
            found.append(_worst(made + len(loop.reported), rows))

    state = _first_state(run_dir, starts[0][0].resume)
    for then, log in starts:
        trainer = programs.load_trainer(then.algorithm, then.config, spec(then.environment))
        program = read(trainer)
        _check_rows(trainer, then)
        names = Names(draws_of(program), program.draft.locals)
        loop = ReplayedLoop(trainer, then, log, after_update, names, state)
        loop.run()
        state, made = loop.end, made + len(loop.reported)
        reported += loop.reported
    for line in read_lines(run_dir / METRICS_FILE):
        steps = line["iteration"] * plan.steps_per_iteration
        update = next((n for n, (after, _) in enumerate(reported) if after >= steps), None)
        if "iterations" in line or update is None:
            continue  # one line covers several iterations
        values, wanted = line["values"], reported[update][1]
        names_there = [name for name in wanted if values.get(name) is not None]
        if names_there:
            rows = ((f"{METRIC}{n}", np.array(values[n]), np.array(wanted[n])) for n in names_there)
            found.append(_worst(update + 1, rows))
    if not found:
        raise MsrlError(
            f"{run_dir} has nothing to compare: no checkpoint in {checkpoint.FOLDER}, and in "
            f"{METRICS_FILE} no line of one iteration; expected a checkpoint that the run wrote"
        )
    return found


def _starts(run_dir: Path) -> tuple[Plan, list[tuple[Plan, Arrived]]]:
    """Returns a run's plan, and the plans and logs of its starts, all of the run's own files."""
    plan = load_plan(run_dir)
    if plan.arrivals is None or not plan.arrivals.gather:
        raise MsrlError(
            f"{run_dir} has no {ARRIVALS_FILE}; expected an asynchronous run whose learner takes "
            "batches, such as `msrl train ppo --policy SingleLearnerCoarse --schedule "
            "order=asynchronous`. `msrl check` compares synchronous programs with their plain loop"
        )
    found = arrivals_log.starts(run_dir)
    return plan, [
        (replace(then, algorithm=plan.algorithm, environment=plan.environment), log)
        for then, log in found
    ]


def _check_rows(trainer: Trainer, plan: Plan) -> None:
    """Checks that the loop of an actor alone computes with rows of its own environments."""
    sender = next(f for f in plan.fragments if plan.arrivals and f.name == plan.arrivals.sender)
    if len(sender.shares) == 1:
        return
    built = build(trainer, plan.algorithm["name"])
    for op, loops in walk(infer(built, trainer, plan.compiled, cached=True).body):
        # `take_rows` cuts those that an iteration hands on to the next.
        if op.name.startswith(OWN_ROWS) and (loops or op.targets[0] not in plan.carried):
            raise ProgramError(
                f"{op.where}\n  this array is made of numbers and has a row for each of all "
                "environments. A job gives each actor its own rows; the plain loop of one actor "
                "cannot take them: make it of a value that has rows, such as "
                "ops.zeros_like(obs[:, 0])"
            )


def _first_state(run_dir: Path, resume: str) -> State | None:
    """Returns the checkpoint that the first start went on from, if there was one."""
    if not resume:
        return None
    if not Path(resume).is_file():
        raise MsrlError(
            f"{run_dir} was resumed from {resume}, which is gone, and there is no log of arrivals "
            "before it; expected that checkpoint at its place"
        )
    return checkpoint.load(Path(resume))


def _worst(update: int, values: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> Compared:
    return worst(compared(update, *value, REPLAYED_TOL, REPLAYED_TOL) for value in values)


def worst(found: Iterable[Compared]) -> Compared:
    """Returns the value that differs most; one that is wrong comes before any that is not."""
    return max(found, key=lambda one: (bool(one.wrong), one.far))
