"""Subcommands that train, show, evaluate, export and profile."""

import argparse
import dataclasses
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from mindspore_rl.compiler.ir import text
from mindspore_rl.compiler.pipeline import prepare, stage_text
from mindspore_rl.compiler.show import mermaid, picture, render
from mindspore_rl.jobs import job, training
from mindspore_rl.jobs.job import Job
from mindspore_rl.plan.text import plan_text
from mindspore_rl.platform import gpu
from mindspore_rl.platform.stdio import steady
from mindspore_rl.runtime.coordinator.launch import WORKERS_LOG
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from mindspore_rl.trained import export as exporting
from mindspore_rl.trained import run as runs

EPISODES = 20
"""Episodes that `msrl eval` plays by default."""
UNDRAWN = ("probe:", "pettingzoo:", "envpool:")
"""Beginnings of the names of environments that `msrl eval` cannot film."""


def train(args: argparse.Namespace) -> int:
    """Runs `msrl train`."""
    trained = training.train(Job.of(args), tell=getattr(args, "tell", None))
    outcome, run_dir = trained.outcome, trained.run_dir
    reached = "no finished episode"
    if outcome.mean_return is not None:
        reached = f"mean return {outcome.mean_return:.1f}"
    with steady(run_dir / WORKERS_LOG):
        later = outcome.env_steps - outcome.measured_at
        more = f"; ended {later:,} steps later" if later else ""
        print(f"{outcome.stopped}: {outcome.measured_at} environment steps, {reached}{more}")
        print(f"run directory: {run_dir}")
        if trained.plan.profile:
            print(f"profile: msrl profile {run_dir}")
        if outcome.checkpoint is not None:
            film = "" if trained.plan.environment.startswith(UNDRAWN) else " --video episode.mp4"
            stopped = outcome.stopped == "interrupted"
            words = ("train --resume", "") if stopped else ("eval", film)
            print(f"next: msrl {words[0]} {shlex.quote(str(run_dir))}{words[1]}")
    return 130 if outcome.stopped == "interrupted" else 0


def graph(args: argparse.Namespace) -> int:
    """Runs `msrl graph`."""

    def see(name: str, result: Any) -> None:
        if name == args.stage:
            print(stage_text(result), end="")

    with tempfile.TemporaryDirectory() as folder:
        asked = training.settled(Job.of(args))
        request = job.request(asked, device=gpu.choose(args.device)[0])
        if args.format == "native":
            request = dataclasses.replace(request, cells="native", num_iterations=1)
        plan, cut = prepare(request, Path(folder), see)
        training.tell_left_out(cut.program)
        if not args.stage:
            _print_graph(plan, cut, Path(folder), args.format)
    return 0


def _print_graph(plan: Any, cut: Any, folder: Path, form: str) -> None:
    if form == "native":
        _print_native(plan, folder)
    elif form == "dot":
        print(render.render_dot(cut), end="")
    elif form == "mermaid":
        print(mermaid.render_mermaid(cut, plan), end="")
    elif form == "svg":
        print(picture.render_svg(cut, plan), end="")
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
    """Runs one iteration, because cells are compiled at their first call, and prints their C++."""
    run_job(plan, folder, JobOptions(progress=False, total_steps=0))
    for path in sorted((folder / "fragments").glob("*.cpp")):
        print(f"// ---- {path.name}")
        print(path.read_text())


def evaluate_run(args: argparse.Namespace) -> int:
    """Runs `msrl eval`."""
    run = runs.load(args.run_directory, checkpoint=args.checkpoint, trust=args.trust)
    returns = run.evaluate(
        args.episodes or (1 if args.render else EPISODES),
        seed=args.seed,
        sample=args.sample,
        env=args.env,
        config=args.assignments,
        video=args.video,
        render=args.render,
    )
    if args.json:
        about = {"run": str(run.path), "checkpoint": run.checkpoint, "episodes": len(returns)}
        found = {"mean_return": returns.mean(), "std_return": returns.std()}
        print(json.dumps(about | found | {"returns": returns.tolist()}))
        return 0
    count = f"{len(returns)} episode{'s' * (len(returns) != 1)}"
    print(f"return {returns.mean():.1f} +- {returns.std():.1f} over {count}")
    if args.video:
        print(f"video of the first: {args.video}")
    return 0


def export(args: argparse.Namespace) -> int:
    """Runs `msrl export`."""
    run = runs.load(args.run_directory, checkpoint=args.checkpoint, trust=args.trust)
    path, compared = exporting.export(run, args.format, args.output, args.batch)
    batch = exporting.rows_of_call(args.format, args.batch)
    count = f"{batch} observation{'s' * (batch > 1)}" if batch else "any number of observations"
    print(f"{path}: takes {count} at a time, gives the policy's actions on {compared} of them")
    return 0


def profile(args: argparse.Namespace) -> int:
    """Runs `msrl profile`."""
    from mindspore_rl.jobs.run_directory import check_trusted  # noqa: PLC0415
    from mindspore_rl.performance import report  # noqa: PLC0415

    check_trusted(args.run_directory, args.trust)  # also checks files that a profile does not run
    report.show(args.run_directory)
    return 0
