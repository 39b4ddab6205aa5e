"""What the sub-commands of `msrl` do."""

import argparse
import dataclasses
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from mindspore_rl import config, gpu, machine, programs, registry
from mindspore_rl.environments import by_name
from mindspore_rl.errors import CheckpointError, ConfigError, JobFailure, MsrlError
from mindspore_rl.graph.distribution_policy import DistributionPolicy, Schedule
from mindspore_rl.loading import split_environment
from mindspore_rl.names import name_from
from mindspore_rl.output import steady
from mindspore_rl.plan.plan import JOB_FILE
from mindspore_rl.plan.text import plan_text
from mindspore_rl.run_directory import (
    check_trusted,
    earlier_job,
    new_directory,
    tell_copies,
    write_job,
)

RETRY_S = 2.0
"""Between two attempts to reach a host that was lost."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Before a restart where the one before it came to no new checkpoint; twice as long each time."""
JOB_KEYS = ("algorithm", "policy", "schedule", "workers")
"""Keys of a YAML file that are the job's; all others are the algorithm's."""


def requested(args: argparse.Namespace, **more: Any) -> Any:
    """Resolves the arguments; nothing is started or written."""
    from mindspore_rl.pipeline import JobRequest, environment_for  # noqa: PLC0415
    from mindspore_rl.plan import deployment  # noqa: PLC0415

    resumed = more.pop("resume_run", None)
    earlier = earlier_job(resumed)
    yaml_file = registry.find_config(args.config) if args.config else None
    written: dict[str, Any] = config.read_yaml(yaml_file) if yaml_file else {}
    place = args.deployment or earlier.get("deployment")
    place_file = registry.find_deployment(place) if place else None
    hosts = deployment.load(place_file) if place_file else deployment.Deployment()
    if args.deployment:  # given now, it counts for more than an earlier run
        written = {"policy": hosts.policy, **written}
        earlier = {**earlier, **({"workers": hosts.workers} if hosts.workers else {})}
    policy_file, policy = _policy(args, written, earlier)
    assignments = list(args.assignments)
    name = args.algorithm
    if name and "=" in name and not Path(name).exists():
        assignments.insert(0, name)
        name = None
    name = str(name or written.get("algorithm") or earlier.get("algorithm") or "")
    if not name:
        raise MsrlError(
            f"which algorithm? one of {', '.join(registry.algorithms())}, or a .py file"
        )
    file = registry.find_algorithm(name)
    before = Path(earlier.get("algorithm", file)).stem
    if before != file.stem:
        raise ConfigError(
            f"the run to be resumed is one of {before}, and {file.stem} is asked for; leave the "
            "algorithm out, or start a new run without --resume"
        )
    cls: Any = programs.trainer_class(file)
    flags = {key: getattr(args, key) for key in ("env", "num_envs", "seed", "total_steps")}
    settings = config.resolve(
        cls.Config, yaml_file, flags, assignments, JOB_KEYS, base=earlier.get("config")
    )
    name = environment_for(policy, _absolute(settings.env))
    if name != settings.env:
        settings = dataclasses.replace(settings, env=name)
    if resumed:
        tell_copies(resumed, str(file), str(policy_file), settings.env, str(place_file or ""))
    workers = args.workers or _workers(written, args.config) or earlier.get("workers", 1)
    return JobRequest(
        file,
        policy,
        settings,
        workers,
        policy_file=str(policy_file),
        deployment=hosts,
        deployment_file=str(place_file or ""),
        cells=args.cells or earlier.get("cells", "auto"),
        **more,
    )


def _policy(
    args: argparse.Namespace, written: dict[str, Any], earlier: dict[str, Any]
) -> tuple[Path, DistributionPolicy]:
    """The policy that the flags, a YAML file or the earlier run name, and its file."""
    named = args.policy or written.get("policy")
    file = registry.find_policy(str(named or earlier.get("policy", "SingleLearnerCoarse")))
    policy = registry.load_policy(file)
    given = config.to_dict(policy.schedule)
    if named is None:
        given |= earlier.get("schedule", {})
    texts = [
        *_schedule_keys(written.get("schedule", {}), args.config),
        *filter(None, (args.schedule or "").split(",")),
    ]
    schedule = config.resolve(Schedule, None, {}, texts, base=given)
    return file, dataclasses.replace(policy, schedule=schedule)


def _workers(written: dict[str, Any], file: str) -> int | None:
    """How many a YAML file asks for, if it does."""
    value = written.get("workers")
    if value is None:
        return None
    try:
        found = config.parse(value, int)
    except (ValueError, ArithmeticError):
        found = 0
    if found < 1:
        raise ConfigError(f"{file}: workers is {value!r}, expected a whole number, at least 1")
    return found


def _schedule_keys(value: Any, file: str) -> list[str]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"{file}: schedule is {value!r}, expected a mapping, for example "
            "`schedule: {order: arrival, staleness: 4}`"
        )
    return [f"{key}={part}" for key, part in value.items()]


def _absolute(environment: str) -> str:
    """A file's environment by its absolute path, so that a run can be used from anywhere."""
    found = split_environment(environment)
    return environment if found is None else f"{found[0].resolve()}:{found[1]}"


