"""Kills every process of a real run, at its start, middle and near its end: the run resumes."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from runs import descendants, ended, start

from mindspore_rl.runtime.checkpoint import list_checkpoints, load
from mindspore_rl.runtime.coordinator import reaper
from mindspore_rl.runtime.heartbeat import ROW, STAMPS_FILE

MOMENTS = {"start": 0.0, "middle": 0.3, "end": 0.8}  # fractions of the iterations
ITERATIONS = {"native": 2000, "mindspore": 100}
MPI = ("the reaper of mpiexec", "mpiexec", "hydra_pmi_proxy", "rank 0", "rank 1")
SCHEDULER = ("the reaper of the scheduler", "the scheduler")
LIFE_S = 400.0  # for a busy machine
OPTIONS = (
    *("--policy", "GPUOnly", "--workers", "2", "--env", "graph:CartPole-v1", "--quiet"),
    *("num_steps=16", "update_epochs=1", "--checkpoint-every", "0.3", "--max-restarts", "3"),
)


def cases():
    for roles, cells in ((("the coordinator", *MPI), "native"), (SCHEDULER, "mindspore")):
        for role in roles:
            for moment in MOMENTS:
                yield pytest.param(cells, role, moment, id=f"{role}-{moment}")


def role_of(process: psutil.Process) -> str:
    name, variables = process.name(), process.environ()
    of_scheduler = variables.get("MS_ROLE") == "MS_SCHED"
    if name == reaper.NAME:
        return "the reaper of the scheduler" if of_scheduler else "the reaper of mpiexec"
    if of_scheduler:
        return "the scheduler"
    return f"rank {variables['PMI_RANK']}" if "PMI_RANK" in variables else name


def find(run: subprocess.Popen, role: str) -> psutil.Process | None:
    if role == "the coordinator":
        return psutil.Process(run.pid) if descendants(run, "mindspore_rl") else None
    for process in psutil.Process(run.pid).children(recursive=True):
        try:
            if role_of(process) == role:
                return process
        except psutil.Error:
            continue
    return None


def iteration(folder: Path) -> int:
    """Returns rank 0's iteration."""
    path = folder / "run" / STAMPS_FILE
    rows = path.read_bytes() if path.exists() else b""
    return max(0, ROW.unpack_from(rows)[0]) if rows else 0


def left_over(folder: Path, before: set[Path]) -> list[str]:
    """Returns the processes and files that a run left, after it had the time to end."""
    mark = f"MSRL_RUN={folder / 'run'}".encode()
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        found = [f"process {pid}" for pid in reaper.marked(mark)]
        found += [str(path) for path in reaper.shared_segments() - before]
        if not found:
            break
        time.sleep(0.2)
    return found + [str(path) for path in folder.rglob("*.tmp")]


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("cells", "role", "moment"), list(cases()))
def test_killed_process(tmp_path, cells, role, moment):
    total = ITERATIONS[cells]
    before = reaper.shared_segments()
    steps = ("--total-steps", str(16 * 8 * total))
    run = start(tmp_path, *OPTIONS, "--cells", cells, *steps)
    deadline = time.monotonic() + LIFE_S
    while (victim := find(run, role)) is None or iteration(tmp_path) < MOMENTS[moment] * total:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.kill()
    if role == "the coordinator":
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    else:
        code, _, err = ended(run, LIFE_S)
        assert code == 0, err
        assert err.count("restarting from") == 1
        final = load(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])[1]
        assert final["iteration"] == total
    assert left_over(tmp_path, before) == []
