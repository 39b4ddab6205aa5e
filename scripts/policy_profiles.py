#!/usr/bin/env python3
"""Writes docs/profiles.md: the profile of an iteration of PPO under every policy of the project.

.venv/bin/python scripts/policy_profiles.py
.venv/bin/python scripts/policy_profiles.py --overhead   # what profiling costs, in turn with none
"""

import argparse
import platform
import statistics
import sys
from typing import Any

import numpy as np
import study

from mindspore_rl.jobs import registry
from mindspore_rl.platform import resources

PAGE = study.ROOT / "docs" / "profiles.md"
ITERATIONS, TURNS, WARM_UP = 60, 7, 13
JOB: dict[str, Any] = {
    "keys": {"num_envs": 8, "num_steps": 128},
    "workers": 2,
    "total_steps": ITERATIONS * 8 * 128,
    "stop_return": "nan",
}
HEAD = """# A profile of every policy

PPO on CartPole-v1, 8 environments of 128 steps, 4 epochs of 4 minibatches, two workers, on
{machine}. Made by `scripts/policy_profiles.py`; how to read it: [performance.md](performance.md).
"""


def iteration_ms(profiled: int | None) -> float:
    """Returns the time of an iteration under MultipleLearners, with or without a profile."""
    with study.trained("ppo", policy="MultipleLearners", profile=profiled, **JOB) as run:
        return 1e3 * float(np.median(run.durations_s(WARM_UP)))


def overhead() -> None:
    """Prints the time of an iteration with and without a profile, in turn."""
    ratios = []
    for _ in range(TURNS):
        found = iteration_ms(ITERATIONS), iteration_ms(None)
        ratios.append(found[0] / found[1])
        print("with {:.2f} ms, without {:.2f} ms".format(*found))
    median, low, high = (f(ratios) - 1 for f in (statistics.median, min, max))
    print(f"overhead: {median:+.1%} ({low:+.1%} to {high:+.1%})")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--overhead", action="store_true", help="measure the cost of profiling")
    if parser.parse_args().overhead:
        overhead()
        return 0
    where = f"{resources.available_cores()} cores, {platform.machine()}"
    parts = [HEAD.format(machine=where)]
    for policy in registry.policies():
        text = study.profile("ppo", policy=policy, **JOB)
        parts.append(f"## {policy}\n\n```text\n{text}\n```\n")
        print(policy, flush=True)
    PAGE.write_text("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