def train(args: argparse.Namespace) -> int:
    """`msrl train`."""
    from mindspore_rl.pipeline import prepare  # noqa: PLC0415
    from mindspore_rl.runtime import checkpoint, profile  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator import room  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.launch import WORKERS_LOG  # noqa: PLC0415

    if args.resume and not args.trust:
        check_trusted(args.resume)
    room.check_address_space(machine.address_space())
    os.umask(os.umask(0) | 0o022)  # nobody else can write what is run
    compiled = args.backend == "mpi"
    if args.device == "gpu" and not compiled:
        raise MsrlError("--backend inproc computes on the CPU; remove --device gpu")
    device, why = gpu.choose(args.device if compiled else "cpu")
    resume, done = _newest_checkpoint(args.resume) if args.resume else (None, {})
    request = requested(
        args,
        device=device,
        compiled=compiled,
        timeout_s=args.timeout,
        replay_dir=args.replay_dir and os.path.abspath(args.replay_dir),
        profile=args.profile,
        resume=str(resume or ""),
        resume_run=args.resume,
    )
    settings = request.config
    stamp = time.strftime("%Y%m%d-%H%M%S")
    environment = name_from(settings.env)
    name = f"{request.algorithm.stem}-{environment}-{request.policy.name}-{stamp}"
    with new_directory(args.run_dir, name) as run_dir:
        plan, _ = prepare(request, run_dir, dumper(args.dump_graph))
        if resume is not None:
            checkpoint.check_job(resume, done, plan)
            if done["env_steps"] >= plan.last_step:
                raise ConfigError(
                    f"{args.resume} is done: it has trained for {done['env_steps']:,} steps, and "
                    f"{plan.last_step:,} are asked for; raise --total-steps to go on"
                )
        if warning := room.check_memory(plan, machine.available_memory()):
            print(f"msrl: {warning}", file=sys.stderr)
        profile.check(plan)
        write_job(run_dir, request)
    with steady(run_dir / WORKERS_LOG):
        if not args.quiet:
            print(plan_text(plan), file=sys.stderr)
            print(f"  on the {device}{why and f': {why}'}", file=sys.stderr)
            if plan.steps_per_iteration > settings.total_steps:
                text = f"total_steps is {settings.total_steps:,}, less than an iteration has:"
                print(f"  {text} {plan.steps_per_iteration:,} steps are trained", file=sys.stderr)
            if plan.workers < request.workers:
                text = f"{request.workers} workers would share GPUs: they are fused into"
                print(f"  {text} {plan.workers}", file=sys.stderr)
        return _train(args, request, plan, run_dir, done.get("env_steps", 0))


def _train(args: argparse.Namespace, request: Any, plan: Any, run_dir: Path, steps: int) -> int:
    """Runs what was planned. Returns: the exit code."""
    from mindspore_rl.runtime.coordinator import room  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.run import JobOptions  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.whole import check_whole  # noqa: PLC0415

    spec = by_name.spec(plan.environment)
    if spec.notes and not args.quiet:
        print(f"  {spec.name}: {spec.notes}", file=sys.stderr)
    threshold = spec.reward_threshold if args.stop_return is None else args.stop_return
    start_timeout_s = args.start_timeout
    if start_timeout_s is None:
        start_timeout_s = room.start_timeout_s(plan, machine.available_cores())
    options = JobOptions(
        progress=not args.quiet,
        total_steps=request.config.total_steps,
        stop_return=threshold,
        checkpoint_every_s=args.checkpoint_every,
        start_timeout_s=start_timeout_s,
        start_steps=steps,
        deployment=request.deployment,
    )
    outcome = _run_with_restarts(plan, run_dir, options, args.max_restarts)
    if outcome.stopped != "interrupted":
        check_whole(run_dir, outcome.iterations, outcome.checkpoint)
    reached = "no finished episode"
    if outcome.mean_return is not None:
        reached = f"mean return {outcome.mean_return:.1f}"
    print(f"{outcome.stopped}: {outcome.env_steps} environment steps, {reached}")
    print(f"run directory: {run_dir}")
    if plan.profile:
        print(f"profile: msrl profile {run_dir}")
    return 130 if outcome.stopped == "interrupted" else 0


