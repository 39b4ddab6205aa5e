#!/usr/bin/env python3
"""Writes docs/profiles.md: the profile of an iteration of PPO under every policy of the project.

.venv/bin/python scripts/policy_profiles.py
.venv/bin/python scripts/policy_profiles.py --overhead   # what profiling costs, in turn with none
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "profiles.md"
CONFIG = ("num_envs=8", "num_steps=128")
ITERATIONS, TURNS = 60, 7
HEAD = """# A profile of every policy

PPO on CartPole-v1, 8 environments of 128 steps, 4 epochs of 4 minibatches, two workers, on
{machine}. Made by `scripts/policy_profiles.py`; how to read it: [performance.md](performance.md).
"""


def train(policy: str, run: Path, *flags: str) -> None:
    """Trains PPO for a while."""
    steps = str(ITERATIONS * 8 * 128)
    command = [sys.executable, "-m", "mindspore_rl.cli", "train", "ppo", "--policy", policy]
    command += ["--workers", "2", "--total-steps", steps, "--stop-return", "nan", "--quiet"]
    command += [*flags, "--run-dir", str(run), *CONFIG]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def profile(policy: str) -> str:
    """Returns the output of `msrl profile` for a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        train(policy, run, "--profile")
        command = [sys.executable, "-m", "mindspore_rl.cli", "profile", str(run)]
        done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    return done.stdout[: done.stdout.rindex("trace:")].strip()


def iteration_ms(*flags: str) -> float:
    """Returns the time of an iteration under MultipleLearners, with or without a profile."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        train("MultipleLearners", run, *flags)
        lines = (run / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["wall_s"] for line in lines][12:]
    return 1e3 * statistics.median(b - a for a, b in zip(times, times[1:], strict=False))


def overhead() -> None:
    """Prints the time of an iteration with and without a profile, in turn."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(TURNS):
        found["with"].append(iteration_ms("--profile", str(ITERATIONS)))
        found["without"].append(iteration_ms())
        print(", ".join(f"{name} {values[-1]:.2f} ms" for name, values in found.items()))
    ratios = [a / b for a, b in zip(*found.values(), strict=True)]
    low, high = min(ratios), max(ratios)
    print(f"overhead: {statistics.median(ratios) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--overhead", action="store_true", help="measure the cost of profiling")
    if parser.parse_args().overhead:
        overhead()
        return 0
    sys.path.insert(0, str(ROOT))
    from mindspore_rl.jobs import registry  # noqa: PLC0415
    from mindspore_rl.platform import resources  # noqa: PLC0415

    where = f"{resources.available_cores()} cores, {platform.machine()}"
    parts = [HEAD.format(machine=where)]
    for policy in registry.policies():
        parts.append(f"## {policy}\n\n```text\n{profile(policy)}\n```\n")
        print(policy, flush=True)
    PAGE.write_text("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
