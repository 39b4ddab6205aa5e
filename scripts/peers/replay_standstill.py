"""Measures how long training stands still for checkpoints of its replay: one rank of DQN.

    .venv/bin/python scripts/peers/replay_standstill.py --seconds 10

Records of two observations of 64 KiB come at 14 MB/s until the replay is full, and five checkpoints
are written meanwhile. Counts what the training thread spends in `FragmentRuntime.save` and
`RankState.save_ahead`, from the first iteration to the last checkpoint. Prints seconds a minute as
JSON.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from mindspore_rl import train  # noqa: E402
from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime  # noqa: E402
from mindspore_rl.runtime.rank.state import RankState  # noqa: E402

SIZE, BYTES_PER_S, CHECKPOINTS, ENVS, STEPS = 1 << 14, 14e6, 5, 4, 5
RATE = BYTES_PER_S / (2 * 4 * SIZE)
"""Records a second."""


class Paced(gymnasium.Env):
    """An environment whose step ends when its record is due."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (SIZE,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        if not hasattr(self, "_known"):
            self._known = self.np_random.uniform(-1.0, 1.0, (16, SIZE)).astype(np.float32)
            self._steps, self._began = 0, time.monotonic()
        return self._known[self._steps % 16], {}

    def step(self, action):
        """See `gymnasium.Env`."""
        self._steps += 1
        due = self._began + self._steps * ENVS / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        return self._known[self._steps % 16], 1.0, False, self._steps % 1000 == 0, {}


def main() -> None:
    """Prints the rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300.0, help="in which the replay fills")
    seconds = parser.parse_args().seconds
    spent: list[tuple[float, float]] = []
    for owner, name in ((FragmentRuntime, "save"), (RankState, "save_ahead")):
        setattr(owner, name, _timed(getattr(owner, name), spent))
    records = int(seconds * RATE) // (ENVS * STEPS) * ENVS * STEPS
    config = {"num_envs": ENVS, "num_steps": STEPS, "n_step": 1, "replay_size": records}
    config |= {"learning_starts": STEPS * ENVS, "updates": 1, "batch_size": ENVS}
    words = {"env": f"{__file__}:Paced", "total_steps": records, "stop_return": float("nan")}
    with tempfile.TemporaryDirectory(dir=ROOT) as folder, contextlib.redirect_stdout(sys.stderr):
        words |= {"run_dir": Path(folder) / "run", "checkpoint_every": seconds / CHECKPOINTS}
        train("dqn", policy="MultipleLearners", workers=1, config=config, quiet=True, **words)
    (_, start), *calls = spent  # the first checkpoint is before the first iteration
    stood = sum(end - begin for begin, end in calls)
    print(json.dumps({"rate": 60 * stood / (calls[-1][1] - start)}))


def _timed(method: Callable, spent: list[tuple[float, float]]) -> Callable:
    def timed(self: object) -> None:
        began = time.monotonic()
        method(self)
        spent.append((began, time.monotonic()))

    return timed


if __name__ == "__main__":
    main()
