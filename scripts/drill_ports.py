#!/usr/bin/env python3
"""Connects foreign clients to every port of a running job, and checks its outcome.

    scripts/drill_ports.py                          # a table in Markdown, takes minutes
    scripts/drill_ports.py --ports link hydra       # only some ports

Each cell of the table is a job with restarts. Foreign clients connect to one of its ports. The job
must end in time, with all of its iterations or with an exit code that reports a failure. The exit
code is 1 if a job did not.
"""

import argparse
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS, NUM_STEPS, NUM_ENVS = 12, 8, 2
DEADLINE_S = 300.0
ANSWER_S = 1.0
"""A port that does not accept a connection within this time accepts none."""
KEPT, SHORT = 60, 100
LINE_BYTES = 1 << 24
GATE = "gate"
"""A file in a job's working folder; the environment waits until it exists."""


class Gated:
    """An environment that steps slowly, then waits for the gate: the job cannot end early."""

    pace_s = 0.01

    def __init__(self, env_indices: range, seed: int) -> None:
        self.size, self.count = len(env_indices), 0
        self.spec = EnvironmentSpec("gated", (3,), Discrete(2), 100, None, False)

    def reset(self) -> np.ndarray:
        """Returns obs `[B, 3]`."""
        return np.zeros((self.size, 3), np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the action as the reward."""
        self.count += 1
        while not Path(GATE).exists():
            time.sleep(self.pace_s)
            if self.count < (ITERATIONS - 1) * NUM_STEPS:
                break
        obs = np.full((self.size, 3), self.count % 7, np.float32)
        truncated = np.full(self.size, self.count % 5 == 0)
        terminated = np.zeros(self.size, bool)
        return obs, obs.copy(), action.astype(np.float32), terminated, truncated

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the state for a checkpoint."""
        return {"count": np.array([self.count])}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restores a state from a checkpoint."""
        self.count = int(state["count"][0])

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


# ---- strangers -----------------------------------------------------------------------------------

Address = tuple[str, int]


def _talk(address: Address, text: bytes) -> socket.socket:
    """Connects, sends bytes and closes."""
    stranger = socket.create_connection(address, ANSWER_S)
    with stranger, contextlib.suppress(OSError):  # the job closes it at the first wrong byte
        stranger.sendall(text)
    return stranger


def _close(address: Address) -> Iterator[socket.socket]:
    for _ in range(SHORT):
        yield _talk(address, b"")


def _say_nothing(address: Address) -> Iterator[socket.socket]:
    for _ in range(KEPT):
        yield socket.create_connection(address, ANSWER_S)


def _random_bytes(address: Address) -> Iterator[socket.socket]:
    noise = random.Random(1)
    for size in range(SHORT):
        yield _talk(address, noise.randbytes(1 + size * size))


def _browse(address: Address) -> Iterator[socket.socket]:
    for _ in range(SHORT):
        yield _talk(address, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


def _long_line(address: Address) -> Iterator[socket.socket]:
    yield _talk(address, b"A" * LINE_BYTES)


STRANGERS: dict[str, Callable[[Address], Iterator[socket.socket]]] = {
    "connect and close": _close,
    "say nothing": _say_nothing,
    "random bytes": _random_bytes,
    "HTTP": _browse,
    "16 MB in a line": _long_line,
}


# ---- jobs and their ports ------------------------------------------------------------------------


def _ports(process: psutil.Process) -> set[int]:
    connections = process.net_connections("tcp")
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}


def _below(run: psutil.Process, name: str) -> list[psutil.Process]:
    """Returns the processes of a run with a program name, or an argument, on their command line."""
    found = []
    for process in run.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if line and (Path(line[0]).name == name or name in line[1:4]):
                found.append(process)
    return found


def _ports_below(run: psutil.Process, name: str) -> set[int]:
    found: set[int] = set()
    for process in _below(run, name):
        with contextlib.suppress(psutil.Error):
            found |= _ports(process)
    return found


def _coordinator(run: psutil.Process) -> set[int]:
    return _ports_below(run, "mindspore_rl.cli")


def _hydra(run: psutil.Process) -> set[int]:
    return _ports_below(run, "mpiexec")


def _ranks(run: psutil.Process) -> set[int]:
    return _ports_below(run, "mindspore_rl.runtime.rank.worker") - _hydra(run)


def _scheduler(run: psutil.Process) -> set[int]:
    found: set[int] = set()
    for process in run.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("MS_ROLE") == "MS_SCHED":
                found |= _ports(process)
    return found


@dataclass(frozen=True)
class Port:
    """A port of a job, or several of one kind.

    Attributes:
        name: the name in the table.
        find: returns the port numbers, given the process of `msrl train`.
        options: the job's options.
        variables: the job's environment variables.
        starting: True: clients connect as soon as the port exists; False: when the job trains.
    """

    name: str
    find: Callable[[psutil.Process], set[int]]
    options: tuple[str, ...] = ("--policy", "SingleLearnerCoarse", "--workers", "1")
    variables: tuple[tuple[str, str], ...] = ()
    starting: bool = False


MINDSPORE = ("--policy", "MultipleLearners", "--workers", "2", "--cells", "mindspore")
PORTS = {
    "link": Port("the coordinator's link", _coordinator),
    "hydra-start": Port("`mpiexec`, while ranks start", _hydra, starting=True),
    "hydra": Port("`mpiexec`, in training", _hydra),
    "ucx": Port("UCX's, with `UCX_TLS=self,tcp`", _ranks, variables=(("UCX_TLS", "self,tcp"),)),
    "scheduler": Port("MindSpore's scheduler", _scheduler, MINDSPORE),
    "group": Port("MindSpore's group", _ranks, MINDSPORE),
}


def start(folder: Path, options: tuple[str, ...], variables: dict[str, str]) -> subprocess.Popen:
    """Starts a job in `folder/run`, which ends once `folder/gate` exists."""
    steps = str(ITERATIONS * NUM_STEPS * NUM_ENVS)
    train = [sys.executable, "-m", "mindspore_rl.cli", "train", "ppo", *options]
    train += ["--env", f"{__file__}:Gated", "--run-dir", str(folder / "run")]
    train += ["--total-steps", steps, "--stop-return", "nan", "--quiet"]
    train += [f"num_steps={NUM_STEPS}", f"num_envs={NUM_ENVS}", "num_minibatches=1"]
    return subprocess.Popen(
        train,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
    )


def lines(folder: Path) -> list[dict]:
    """Returns the metrics of a job."""
    path = folder / "run" / "metrics.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def wait_until(condition: Callable[[], object], run: subprocess.Popen, pause_s: float) -> None:
    """Waits until a condition holds. Raises: RuntimeError: the job ended, or it took too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if run.poll() is not None or time.monotonic() > deadline:
            run.kill()
            raise RuntimeError(f"the job did not come so far: {run.communicate()[1]}")
        time.sleep(pause_s)


# ---- the drill -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The outcome of foreign clients at a port.

    Attributes:
        words: the text for the table.
        right: True if the job ended in time and reported the truth.
    """

    words: str
    right: bool


def drill(port: Port, strangers: str, folder: Path) -> Result:
    """Starts a job, connects foreign clients to a port, and waits for the job's end."""
    limits = ("--max-restarts", "3", "--timeout", "15", "--start-timeout", "90")
    run = start(folder, (*port.options, *limits), dict(port.variables))
    watched = psutil.Process(run.pid)
    if port.starting:
        wait_until(lambda: port.find(watched), run, 0.002)
    else:
        wait_until(lambda: lines(folder), run, 0.05)
    met: list[socket.socket] = []
    for number in port.find(watched):
        with contextlib.suppress(OSError):  # the job has ended, or refuses connections
            met.extend(STRANGERS[strangers](("127.0.0.1", number)))
    (folder / GATE).touch()
    try:
        _, err = run.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        return Result("**hangs**", False)
    finally:
        for stranger in met:
            stranger.close()
    done = lines(folder)[-1]["iteration"] if lines(folder) else 0
    return judged(run.returncode, done, err, bool(met))


def judged(code: int, done: int, err: str, met: bool) -> Result:
    """Judges the outcome of a job.

    Args:
        code: its exit code.
        done: the number of its iterations.
        err: its output on stderr.
        met: True if the port accepted a connection.
    """
    causes = [line for line in re.findall(r"^msrl: (.*)", err, re.M) if "restarting" not in line]
    cause = causes[0] if causes else ""
    if code == 0 and done != ITERATIONS:
        return Result(f"**exit code 0 after {done} iterations**", False)
    if code < 0 or "Traceback (most recent call last):\n  File" in err.partition("msrl: ")[0]:
        return Result(f"**exit code {code}**, {err.strip().splitlines()[-1:]}", False)
    if code:
        return Result(f"ends with exit code {code}: {cause}", True)
    if causes:
        return Result(f"fails and resumes: {cause}", True)
    return Result("nothing" if met else "not heard", True)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ports", nargs="+", choices=PORTS, default=list(PORTS))
    args = parser.parse_args()
    print(f"| port | {' | '.join(STRANGERS)} |\n|---{'|---' * len(STRANGERS)}|")
    right = True
    for port in (PORTS[name] for name in args.ports):
        cells = []
        for strangers in STRANGERS:
            with tempfile.TemporaryDirectory() as folder:
                result = drill(port, strangers, Path(folder))
            cells.append(result.words)
            right = right and result.right
        print(f"| {port.name} | {' | '.join(cells)} |", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
