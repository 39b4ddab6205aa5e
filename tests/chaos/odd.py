"""An environment that does what it should not.

The variable ODD says where, when and what: "5 40 raise", in environment 5 from its 40th step on.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

VARIABLE = "ODD"
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(1000)"
GATE = "gate"
"""A file in a job's working folder; `Gated` waits until it exists."""
GATED_STEPS = 11 * 8


def fail(env: "Odd") -> None:
    raise ValueError("the wheel fell off")


def start_others(env: "Odd") -> None:
    if env.count == env.since:
        subprocess.Popen(["sleep", "1000"])
        subprocess.run([sys.executable, "-c", DAEMON], env={}, cwd="/", check=True)


def spoil(env: "Odd") -> None:
    env.reward[env.indices == env.where] = 1e30


DEEDS = {
    "raise": fail,
    "hang": lambda env: time.sleep(1000),
    "slow": lambda env: time.sleep(0.05),
    "die": lambda env: os.kill(os.getpid(), signal.SIGKILL),
    "leak": lambda env: env.kept.append(np.ones(1 << 26)),
    "start": start_others,
    "spoil": spoil,
    "nothing": lambda env: None,
}


class Odd:
    """Observations count the steps modulo 7; rewards are 1; episodes never end.

    Its shapes are those of CartPole, so that jobs with either have the same cells.
    """

    def __init__(self, env_indices, seed):
        where, since, deed = os.environ.get(VARIABLE, "-1 0 nothing").split()
        self.where, self.since, self.deed = int(where), int(since), DEEDS[deed]
        self.indices, self.count, self.kept = np.array(env_indices), 0, []
        self.spec = EnvironmentSpec("odd", (4,), Discrete(2), 100, None, False)

    def reset(self):
        return np.zeros((len(self.indices), 4), np.float32)

    def step(self, action):
        self.count += 1
        number = len(self.indices)
        self.reward = np.ones(number, np.float32)
        if self.where in self.indices and self.count >= self.since:
            self.deed(self)
        obs = np.full((number, 4), self.count % 7, np.float32)
        return obs, obs.copy(), self.reward, np.zeros(number, bool), np.zeros(number, bool)

    def get_state(self):
        return None

    def set_state(self, state):
        raise AssertionError

    def close(self):
        pass


class Gated(Odd):
    """Steps slowly, then waits for the gate: the job cannot end early. Rewards are the actions."""

    pace_s = 0.01

    def step(self, action):
        while not Path(GATE).exists():
            time.sleep(self.pace_s)
            if self.count + 1 < GATED_STEPS:
                break
        obs, next_obs, _, terminated, _ = super().step(action)
        truncated = np.full(len(obs), self.count % 5 == 0)
        return obs, next_obs, action.astype(np.float32), terminated, truncated

    def get_state(self):
        return {"count": np.array([self.count])}

    def set_state(self, state):
        self.count = int(state["count"][0])
