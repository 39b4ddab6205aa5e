"""The number of ranks that fit on a machine, and their time limit to start."""

import resource
from dataclasses import dataclass

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import FragmentPlan
from mindspore_rl.platform import resources
from mindspore_rl.runtime.coordinator import admission


@dataclass
class Job:
    """A job with some learners, and as many actors that need no MindSpore."""

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
    alone = admission.start_timeout_s(Job(1), 2)
    assert alone == admission.start_timeout_s(Job(2), 2) == 300
    assert admission.start_timeout_s(Job(32), 2) == 16 * alone
    assert admission.start_timeout_s(Job(32, here=4), 2) == 2 * alone
    assert admission.start_timeout_s(Job(32, device="GPU"), 2) == 1800


def test_more_ranks_than_there_is_memory_for_are_refused():
    assert admission.check_memory(Job(32), 32 * admission.STARTING_BYTES) == ""
    warning = admission.check_memory(Job(32), 32 * admission.STARTING_BYTES - 1)
    assert warning.startswith("32 ranks take 14400 MiB of memory, and 14399 MiB are free: if one")
    assert admission.check_memory(Job(32), 32 * admission.RANK_BYTES) != ""
    with pytest.raises(MsrlError, match="32 ranks take at least 6080 MiB .* 6079 MiB are free"):
        admission.check_memory(Job(32), 32 * admission.RANK_BYTES - 1)
    assert admission.check_memory(Job(32, here=4), 4 * admission.STARTING_BYTES) == ""
    assert admission.check_memory(Job(1, in_one_process=True), 0) == ""


def test_a_limit_of_addresses_that_mindspore_would_abort_under_is_refused():
    admission.check_address_space(resources.address_space())
    admission.check_address_space(admission.ADDRESS_BYTES)
    with pytest.raises(MsrlError, match="1,000 MiB of addresses here, .*ulimit -v unlimited"):
        admission.check_address_space(1000 << 20)


def test_too_few_descriptors_are_refused_and_a_limit_that_may_be_raised_is(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
        admission.check_descriptors(4)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    with pytest.raises(MsrlError, match="40 files open here, and a job of 4 ranks needs 64: raise"):
        admission.check_descriptors(4)


def kernel(root, groups, mounts, files):
    """Makes the kernel's files for a process in some groups; 100 MiB are free."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemAvailable: {100 << 10} kB\nSwapFree: 0 kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("top", ["/", "/machine/a"])
@pytest.mark.parametrize("tight", [0, 1, 2])
def test_the_tightest_of_nested_groups_counts(tmp_path, top, tight):
    folders = ["sys/fs/cgroup", "sys/fs/cgroup/user", "sys/fs/cgroup/user/job"]
    files = {}
    for number, folder in enumerate(folders):
        limit = 50 << 20 if number == tight else 80 << 20
        files[f"{folder}/memory.max"] = f"{limit}\n" if number >= tight else "max\n"
        files[f"{folder}/memory.current"] = f"{20 << 20}\n"
        files[f"{folder}/memory.stat"] = f"anon 5\ninactive_file {8 << 20}\n"
    mount = f"30 23 0:26 {top} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
    kernel(tmp_path, f"0::{top.rstrip('/')}/user/job\n", mount, files)
    assert resources.available_memory(tmp_path) == 38 << 20


def test_groups_of_the_first_version_count(tmp_path):
    folder = "sys/fs/cgroup/memory"
    files = {
        f"{folder}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{folder}/memory.usage_in_bytes": "5\n",
        f"{folder}/memory.stat": "cache 1\ninactive_file 1\ntotal_inactive_file 5\n",
        f"{folder}/docker/memory.limit_in_bytes": f"{30 << 20}\n",
        f"{folder}/docker/memory.usage_in_bytes": f"{10 << 20}\n",
        f"{folder}/docker/memory.stat": f"inactive_file 1\ntotal_inactive_file {4 << 20}\n",
    }
    mounts = (
        "31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    kernel(tmp_path, "5:cpu:/other\n4:memory:/docker\n0::/\n", mounts, files)
    assert resources.available_memory(tmp_path) == 24 << 20


def test_there_is_some_room_here():
    assert resources.available_cores() >= 1
    assert admission.RANK_BYTES < resources.available_memory() < 1 << 50
