"""Jobs on several hosts: network namespaces on this machine, connected by cables or over ssh."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mindspore_rl.communication.link import SILENCE_S
from mindspore_rl.runtime.checkpoint import list_checkpoints, load

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("network_hosts", ROOT / "scripts/network_hosts.py")
network_hosts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(network_hosts)
REASON, NO_SSH = network_hosts.why_not(), network_hosts.why_not(ssh=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(bool(REASON), reason=REASON or "-"),
    pytest.mark.timeout(900),
]
TRAIN = (sys.executable, "-m", "mindspore_rl.cli", "train", "ppo", "num_steps=16", "--quiet")
WORKER = "mindspore_rl.runtime.rank.worker"
ITERATIONS = 4
END_S = 12.0
"""Time to end everything after a host is given up, on a busy machine."""


@pytest.fixture
def network():
    """Makes networks; their hosts must have no processes at the end of a test."""
    made = []

    def make(*args, **kwargs):
        made.append(network_hosts.Network(*args, **kwargs))
        return made[-1].__enter__()

    yield make
    left = {name: net.processes(name) for net in made for name in net.names}
    for net in made:
        net.__exit__()
    assert not any(left.values()), left


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen:
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def train_on(network, tmp_path: Path, *arguments: str, slots: int = 1) -> subprocess.Popen:
    """Starts a run on all hosts, `tmp_path/run`."""
    file = tmp_path / "hosts.yaml"
    network.write_deployment(file, slots=slots)
    train = [*TRAIN, "--run-dir", str(tmp_path / "run"), "--deployment", str(file), *arguments]
    return start(network.command(0, train), network.environment())


def final_state(run: Path) -> tuple[dict, dict]:
    return load(list_checkpoints(run / "checkpoints")[-1])


def wait_until(
    condition: Callable[[], object], run: subprocess.Popen | None, timeout_s: float
) -> None:
    """Waits until a condition holds, but no longer than the run lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert run is None or run.poll() is None, run.communicate()
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.1)


def wait_for_training(run: subprocess.Popen, folder: Path) -> None:
    log = folder / "metrics.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size, run, 300)


@pytest.mark.parametrize(
    ("policy", "hosts", "workers"),
    [
        ("SingleLearnerCoarse", 3, 2),
        ("SingleLearnerFine", 2, 1),
        ("MultipleLearners", 2, 2),
        ("GPUOnly", 3, 3),
    ],
)
def test_equals_a_single_host(network, tmp_path, policy, hosts, workers):
    steps = str(ITERATIONS * 16 * 8)
    job = ("--policy", policy, "--workers", str(workers), "--total-steps", steps)
    run = train_on(network(hosts), tmp_path, *job)
    _, err = run.communicate(timeout=400)
    assert run.returncode == 0, err
    alone = start([*TRAIN, "--run-dir", str(tmp_path / "alone"), *job], dict(os.environ))
    _, err = alone.communicate(timeout=400)
    assert alone.returncode == 0, err
    (arrays, meta), (expected, _) = final_state(tmp_path / "run"), final_state(tmp_path / "alone")
    assert meta["iteration"] == ITERATIONS
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.tobytes() == expected[name].tobytes(), name


@pytest.mark.kill
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "GPUOnly"])
def test_host_cut_off_ends_the_job(network, tmp_path, policy):
    net = network(2)
    workers = "2" if policy == "GPUOnly" else "1"
    job = ("--policy", policy, "--workers", workers, "--total-steps", "100000000")
    run = train_on(net, tmp_path, *job)
    wait_for_training(run, tmp_path / "run")
    net.cut(1)
    began = time.monotonic()
    _, err = run.communicate(timeout=120)
    assert time.monotonic() - began < SILENCE_S + END_S
    assert run.returncode == 1
    assert f"host host1 has not been heard of for {SILENCE_S} s" in err
    assert "Last good checkpoint" in err


@pytest.mark.kill
def test_host_that_comes_back_is_used_again(network, tmp_path):
    net = network(2)
    job = ("--policy", "SingleLearnerCoarse", "--total-steps", "100000000", "--max-restarts", "1")
    run = train_on(net, tmp_path, *job)
    wait_for_training(run, tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    net.cut(1)
    wait_until(lambda: not log.stat().st_size, run, SILENCE_S + END_S)  # restarted: truncated
    time.sleep(5)  # the restart cannot reach it, and waits
    net.mend(1)
    wait_until(lambda: log.stat().st_size, run, 300)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=120)
    assert "host host1 has not been heard of" in err
    assert "restarting from" in err
    assert "trying again" in err
    assert run.returncode == 130, err
    assert "interrupted" in out


def _running(net, host: int, module: str) -> list[int]:
    """Returns the processes of a host that run a module."""
    found = {pid: Path(f"/proc/{pid}/cmdline") for pid in net.processes(net.names[host])}
    return [p for p, file in found.items() if f"{module}\0".encode() in file.read_bytes()]


@pytest.mark.skipif(bool(NO_SSH), reason=NO_SSH or "-")
def test_over_ssh_ctrl_c_ends_the_job_with_a_checkpoint(network, tmp_path):
    net = network(2, ssh=True)
    job = ("--policy", "MultipleLearners", "--workers", "2", "--total-steps", "100000000")
    run = train_on(net, tmp_path, *job)
    wait_for_training(run, tmp_path / "run")
    assert len(_running(net, 1, WORKER)) == 1
    for pid in _running(net, 0, "mindspore_rl.cli"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted: " in out, err
    iterations = len((tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert final_state(tmp_path / "run")[1]["iteration"] == iterations
    assert not _running(net, 0, WORKER) + _running(net, 1, WORKER)
    net.end_processes(net.names[1])  # its ssh server


@pytest.mark.kill
@pytest.mark.skipif(bool(NO_SSH), reason=NO_SSH or "-")
def test_workers_on_a_host_that_was_cut_off_end_by_themselves(network, tmp_path):
    """Over ssh, with its own processes, a host is out of the coordinator's reach."""
    net = network(2, ssh=True)
    job = ("--policy", "SingleLearnerCoarse", "--total-steps", "100000000")
    run = train_on(net, tmp_path, *job)
    wait_for_training(run, tmp_path / "run")

    assert len(_running(net, 1, WORKER)) == 1
    net.cut(1)
    wait_until(lambda: not _running(net, 1, WORKER), None, SILENCE_S + END_S)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "host host1 has not been heard of" in err
    net.end_processes(net.names[1])  # its ssh server


def test_address_of_another_machine(tmp_path):
    file = tmp_path / "hosts.yaml"
    file.write_text(
        "hosts:\n  - {name: a, address: 10.77.0.1}\n  - {name: b, address: 10.77.0.2}\n"
    )
    run = start(
        [*TRAIN, "--run-dir", str(tmp_path / "run"), "--deployment", str(file)], dict(os.environ)
    )
    _, err = run.communicate(timeout=120)
    assert run.returncode == 2
    assert "start `msrl train` on the first host" in err
