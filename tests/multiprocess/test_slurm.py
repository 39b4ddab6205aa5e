"""Jobs under Slurm: two real nodes, each on a network namespace of this machine."""

import json
import os
import time
from pathlib import Path

import pytest

from mindspore_rl.runtime.checkpoint import list_checkpoints, load
from scripts import network_hosts
from tests.multiprocess import slurm

ROOT = Path(__file__).parents[2]
REASON = slurm.why_not() or network_hosts.why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(bool(REASON), reason=REASON or "-"),
    pytest.mark.timeout(400),
]
VENV = ROOT / ".venv/bin/msrl"
MORE_THAN_ENOUGH = 100_000_000


@pytest.fixture
def cluster(tmp_path):
    """Two nodes; no process of a job may remain on them at the end of a test."""
    if not VENV.is_file():
        pytest.skip(
            f"no {VENV}, which scripts/train_slurm.sh starts: scripts/setup_venv.sh makes it"
        )
    folder = tmp_path / "slurm"
    folder.mkdir(mode=0o755)
    with network_hosts.Network(2) as network, slurm.Slurm(network, folder) as made:
        yield made
        deadline = time.monotonic() + 10
        while left := _of_jobs(network):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


def _of_jobs(network) -> list[str]:
    found = []
    for name in network.names:
        for pid in network.processes(name):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if not any(daemon in line for daemon in ("slurmd", "slurmctld", "slurmscriptd")):
                found.append(line)
    return found


def submit(cluster, tmp_path: Path, steps: int, *arguments: str, sbatch: tuple = ()) -> str:
    """Submits a job of two ranks, `tmp_path/run`. Returns: its number."""
    words = ("--nodes", "2", "--ntasks-per-node", "1", "--output", str(tmp_path / "log"), *sbatch)
    job = ("ppo", "--policy", "SingleLearnerCoarse", "--run-dir", str(tmp_path / "run"))
    script = "scripts/train_slurm.sh"
    given = ("--total-steps", str(steps), "num_steps=16", "--stop-return", "nan", *arguments)
    said = cluster.run("sbatch", *words, script, *job, *given, cwd=ROOT)
    assert said.startswith("Submitted batch job"), said
    return said.split()[-1]


def wait_for(cluster, job: str, tmp_path: Path, *states: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while cluster.state(job) not in states:
        log = tmp_path / "log"
        assert time.monotonic() < deadline, (cluster.state(job), log.exists() and log.read_text())
        time.sleep(0.2)


def wait_for_training(cluster, tmp_path: Path, timeout_s: float = 120) -> None:
    metrics = tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + timeout_s
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.1)


def test_a_job_trains_on_two_nodes(cluster, tmp_path):
    job = submit(cluster, tmp_path, 4 * 16 * 8)
    wait_for(cluster, job, tmp_path, "COMPLETED")
    log = (tmp_path / "log").read_text()
    assert "rank 0: actor on host0" in log
    assert "rank 1: learner on host1" in log
    assert _last_iteration(tmp_path) == 4
    counted = json.loads((tmp_path / "run/communication.json").read_text())["program"]
    assert counted
    assert all(found["calls"] == found["predicted_calls"] for found in counted.values())
    # slurmd of the other node started the second rank, in a step of the job.
    assert f"StepId={job}.0" in (cluster.folder / "host1.log").read_text()


def test_a_signal_to_the_batch_step_ends_a_job_with_a_checkpoint(cluster, tmp_path):
    job = submit(cluster, tmp_path, MORE_THAN_ENOUGH)
    wait_for_training(cluster, tmp_path)
    cluster.run("scancel", "--batch", "--signal", "TERM", job)
    wait_for(cluster, job, tmp_path, "FAILED", "COMPLETED")  # exit code 130 of an interruption
    assert "interrupted: " in _ends(tmp_path)
    assert (
        _last_iteration(tmp_path)
        == len((tmp_path / "run/metrics.jsonl").read_text().split("\n")) - 1
    )


def test_a_time_limit_ends_a_job_with_a_checkpoint(cluster, tmp_path):
    job = submit(cluster, tmp_path, MORE_THAN_ENOUGH, sbatch=("--time", "3"))
    wait_for(cluster, job, tmp_path, "FAILED", "COMPLETED", timeout_s=150)
    assert "interrupted: " in _ends(tmp_path)
    assert _last_iteration(tmp_path) > 0


def test_scancel_leaves_the_last_good_checkpoint(cluster, tmp_path):
    job = submit(cluster, tmp_path, MORE_THAN_ENOUGH, "--checkpoint-every", "0")
    wait_for_training(cluster, tmp_path)
    cluster.run("scancel", job)
    wait_for(cluster, job, tmp_path, "CANCELLED", timeout_s=slurm.KILL_WAIT_S)
    _ends(tmp_path)
    assert _last_iteration(tmp_path) > 0


@pytest.mark.kill
def test_a_node_that_goes_down_ends_the_job(cluster, tmp_path):
    job = submit(cluster, tmp_path, MORE_THAN_ENOUGH, "--checkpoint-every", "0")
    wait_for_training(cluster, tmp_path)
    cluster.lose(1)
    wait_for(cluster, job, tmp_path, "FAILED", "NODE_FAIL", timeout_s=60)
    log = _ends(tmp_path)
    assert "rank 1 (learner[0] on host1)" in log
    assert "Last good checkpoint" in log
    assert _last_iteration(tmp_path) > 0


def _last_iteration(tmp_path: Path) -> int:
    return load(list_checkpoints(tmp_path / "run/checkpoints")[-1])[1]["iteration"]


def _ends(tmp_path: Path) -> str:
    """Returns a job's output when no process remains that could add to it."""
    log, deadline = tmp_path / "log", time.monotonic() + 30
    before = -1
    while (size := os.path.getsize(log)) != before:
        assert time.monotonic() < deadline
        before = size
        time.sleep(2)
    return log.read_text()
