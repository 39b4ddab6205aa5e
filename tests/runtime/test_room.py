"""How many ranks a machine has room for, and how long they may take to start."""

from dataclasses import dataclass

import pytest

from mindspore_rl import machine
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import FragmentPlan
from mindspore_rl.runtime.coordinator import room


@dataclass
class Job:
    """So many learners, and as many actors that need no MindSpore."""

    learners: int
    device: str = "CPU"
    here: int = 1000
    in_one_process: bool = False

    @property
    def fragments(self):
        shares = tuple((i, i + 1) for i in range(self.learners))
        return tuple(
            FragmentPlan(name, "", first, shares, (), (), (), needs_tensors=name == "learner")
            for name, first in (("learner", 0), ("actor", self.learners))
        )

    def same_host(self, rank, other):
        return rank < self.here


def test_ranks_that_share_cores_have_longer_to_start():
    alone = room.start_timeout_s(Job(1), 2)
    assert alone == room.start_timeout_s(Job(2), 2) == 300
    assert room.start_timeout_s(Job(32), 2) == 16 * alone
    assert room.start_timeout_s(Job(32, here=4), 2) == 2 * alone
    assert room.start_timeout_s(Job(32, device="GPU"), 2) == 1800


def test_more_ranks_than_there_is_memory_for_are_refused():
    assert room.check_memory(Job(32), 32 * room.STARTING_BYTES) == ""
    warning = room.check_memory(Job(32), 32 * room.STARTING_BYTES - 1)
    assert warning.startswith("32 ranks take 14400 MiB of memory, and 14399 MiB are free: if one")
    assert room.check_memory(Job(32), 32 * room.RANK_BYTES) != ""
    with pytest.raises(MsrlError, match="32 ranks take at least 6080 MiB .* 6079 MiB are free"):
        room.check_memory(Job(32), 32 * room.RANK_BYTES - 1)
    assert room.check_memory(Job(32, here=4), 4 * room.STARTING_BYTES) == ""
    assert room.check_memory(Job(1, in_one_process=True), 0) == ""


def test_a_limit_of_addresses_that_mindspore_would_abort_under_is_refused():
    room.check_address_space(machine.address_space())
    room.check_address_space(room.ADDRESS_BYTES)
    with pytest.raises(MsrlError, match="1,000 MiB of addresses here, .*ulimit -v unlimited"):
        room.check_address_space(1000 << 20)


def test_there_is_some_room_here():
    assert machine.available_cores() >= 1
    assert room.RANK_BYTES < machine.available_memory() < 1 << 50
