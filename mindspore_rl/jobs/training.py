"""Runs a training job to its end, with restarts, for `msrl train` and `mindspore_rl.train`."""

import contextlib
import dataclasses
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindspore_rl.compiler import pipeline
from mindspore_rl.compiler.show import picture
from mindspore_rl.environments import registry
from mindspore_rl.errors import (
    CheckpointError,
    ConfigError,
    JobFailure,
    MsrlError,
    StorageError,
    shortened,
)
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs.job import Job, PathName
from mindspore_rl.jobs.run_directory import check_trusted, new_directory, write_job
from mindspore_rl.jobs.suitable import suggested
from mindspore_rl.plan.plan import GRAPH_FILE, OUTCOME_FILE, PLAN_FILE, save_plan
from mindspore_rl.plan.text import plan_text
from mindspore_rl.platform import gpu, resources
from mindspore_rl.platform.cache import remove_left_temporary, write_file, writing
from mindspore_rl.platform.names import name_from
from mindspore_rl.platform.stdio import say, steady
from mindspore_rl.platform.user_modules import as_recorded, same_folder
from mindspore_rl.runtime import arrivals_log, checkpoint, profile_recorder, resuming
from mindspore_rl.runtime.coordinator import admission, launch, run, wandb
from mindspore_rl.runtime.coordinator.failures import Unreached
from mindspore_rl.runtime.coordinator.interruption import Interruption
from mindspore_rl.runtime.coordinator.supervisor import Tell
from mindspore_rl.runtime.coordinator.verify_run import check_whole

RETRY_S = 2.0
"""Time between two attempts to reach a lost host."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Wait before a restart if the last attempt wrote no new checkpoint; it doubles each time."""
OnIteration = Callable[[dict[str, Any]], object]
"""Called with a line of metrics.jsonl; the run ends if it returns False."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training that has ended.

    Attributes:
        run_dir: the run directory.
        plan: a `plan.plan.Plan`.
        outcome: a `runtime.coordinator.monitor.Outcome`.
    """

    run_dir: Path
    plan: Any
    outcome: Any


def train(
    job: Job,
    values: Mapping[str, object] | None = None,
    on_iteration: OnIteration | None = None,
    tell: Tell | None = None,
) -> Trained:
    """Trains a job to its end.

    Args:
        job: the job as the user gave it.
        values: keys of the algorithm's configuration.
        on_iteration: called with each iteration's metrics.
        tell: called with `run` and the run directory before anything is written there; see also
            `JobOptions`.

    Raises:
        MsrlError: the job is invalid.
        JobFailure: the job failed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise MsrlError(
            f"a job is started from the thread {threading.current_thread().name}, expected the "
            "main one, which alone hears of Ctrl-C; train there"
        )
    if on_iteration is not None and not callable(on_iteration):
        raise ConfigError(
            f"on_iteration is {on_iteration!r}, expected a function of an iteration's metrics"
        )
    tell = tell or (lambda what, value: True)
    admission.check_working_folder()
    resumed = None if job.resume is None else Path(job.resume)
    parts = (PLAN_FILE, checkpoint.FOLDER)
    if resumed and not any((resumed / part).exists() for part in parts):
        raise ConfigError(f"{resumed} is not a run directory; expected one that `msrl train` wrote")
    if resumed:
        check_trusted(resumed, job.trust)
    admission.check_address_space(resources.address_space())
    admission.check_descriptors()
    if job.wandb:
        wandb.check()
    inproc = job.backend == "inproc"
    if job.device == "gpu" and inproc:
        raise MsrlError("--backend inproc computes on the CPU; remove --device gpu")
    device, why = gpu.choose("cpu" if inproc else job.device)
    with _written_by_nobody_else(), registry.built_once():
        resume, done = _newest_checkpoint(resumed) if resumed else (None, {})
        job = settled(job, values)
        resuming_from = {"resume": str(resume or ""), "resume_run": resumed}
        request = jobs.request(job, values, device=device, **resuming_from)
        if done.get("environment") == request.config.env:
            config = dataclasses.replace(request.config, env=as_recorded(done))
            request = dataclasses.replace(request, config=config)
        plan, run_dir = _planned(job, request, resume, done, tell)
        if resumed is not None:
            arrivals_log.keep(resumed, run_dir, done["env_steps"])
        with steady(run_dir / launch.WORKERS_LOG):
            if not job.quiet:
                _tell(plan, request, f"{device}{why and f': {why}'}")
            steps = resuming.counted_from(done, plan)[1] if resume else 0
            options = _options(job, request, plan, steps, on_iteration, tell)
            return Trained(run_dir, plan, _run(plan, run_dir, options, job.max_restarts))


def settled(job: Job, values: Mapping[str, object] | None = None) -> Job:
    """Reads a job's YAML file, and replaces the policy `auto` by the fastest one.

    Args:
        job: the job as the user gave it.
        values: keys of the algorithm's configuration.
    """
    job = jobs.with_file(job)
    if job.policy != jobs.AUTO:
        return job
    from mindspore_rl.jobs import auto_policy  # noqa: PLC0415  (imports the simulation)

    return auto_policy.settled(job, values)


@contextlib.contextmanager
def _written_by_nobody_else() -> Iterator[None]:
    """Context: only this user can write the files that are made in it; they are run later."""
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def _planned(
    job: Job, request: Any, resume: Path | None, done: dict[str, Any], tell: Tell
) -> tuple[Any, Path]:
    """Makes the plan and the run directory. Returns: both."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    environment = name_from(request.config.env)
    name = f"{request.algorithm.stem}-{environment}-{request.policy.name}-{stamp}"
    chosen = Path(job.run_dir) if job.run_dir else None
    with new_directory(chosen, name, job.trust) as run_dir:
        tell("run", str(run_dir.resolve()))
        if request.workers > 1:
            launch.begin_guard()
        with suggested(request.algorithm, request.config.env), same_folder():
            plan, cut = pipeline.prepare(request, run_dir.absolute(), _seer(job, request))
        tell_left_out(cut.program)
        if resume is not None:
            resuming.check_job(resume, done, plan)
            _tell_sizes(done, plan)
            if done["env_steps"] >= plan.last_step:
                raise ConfigError(
                    f"{job.resume} is done: it has trained for {done['env_steps']:,} steps, and "
                    f"{plan.last_step:,} are asked for; raise --total-steps to go on"
                )
            _tell_schedules(done, request)
        if warning := admission.check_memory(plan, resources.available_memory()):
            say(warning)
        admission.check_descriptors(plan.num_ranks)
        _draw(plan, cut, run_dir)
        write_job(run_dir, request)
    return plan, run_dir


