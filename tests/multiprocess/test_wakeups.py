"""A rank that waits for a message is woken by a sender on its host, and does without wakeups."""

import os
import subprocess
import sys

import pytest

from mindspore_rl.plan.deployment import find_mpiexec

pytestmark = pytest.mark.multiprocess
START = """
import os
import numpy as np
from mindspore_rl.communication import wakeups
from mindspore_rl.communication.mpi import MpiCommunicator
comm = MpiCommunicator()
assert comm.wakeups.reach == {0, 1, 2}
comm.spin_s = 0.0


def nothing():
    pass


"""
WOKEN = """
# Rank 0 sends only to ranks that sleep, until each wait of ranks 1 and 2 was ended by a message.
large, word = np.arange(1 << 20, dtype=np.uint8), np.zeros(1, np.uint8)
reduce = comm.channel(range(3), nothing)
for sleeper in (1, 2):
    for data in (large[:8], large):
        word[0] = 1
        while word[0] and comm.rank in (0, sleeper):
            if comm.rank == 0:
                while not comm.wakeups._asleep[sleeper].value:
                    os.sched_yield()
                comm.send(sleeper, 1, data)
                comm.receive(sleeper, 2, word, nothing)
            else:
                before, got = comm.wakeups.woken, np.zeros_like(data)
                comm.first_of([(0, 1)], nothing)
                word[0] = comm.wakeups.woken == before
                comm.receive(0, 1, got, nothing)
                assert (got == data).all()
                comm.send(0, 2, word)
# A sum that rank 0 enters when the others sleep, until both were woken.
while True:
    if comm.rank == 0:
        while not all(comm.wakeups._asleep[rank].value for rank in (1, 2)):
            os.sched_yield()
    before = comm.wakeups.woken
    assert reduce("sum", np.ones(5, np.float32)).tolist() == [3.0] * 5
    woken = comm.rank == 0 or comm.wakeups.woken > before
    if reduce("min", np.array([woken], np.float32))[0]:
        break
"""
WITHOUT = """
class Closed:  # to one rank the memory of another is closed, as between containers
    def __getattr__(self, name):
        return getattr(os, name)
    def open(self, *_):
        raise PermissionError
if comm.rank == 1:
    wakeups.os = Closed()
comm.wakeups = wakeups.Wakeups(comm._comm)
assert not comm.wakeups.reach
for number in range(20):
    data = np.full(100, number, np.uint8)
    comm.send((comm.rank + 1) % 3, 1, data)
    got = np.zeros_like(data)
    comm.receive((comm.rank - 1) % 3, 1, got, nothing)
    assert (got == data).all()
assert not comm.wakeups.woken
assert not any(word.value for i, word in enumerate(comm.wakeups._asleep) if i != comm.rank)
"""
END = "comm.close()"


@pytest.mark.parametrize("code", [WOKEN, WITHOUT], ids=["woken", "without"])
def test_ranks_that_wait(code):
    command = [find_mpiexec(), "-launcher", "fork", "-iface", "lo", "-n", "3"]
    program = [sys.executable, "-c", f"{START}{code}{END}"]
    environment = {**os.environ, "UCX_TLS": "self,sysv"}
    subprocess.run([*command, *program], env=environment, check=True, timeout=200)
