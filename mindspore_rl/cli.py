"""The command line: `msrl train | eval | graph | envs`."""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl import __version__, config, programs, registry
from mindspore_rl.environments import environment as environments
from mindspore_rl.errors import ConfigError, JobFailure, MsrlError
from mindspore_rl.runtime.settings import prepare_mindspore

JOB_FILE = "job.json"
EPILOG = """examples:
  msrl train ppo --policy SingleLearnerCoarse --workers 2
  msrl train ppo --policy GPUOnly --env CartPole-v1 num_steps=256
  msrl train my/algorithm.py --policy my/policy.py
  msrl graph ppo --policy MultipleLearners --workers 2
  msrl eval runs/ppo-CartPole-v1-..."""


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Returns: the exit code (0 done, 1 failed, 2 a mistake of the user's)."""
    argv = sys.argv[1:] if argv is None else argv
    prepare_mindspore()
    try:
        parser = _parser(argv)
        args, rest = parser.parse_known_args(argv)  # KEY=VALUE may stand between flags
        strange = [word for word in rest if word.startswith("-") or "=" not in word]
        if strange or (rest and not hasattr(args, "assignments")):
            parser.error(f"unrecognized arguments: {' '.join(strange or rest)}")
        if rest:
            args.assignments = [*args.assignments, *rest]
        return args.run(args)
    except MsrlError as error:
        print(f"msrl: {error}", file=sys.stderr)
        return 2
    except JobFailure as error:
        print(f"msrl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("msrl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `msrl envs list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msrl",
        description="Distributed reinforcement learning on MindSpore.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msrl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(
        commands, "train", _train, "train an algorithm under a distribution policy", argv
    )
    _algorithm_arguments(train)
    train.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where everything is written (default: runs/ALGORITHM-ENV-POLICY-TIME)",
    )
    train.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue from the newest checkpoint of a run directory",
    )
    train.add_argument(
        "--backend",
        choices=("mpi", "inproc"),
        default="mpi",
        help="mpi: a process for each worker; inproc: all of them as threads of "
        "this process, uncompiled, for a debugger (default: mpi)",
    )
    train.add_argument(
        "--stop-return",
        type=float,
        metavar="R",
        help="stop when the mean return of the last 100 episodes reaches R "
        "(default: the environment's threshold; nan: never)",
    )
    train.add_argument(
        "--checkpoint-every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between checkpoints (default: 60)",
    )
    train.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="longest wait for a message or a cell after the first iteration (default: 60)",
    )
    train.add_argument(
        "--start-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="the same for start and compilation (default: 300)",
    )
    train.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="after a lost worker, continue from the last checkpoint at most N times (default: 0)",
    )
    train.add_argument(
        "--dump-graph", type=Path, metavar="DIR", help="write the graph after each pass"
    )
    train.add_argument("--quiet", action="store_true", help="no progress")

    graph = _command(commands, "graph", _graph, "show the graph, its cuts and its fragments", argv)
    _algorithm_arguments(graph)
    graph.add_argument(
        "--format",
        choices=("text", "dot", "source"),
        default="text",
        help="text: operations, edges, cuts, placement; dot: for Graphviz; source: "
        "the generated fragments (default: text)",
    )

    evaluate = commands.add_parser("eval", help="play a trained policy and print its return")
    evaluate.add_argument("run_directory", type=Path, metavar="RUN")
    evaluate.add_argument("--episodes", type=int, default=20, help="episodes to play (default: 20)")
    evaluate.add_argument("--seed", type=int, default=1_000_003, help="seed of the environments")
    evaluate.add_argument(
        "--sample", action="store_true", help="sample actions instead of taking the most likely"
    )
    evaluate.set_defaults(run=_evaluate)

    envs = commands.add_parser("envs", help="list environments, or check one")
    envs.add_argument("action", choices=("list", "check"))
    envs.add_argument("name", nargs="?", help="environment to check")
    envs.set_defaults(run=_environments)
    return parser


def _command(commands: Any, name: str, run: Any, text: str, argv: list[str]) -> Any:
    """A sub-command whose help ends with the keys of the algorithm that is named."""
    epilog = None
    if argv[:1] == [name] and {"-h", "--help"} & set(argv):
        named = [a for a in argv[1:] if not a.startswith("-")][:1] or ["ppo"]
        try:
            cls: Any = programs.trainer_class(registry.find_algorithm(named[0]))
            epilog = f"keys of {named[0]} (key=value, or in a YAML file):\n" + config.help_text(
                cls.Config
            )
        except MsrlError as error:
            epilog = str(error)
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _algorithm_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "algorithm",
        nargs="?",
        help=f"{', '.join(registry.algorithms())}, or a .py file (may be left out with --resume)",
    )
    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="KEY=VALUE",
        help="keys of the algorithm's configuration, see below",
    )
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help=f"{', '.join(registry.policies())}, or a .py file (default: SingleLearnerCoarse)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="replicas of the policy's first fragment (default: 1)",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="where cells run; auto is the CPU as yet (default: auto)",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of keys")
    parser.add_argument("--env", help="environment, see `msrl envs list`")
    parser.add_argument("--num-envs", help="environments, all workers together")
    parser.add_argument("--seed", help="seed of every random number")
    parser.add_argument("--total-steps", help="environment steps, all environments together")


def _request(args: argparse.Namespace, **more: Any) -> Any:
    """Resolves the arguments; nothing is started or written."""
    from mindspore_rl.runtime.job import JobRequest, environment_for  # noqa: PLC0415

    earlier = _earlier_job(more.pop("resume_run", None))
    policy_name = args.policy or earlier.get("policy", "SingleLearnerCoarse")
    policy = programs.load_policy(registry.find_policy(policy_name))
    assignments = list(args.assignments)
    name = args.algorithm
    if name and "=" in name and not Path(name).exists():
        assignments.insert(0, name)
        name = None
    name = name or earlier.get("algorithm")
    if name is None:
        raise MsrlError(
            f"which algorithm? one of {', '.join(registry.algorithms())}, or a .py file"
        )
    file = registry.find_algorithm(name)
    cls: Any = programs.trainer_class(file)
    flags = {key: getattr(args, key) for key in ("env", "num_envs", "seed", "total_steps")}
    given = {**earlier.get("config", {}), **{k: v for k, v in flags.items() if v is not None}}
    yaml_file = registry.find_config(args.config) if args.config else None
    settings = config.resolve(cls.Config, yaml_file, given, assignments)
    name = environment_for(policy, _absolute(settings.env))
    if name != settings.env:
        settings = config.resolve(cls.Config, None, {**config.to_dict(settings), "env": name}, ())
    workers = args.workers if args.workers is not None else earlier.get("workers", 1)
    return JobRequest(file, policy, settings, workers, device=_device(args.device), **more)


def _absolute(environment: str) -> str:
    """A file's environment by its absolute path, so that a run can be used from anywhere."""
    path, colon, name = environment.rpartition(":")
    return f"{Path(path).resolve()}:{name}" if colon and path.endswith(".py") else environment


def _earlier_job(run: Path | None) -> dict[str, Any]:
    if run is None:
        return {}
    try:
        return json.loads((run / JOB_FILE).read_text())
    except (OSError, ValueError) as error:
        raise MsrlError(
            f"{run} is not a run directory ({error}); expected one that `msrl train` wrote"
        ) from error


def _device(wanted: str) -> str:
    if wanted == "gpu" and not Path("/proc/driver/nvidia/version").exists():
        raise MsrlError("device=gpu: no NVIDIA driver answers on this machine; use --device cpu")
    return "GPU" if wanted == "gpu" else "CPU"


def _train(args: argparse.Namespace) -> int:
    from mindspore_rl.runtime import checkpoint  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator import JobOptions, run_job  # noqa: PLC0415
    from mindspore_rl.runtime.job import prepare  # noqa: PLC0415

    resume, start_steps = "", 0
    damaged: list[str] = []
    if args.resume:
        path, damaged = checkpoint.load_newest(args.resume / "checkpoints")
        resume = str(path.resolve())
        start_steps = checkpoint.load(path)[1]["env_steps"]
    request = _request(
        args,
        compiled=args.backend == "mpi",
        timeout_s=args.timeout,
        resume=resume,
        resume_run=args.resume,
    )
    settings = request.config
    run_dir = args.run_dir or Path("runs") / "-".join(
        (
            request.algorithm.stem,
            settings.env.replace("/", "_").replace(":", "-"),
            request.policy.name,
            time.strftime("%Y%m%d-%H%M%S"),
        )
    )
    with _new_directory(run_dir):
        plan, _ = prepare(request, run_dir, _dumper(args.dump_graph))
    (run_dir / JOB_FILE).write_text(
        json.dumps(
            {
                "algorithm": str(request.algorithm),
                "policy": str(
                    registry.find_policy(args.policy) if args.policy else request.policy.name
                ),
                "workers": request.workers,
                "config": config.to_dict(settings),
                "version": __version__,
            },
            indent=1,
        )
    )
    for text in damaged:
        print(text, file=sys.stderr)
    if not args.quiet:
        print(_plan_text(plan), file=sys.stderr)
    threshold = args.stop_return
    if threshold is None:
        threshold = environments.spec(settings.env).reward_threshold
    options = JobOptions(
        progress=not args.quiet,
        total_steps=settings.total_steps,
        stop_return=threshold,
        checkpoint_every_s=args.checkpoint_every,
        start_timeout_s=args.start_timeout,
        start_steps=start_steps,
    )
    for restarts_left in range(args.max_restarts, -1, -1):
        try:
            outcome = run_job(plan, run_dir, options)
            break
        except JobFailure as failure:
            if failure.mistake or not restarts_left:
                raise
            plan, options = _restarted(plan, options, run_dir)
            print(
                f"msrl: {failure}\nmsrl: restarting from {plan.resume or 'the beginning'}, "
                f"{restarts_left - 1} restarts left",
                file=sys.stderr,
            )
    reached = (
        "no finished episode"
        if outcome.mean_return is None
        else (f"mean return {outcome.mean_return:.1f}")
    )
    print(f"{outcome.stopped}: {outcome.env_steps} environment steps, {reached}")
    print(f"run directory: {run_dir}")
    return 130 if outcome.stopped == "interrupted" else 0


def _restarted(plan: Any, options: Any, run_dir: Path) -> tuple[Any, Any]:
    """The same job from its newest checkpoint."""
    from mindspore_rl.errors import CheckpointError  # noqa: PLC0415
    from mindspore_rl.lowering.plan import save_plan  # noqa: PLC0415
    from mindspore_rl.runtime import checkpoint  # noqa: PLC0415

    try:
        path, _ = checkpoint.load_newest(run_dir / "checkpoints")
        steps = checkpoint.load(path)[1]["env_steps"]
    except CheckpointError:
        path, steps = plan.resume, options.start_steps
    plan = dataclasses.replace(plan, resume=str(path))
    save_plan(plan, run_dir)
    return plan, dataclasses.replace(options, start_steps=steps)


def _plan_text(plan: Any) -> str:
    lines = [
        f"{plan.algorithm['name']} under {plan.policy} on {plan.environment}, "
        f"{plan.num_ranks} process{'es' if plan.num_ranks > 1 else ''}, {plan.device}"
    ]
    for fragment in plan.fragments:
        for rank, (first, last) in zip(fragment.ranks, fragment.shares, strict=True):
            cells = f", cells: {', '.join(fragment.cells)}" if fragment.cells else ""
            lines.append(f"  rank {rank}: {fragment.name}, environments {first}..{last - 1}{cells}")
    for message in plan.messages:
        lines.append(
            f"  {message.mark}: {message.source} -> {message.target}, {message.pattern}, "
            f"{message.times} an iteration"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _new_directory(run_dir: Path) -> Iterator[None]:
    """Makes a run directory, and takes it away again if the job turns out to be impossible."""
    existed = run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise MsrlError(
            f"run directory {run_dir} cannot be written ({error.strerror}); choose "
            "another with --run-dir"
        ) from error
    if (run_dir / JOB_FILE).exists():
        raise MsrlError(
            f"run directory {run_dir} already holds a run; choose another with "
            "--run-dir, or continue it with --resume"
        )
    try:
        yield
    except MsrlError:
        if not existed:
            shutil.rmtree(run_dir)
        raise


def _dumper(folder: Path | None) -> Any:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name, text: (folder / name).write_text(text)


def _graph(args: argparse.Namespace) -> int:
    import tempfile  # noqa: PLC0415

    from mindspore_rl.graph import render  # noqa: PLC0415
    from mindspore_rl.runtime.job import prepare  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        plan, cut = prepare(_request(args), Path(folder))
        if args.format == "dot":
            print(render.render_dot(cut), end="")
        elif args.format == "source":
            for fragment in plan.fragments:
                print(f"# ---- {fragment.file}")
                print((Path(folder) / "fragments" / fragment.file).read_text())
        else:
            print(render.render_program(cut.program))
            print(render.render_edges(cut.program))
            print(render.render_partition(cut))
            print(_plan_text(plan))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from mindspore_rl.runtime.evaluate import evaluate  # noqa: PLC0415

    returns = evaluate(args.run_directory, args.episodes, args.seed, args.sample)
    mean = sum(returns) / len(returns)
    spread = (sum((r - mean) ** 2 for r in returns) / len(returns)) ** 0.5
    print(f"return {mean:.1f} +- {spread:.1f} over {len(returns)} episodes")
    return 0


def _environments(args: argparse.Namespace) -> int:
    if args.action == "list":
        print("\n".join(environments.names()))
        return 0
    if not args.name:
        raise ConfigError("msrl envs check needs the name of an environment")
    from mindspore_rl.environments.check import check  # noqa: PLC0415

    findings = check(args.name)
    for finding in findings:
        print(finding)
    print(f"{args.name}: {'conforms' if not findings else f'{len(findings)} findings'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