def _seer(job: Job, request: Any) -> Any:
    """Returns a function that is called after each pass: it writes, and checks, the program."""
    write = dumper(job.dump_graph)

    def see(name: str, result: Any) -> None:
        write(name, result)
        if name == pipeline.STAGES[0]:
            iterations = pipeline.num_iterations(request, result)
            profile_recorder.check(request.profile, iterations)

    return see


def _draw(plan: Any, cut: Any, run_dir: Path) -> None:
    """Draws the graph, unless the algorithm's own file has no line with an operation."""
    try:
        drawn = picture.render_svg(cut, plan)
    except MsrlError:
        return
    except Exception as error:  # noqa: BLE001  (a mistake in a picture ends no training)
        say(f"the graph is not drawn: {error!r}")
        return
    write_file(run_dir / GRAPH_FILE, drawn)


def tell_left_out(program: Any) -> None:
    """Prints the lines of a program that no rank runs."""
    for where in program.left_out:
        say(f"{where}\n  is left out: the loop is read, not run")


def _tell_sizes(done: dict[str, Any], plan: Any) -> None:
    """Prints the changed sizes of a resumed run, and its count of iterations and steps."""
    for key, (then, now) in resuming.sizes(done, plan).items():
        if then == now:
            continue
        text = f"{key} was {then} and is {now} now: "
        if key == "num_envs":
            text += "all environments begin new episodes; "
        iteration, steps = resuming.counted_from(done, plan)
        say(f"{text}iterations count on from {iteration:,}, steps from {steps:,}")


def _tell_schedules(done: dict[str, Any], request: Any) -> None:
    """Prints which schedules jump when a run is resumed with another total_steps."""
    then, now = done["config"]["total_steps"], request.config.total_steps
    if then == now:
        return
    config = dataclasses.replace(request.config, total_steps=then)
    at = done["env_steps"]
    before = pipeline.schedules(dataclasses.replace(request, config=config), min(at, then))
    after = pipeline.schedules(request, at)
    jumps = [
        f"{name} goes from {before[name]:.3g} to {value:.3g}"
        for name, value in after.items()
        if name in before and before[name] != value
    ]
    if jumps:
        say(
            f"total_steps was {then:,} and is {now:,} now, and schedules are of the whole: "
            f"at {at:,} steps {', '.join(jumps)}"
        )


def _tell(plan: Any, request: Any, place: str) -> None:
    """Prints the plan."""
    total_steps = request.config.total_steps
    print(plan_text(plan), file=sys.stderr)
    print(f"  on the {place}", file=sys.stderr)
    if plan.device == "GPU" and gpu.architecture() > gpu.NEWEST_PLUGIN:
        text = "this GPU is newer than MindSpore's kernels: the driver compiles them at their first"
        print(f"  {text} start, which takes minutes", file=sys.stderr)
    if plan.steps_per_iteration > total_steps:
        text = f"total_steps is {total_steps:,}, less than an iteration has:"
        print(f"  {text} {plan.steps_per_iteration:,} steps are trained", file=sys.stderr)
    if plan.workers < request.workers:
        text = f"{request.workers} workers would share GPUs: they are fused into"
        print(f"  {text} {plan.workers}", file=sys.stderr)
    spec = registry.spec(plan.environment)
    if spec.notes:
        print(f"  {spec.name}: {spec.notes}", file=sys.stderr)
    if text := registry.warning(plan.environment):
        say(f"{spec.name}: {text}")


