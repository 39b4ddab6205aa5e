"""Hosts that come back or are out of reach: network namespaces on this machine, also over ssh."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from mindspore_rl.communication.link import SILENCE_S
from scripts import network_hosts
from tests.chaos.cases import ENDLESS, REPLICAS, SHORT
from tests.chaos.jobs import read
from tests.chaos.neighbours import hosts

REASON, NO_SSH = network_hosts.why_not(), network_hosts.why_not(ssh=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(bool(REASON), reason=REASON or "-"),
    pytest.mark.timeout(900),
]
WORKER = "mindspore_rl.runtime.rank.worker"
ONE = ("--workers", "1")
END_S = 12.0
"""Time to end everything after a host is given up, on a busy machine."""
SILENT = "host host1 has not been heard of"


@pytest.mark.kill
def test_host_that_comes_back_is_used_again(place):
    with hosts(place, 2) as (network, job):
        there = job(*ENDLESS, *ONE, "--max-restarts", "1")
        there.train()
        log = there.run / "metrics.jsonl"
        network.cut(1)
        there.comes_to(lambda: not log.stat().st_size, "restart")  # truncated
        time.sleep(5)  # the restart cannot reach it, and waits
        network.mend(1)
        there.train()
        there.process.send_signal(signal.SIGINT)
        said = (SILENT, "restarting from", "trying again", "interrupted")
        there.check(there.wait(), 130, said=said)


def _running(network, host: int, module: str) -> list[int]:
    """Returns the processes of a host that run a module."""
    found = {pid: Path(f"/proc/{pid}/cmdline") for pid in network.processes(network.names[host])}
    return [p for p, file in found.items() if f"{module}\0".encode() in file.read_bytes()]


@pytest.mark.skipif(bool(NO_SSH), reason=NO_SSH or "-")
def test_over_ssh_ctrl_c_ends_the_job_with_a_checkpoint(place):
    with hosts(place, 2, ssh=True) as (network, job):
        there = job(*ENDLESS, *REPLICAS)
        there.train()
        assert len(_running(network, 1, WORKER)) == 1
        for pid in _running(network, 0, "mindspore_rl.cli"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        assert there.wait() == 130
        assert "interrupted: " in there.out, there.err
        assert there.newest() == read(there.run / "metrics.jsonl").count("\n")
        assert not _running(network, 0, WORKER) + _running(network, 1, WORKER)


@pytest.mark.kill
@pytest.mark.skipif(bool(NO_SSH), reason=NO_SSH or "-")
def test_workers_on_a_host_that_was_cut_off_end_by_themselves(place):
    """Over ssh, with its own processes, a host is out of the coordinator's reach."""
    with hosts(place, 2, ssh=True) as (network, job):
        there = job(*ENDLESS, *ONE)
        there.train()
        assert len(_running(network, 1, WORKER)) == 1
        network.cut(1)
        gone = SILENCE_S + END_S
        there.until(lambda: not _running(network, 1, WORKER), gone, "end by themselves")
        assert there.wait() == 1
        assert SILENT in there.err


def test_address_of_another_machine(place):
    file = place.folder / "hosts.yaml"
    addresses = "".join(
        f"  - {{name: {n}, address: 10.77.0.{i}, slots: 2}}\n" for n, i in (("a", 1), ("b", 2))
    )
    file.write_text(f"hosts:\n{addresses}")
    job = place.job((*SHORT, "--deployment", str(file)))
    job.check(job.wait(), 2, said=("start `msrl train` on the first host",))