def _newest_checkpoint(run: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint to continue a run from, and what it says of itself.

    Raises:
        CheckpointError: the run has none that can be used.
    """
    from mindspore_rl.runtime import checkpoint  # noqa: PLC0415

    path, done, damaged = checkpoint.load_newest(run / checkpoint.FOLDER)
    for text in damaged:
        print(f"msrl: {text}", file=sys.stderr)
    if damaged:
        print(f"msrl: using {path}", file=sys.stderr)
    return path.resolve(), done


def _run_with_restarts(plan: Any, run_dir: Path, options: Any, restarts: int) -> Any:
    """Runs a job, from its newest checkpoint again after each of so many failures.

    A restart waits for hosts that were lost, as long as a start may take, and longer and longer
    while there is no progress: what made a job fail may need time to go away.
    """
    from mindspore_rl.runtime.coordinator.monitor import Unreached  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.run import run_job  # noqa: PLC0415

    retry_until_s = wait_s = 0.0
    while True:
        try:
            return run_job(plan, run_dir, options)
        except JobFailure as failure:
            if isinstance(failure, Unreached) and time.monotonic() < retry_until_s:
                print(f"msrl: {str(failure).splitlines()[0]}; trying again", file=sys.stderr)
                _wait(RETRY_S)
                continue
            if failure.mistake or failure.interrupted or restarts <= 0:
                raise
            restarts -= 1
            before = plan.resume
            plan, options = _restarted(plan, options, run_dir)
            progress = plan.resume != before
            wait_s = 0.0 if progress else min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            print(
                f"msrl: {failure}\nmsrl: restarting from {plan.resume or 'the beginning'}"
                f"{f' in {wait_s:g} s' if wait_s else ''}, {restarts} restarts left",
                file=sys.stderr,
            )
            _wait(wait_s)
            retry_until_s = time.monotonic() + options.start_timeout_s


def _wait(seconds: float) -> None:
    """Lets time pass. Raises: KeyboardInterrupt."""
    from mindspore_rl.runtime.coordinator.interruption import Interruption  # noqa: PLC0415

    with Interruption() as interruption:
        select.select([interruption.socket], [], [], seconds)
        if interruption.poll():
            raise KeyboardInterrupt


def _restarted(plan: Any, options: Any, run_dir: Path) -> tuple[Any, Any]:
    """The same job from its newest checkpoint, or as it was started if there is none yet."""
    from mindspore_rl.plan.plan import save_plan  # noqa: PLC0415
    from mindspore_rl.runtime import checkpoint  # noqa: PLC0415

    if not checkpoint.list_checkpoints(run_dir / checkpoint.FOLDER):
        return plan, options
    try:
        path, done = _newest_checkpoint(run_dir)
    except CheckpointError as error:
        print(f"msrl: {error}", file=sys.stderr)
        return plan, options
    plan = dataclasses.replace(plan, resume=str(path))
    save_plan(plan, run_dir)
    return plan, dataclasses.replace(options, start_steps=done["env_steps"])


def dumper(folder: Path | None) -> Any:
    """Writes what each pass gives into a folder, if one is named."""
    from mindspore_rl import pipeline  # noqa: PLC0415

    if folder is None:
        return lambda name, result: None
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, result: Any) -> None:
        number = pipeline.STAGES.index(name) + 1
        (folder / f"{number:02d}-{name}.txt").write_text(pipeline.stage_text(result))

    return write


def graph(args: argparse.Namespace) -> int:
    """`msrl graph`."""
    import tempfile  # noqa: PLC0415

    from mindspore_rl.pipeline import prepare, stage_text  # noqa: PLC0415

    def see(name: str, result: Any) -> None:
        if name == args.stage:
            print(stage_text(result), end="")

    with tempfile.TemporaryDirectory() as folder:
        request = requested(args, device=gpu.choose(args.device)[0])
        if args.format == "native":
            request = dataclasses.replace(request, cells="native", num_iterations=1)
        plan, cut = prepare(request, Path(folder), see)
        if not args.stage:
            _print_graph(plan, cut, Path(folder), args.format)
    return 0


def _print_graph(plan: Any, cut: Any, folder: Path, form: str) -> None:
    from mindspore_rl.graph import render, text  # noqa: PLC0415

    if form == "native":
        _print_native(plan, folder)
    elif form == "dot":
        print(render.render_dot(cut), end="")
    elif form == "source":
        for fragment in plan.fragments:
            print(f"# ---- {fragment.file}")
            print((folder / "fragments" / fragment.file).read_text())
    else:
        print(text.render(cut.program))
        print(render.render_edges(cut.program))
        print(render.render_partition(cut))
        print(plan_text(plan))


def _print_native(plan: Any, folder: Path) -> None:
    """Runs an iteration, for shapes are known when a cell is called, and prints what ran."""
    from mindspore_rl.runtime.coordinator.run import JobOptions, run_job  # noqa: PLC0415

    run_job(plan, folder, JobOptions(progress=False, total_steps=0))
    for path in sorted((folder / "fragments").glob("*.cpp")):
        print(f"// ---- {path.name}")
        print(path.read_text())


def evaluate_run(args: argparse.Namespace) -> int:
    """`msrl eval`."""
    from mindspore_rl.runtime.evaluate import evaluate  # noqa: PLC0415

    if not args.trust:
        check_trusted(args.run_directory)
    if (args.run_directory / JOB_FILE).is_file():
        earlier = earlier_job(args.run_directory)
        tell_copies(args.run_directory, earlier["algorithm"], args.env or earlier["config"]["env"])
    returns = evaluate(
        args.run_directory,
        args.episodes,
        args.seed,
        args.sample,
        args.env,
        assignments=args.assignments,
    )
    mean = sum(returns) / len(returns)
    spread = (sum((r - mean) ** 2 for r in returns) / len(returns)) ** 0.5
    print(f"return {mean:.1f} +- {spread:.1f} over {len(returns)} episodes")
    return 0