def _options(
    job: Job, request: Any, plan: Any, steps: int, on_iteration: OnIteration | None, tell: Tell
) -> Any:
    """Returns the options for running a plan."""
    threshold = job.stop_return
    if threshold is None:
        threshold = registry.spec(plan.environment).reward_threshold
    start_timeout_s = job.start_timeout
    if start_timeout_s is None:
        start_timeout_s = admission.start_timeout_s(plan, resources.available_cores())
    return run.JobOptions(
        progress=not job.quiet,
        total_steps=request.config.total_steps,
        stop_return=threshold,
        checkpoint_every_s=job.checkpoint_every,
        start_timeout_s=start_timeout_s,
        start_steps=steps,
        deployment=request.deployment,
        on_iteration=on_iteration,
        tell=tell,
        wandb=job.wandb,
        eval_every=job.eval_every,
        eval_episodes=job.eval_episodes,
    )


def _run(plan: Any, run_dir: Path, options: Any, restarts: int) -> Any:
    """Runs a plan, and writes how it ended. Returns: the outcome."""
    run_dir = run_dir.absolute()
    try:
        with same_folder():  # the environments of a job of one process are in this one
            outcome = _run_with_restarts(plan, run_dir, options, restarts)
        remove_left_temporary()  # an earlier start may have been killed, and this one needed none
        if outcome.stopped != "interrupted":
            check_whole(run_dir, outcome.iterations, outcome.checkpoint)
    except (JobFailure, MsrlError) as failure:
        with contextlib.suppress(StorageError):
            _write_outcome(run_dir, "failure", shortened(str(failure)))
        raise
    _write_outcome(run_dir, outcome.stopped)
    return outcome


def _write_outcome(run_dir: Path, stopped: str, error: str = "") -> None:
    text = json.dumps({"stopped": stopped, "error": error})
    write_file(run_dir / OUTCOME_FILE, text + "\n")


def _newest_checkpoint(run: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the checkpoint to resume a run from, and its description.

    Raises:
        CheckpointError: the run has no valid checkpoint.
    """
    path, done, damaged = checkpoint.load_newest(run / checkpoint.FOLDER)
    for text in damaged:
        say(text)
    if damaged:
        say(f"using {path}")
    return path.resolve(), done


def _run_with_restarts(plan: Any, run_dir: Path, options: Any, restarts: int) -> Any:
    """Runs a job, and restarts it from its newest checkpoint, at most `max_restarts` times.

    A restart waits for lost hosts, up to the start's time limit. Without progress the waits grow:
    the cause of the failure may need time to go away.
    """
    retry_until_s = wait_s = 0.0
    while True:
        try:
            return run.run_job(plan, run_dir, options)
        except JobFailure as failure:
            if isinstance(failure, Unreached) and time.monotonic() < retry_until_s:
                say(f"{str(failure).splitlines()[0]}; trying again")
                _wait(RETRY_S)
                continue
            if failure.mistake or failure.interrupted or restarts <= 0:
                raise
            restarts -= 1
            before = plan.resume
            plan, options = _restarted(plan, options, run_dir)
            progress = plan.resume != before
            wait_s = 0.0 if progress else min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            say(str(failure))
            say(
                f"restarting from {plan.resume or 'the beginning'}"
                f"{f' in {wait_s:g} s' if wait_s else ''}, {restarts} restarts left"
            )
            _wait(wait_s)
            retry_until_s = time.monotonic() + options.start_timeout_s


def _wait(seconds: float) -> None:
    """Sleeps. Raises: KeyboardInterrupt: the user interrupted it."""
    with Interruption() as interruption:
        select.select([interruption.socket], [], [], seconds)
        if interruption.poll():
            raise KeyboardInterrupt


def _restarted(plan: Any, options: Any, run_dir: Path) -> tuple[Any, Any]:
    """Returns the job from its newest checkpoint, or as it began if it has come no further."""
    if not checkpoint.list_checkpoints(run_dir / checkpoint.FOLDER):
        return plan, options
    try:
        path, done = _newest_checkpoint(run_dir)
    except CheckpointError as error:
        say(str(error))
        return plan, options
    if done["env_steps"] == options.start_steps:
        return plan, options  # the run's log begins there, and this checkpoint will be removed
    arrivals_log.keep(run_dir, run_dir, done["env_steps"])
    plan = dataclasses.replace(plan, resume=str(path))
    save_plan(plan, run_dir)
    return plan, dataclasses.replace(options, start_steps=done["env_steps"])


def dumper(folder: PathName | None) -> Any:
    """Returns a function that writes the program after each pass, or None without a folder."""
    if folder is None:
        return lambda name, result: None
    place = Path(folder)
    with writing(place, "--dump-graph"):
        place.mkdir(parents=True, exist_ok=True)

    def write(name: str, result: Any) -> None:
        number = pipeline.STAGES.index(name) + 1
        with writing(place, "--dump-graph"):
            (place / f"{number:02d}-{name}.txt").write_text(pipeline.stage_text(result))

    return write
