"""Kills workers at chosen moments, many times in a row: the run's result does not change.

The moments come from the stamps that workers write; a victim's last stamp, read after its death,
says what it was doing.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from runs import ended, start, workers

from mindspore_rl.plan.plan import load_plan
from mindspore_rl.plan.stages import Stages
from mindspore_rl.runtime.checkpoint import list_checkpoints, load
from mindspore_rl.runtime.heartbeat import ROW, STAMPS_FILE

ITERATIONS = {"native": 20_000, "mindspore": 600}
MOMENTS = ("start", "rollout", "collective", "checkpoint")
KILLS_EACH = 5
START_S = {"native": 2.5, "mindspore": 8.0}  # time of a rank's start; a later kill hits training
LIFE_S = 240.0
OPTIONS = (
    *("--policy", "GPUOnly", "--workers", "2", "--env", "graph:CartPole-v1"),
    *("num_steps=16", "update_epochs=1"),
    *("--checkpoint-every", "0.3", "--timeout", "120"),
)
CELL, CHECKPOINT = "cell iteration of loop", "a checkpoint"


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Killer:
    """Kills the workers of one run."""

    run: subprocess.Popen
    folder: Path
    rng: random.Random
    start_s: float
    pids: dict[int, int] = field(default_factory=dict)
    segments: set[str] = field(default_factory=set)

    def next_life(self) -> None:
        """Waits until both ranks have new processes."""
        earlier = set(self.pids.values())
        deadline = time.monotonic() + LIFE_S
        while time.monotonic() < deadline:
            found = {}
            for worker in workers(self.run):
                try:
                    found[int(worker.environ()["PMI_RANK"])] = worker.pid
                except (psutil.Error, KeyError):
                    continue
            if len(found) == 2 and not earlier & set(found.values()):
                self.pids = found
                return
            assert self.run.poll() is None, self.run.communicate()
            time.sleep(0.05)
        raise AssertionError("no restart")

    def stamp(self, rank: int) -> tuple[int, str]:
        """Returns a rank's iteration and stage."""
        rows = (self.folder / STAMPS_FILE).read_bytes()
        if len(rows) < 2 * ROW.size:
            return -1, ""  # being rewritten
        iteration, stage, _ = ROW.unpack_from(rows, rank * ROW.size)
        return iteration, self.stages[stage]

    @property
    def stages(self) -> list[str]:
        return Stages(load_plan(self.folder)).words

    def wait_for(self, rank: int, stage: str) -> None:
        """Waits until a rank is at a stage of an iteration after its first."""
        index, first = self.stages.index(stage), None
        path = self.folder / STAMPS_FILE
        deadline = time.monotonic() + LIFE_S
        while time.monotonic() < deadline:
            rows = path.read_bytes()
            if len(rows) == 2 * ROW.size:
                iteration, now, _ = ROW.unpack_from(rows, rank * ROW.size)
                if iteration >= 0 and first is None and now == self.stages.index(CELL):
                    first = iteration
                if first is not None and iteration > first and now == index:
                    return
            assert psutil.pid_exists(self.pids[rank]), "it ended by itself"
        raise AssertionError(f"rank {rank} never got to {stage}")

    def kill(self, moment: str) -> str:
        """Kills one rank at a moment. Returns: the moment of its death, one of MOMENTS."""
        self.next_life()
        victim = 0 if moment == "checkpoint" else self.rng.randrange(2)  # the rank that writes
        pid, other = self.pids[victim], self.pids[1 - victim]
        stopped = False
        if moment == "start":
            time.sleep(self.rng.uniform(0.0, self.start_s))
        elif moment == "checkpoint":
            self.wait_for(victim, CHECKPOINT)
        else:
            self.wait_for(victim, CELL)
            if moment == "collective":  # it cannot finish without the other
                os.kill(other, signal.SIGSTOP)
                time.sleep(0.5)
                stopped = True
        maps = Path(f"/proc/{pid}/maps").read_text()
        self.segments |= set(re.findall(r"/dev/shm/(mpich_\w+)", maps))
        os.kill(pid, signal.SIGKILL)
        while _runs(pid):
            time.sleep(0.001)
        iteration, stage = self.stamp(victim)
        if stopped:
            os.kill(other, signal.SIGCONT)
        print(f"{moment}: rank {victim} died at iteration {iteration}, {stage}", flush=True)
        if stage == CHECKPOINT:
            return "checkpoint"
        if stage == CELL:
            return "collective" if stopped else "rollout"
        return "start" if stage in ("starting", "cell reset of loop") else stage


def left_over(folder: Path, segments: set[str]) -> list[str]:
    """Returns what a run left: processes, shared memory, and half-written files."""
    found = [f"/dev/shm/{name}" for name in segments if Path("/dev/shm", name).exists()]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if str(folder).encode() in (process / "environ").read_bytes():
                    found.append(f"process {process.name}")
            except OSError:
                continue
    return found + [str(path) for path in folder.rglob("*.tmp")]


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_kills_in_a_row(tmp_path, cells):
    iterations = ITERATIONS[cells]
    options = (*OPTIONS, "--cells", cells, "--total-steps", str(16 * 8 * iterations))
    final = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        began = time.monotonic()
        run = start(folder, *options, "--quiet", "--max-restarts", "40")
        counts: Counter[str] = Counter()
        if name == "killed":
            killer = Killer(run, folder / "run", random.Random(0), START_S[cells])
            wanted = list(MOMENTS * KILLS_EACH)
            killer.rng.shuffle(wanted)
            while wanted:
                at = killer.kill(wanted[0])
                counts[at] += 1
                if at in wanted:
                    wanted.remove(at)
            assert killer.segments
        code, _, err = ended(run, 600.0)
        assert code == 0, err
        assert err.count("restarting from") == counts.total()
        assert left_over(folder / "run", killer.segments if counts else set()) == []
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        done = [json.loads(line)["iteration"] for line in lines]
        assert done == list(range(1, iterations + 1))
        final.append(load(list_checkpoints(folder / "run" / "checkpoints")[-1]))
        print(name, dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    (arrays, meta), (others, other_meta) = final
    assert meta["iteration"] == other_meta["iteration"] == iterations
    assert arrays.keys() == others.keys()
    for name in arrays:
        assert arrays[name].tobytes() == others[name].tobytes(), name
