"""Fixtures of all tests: MindSpore's settings, a check for leaks, and a summary by tier."""

import os
import signal
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

# Set before anything imports MindSpore.
os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
os.environ.setdefault("GLOG_v", "3")
# Inherited by all processes of a test: identifies them even without their parent.
MARK = "MSRL_TEST_SESSION"
os.environ[MARK] = str(os.getpid())
# nohup ignores SIGHUP, also in the processes that a test starts; this undoes it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import psutil  # noqa: E402
import pytest  # noqa: E402

TIERS = ("gpu", "kill", "learning", "multiprocess", "slow")  # a test counts in the first it has
SHARED_MEMORY = Path("/dev/shm")
LEFT_OUT = pytest.StashKey[list]()


def _tier(names: Collection[str]) -> str:
    return next((tier for tier in TIERS if tier in names), "unit")


def _processes() -> set[psutil.Process]:
    """Yields the live processes that this session started, at any depth."""
    found = set()
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(os.getpid()) and process.pid != os.getpid()
            # The standard library's helper lives as long as the session.
            if ours and "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.add(process)
        except (psutil.Error, OSError):
            continue  # it has ended, is a zombie, or belongs to another user
    return found


def _segments() -> set[Path]:
    """Gives the files in shared memory; with tests side by side they may be another's."""
    return set() if "PYTEST_XDIST_WORKER" in os.environ else set(SHARED_MEMORY.glob("msrl*"))


def _leaks(processes: set[psutil.Process], segments: set[Path]) -> tuple[set, set]:
    return _processes() - processes, _segments() - segments


@pytest.fixture(params=["native", pytest.param("mindspore", marks=pytest.mark.slow)])
def cells(request: pytest.FixtureRequest) -> str:
    """The cells of a test that holds for both kinds."""
    return request.param


@pytest.fixture(scope="module", autouse=True)
def no_leaks():
    """Fails the module's last test if it leaves processes or shared-memory segments behind."""
    before = _processes(), _segments()
    yield
    deadline = time.monotonic() + 5.0  # terminated processes may need a moment to end
    while any(left := _leaks(*before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes, segments = left
    described = [str(process) for process in processes] + [str(path) for path in segments]
    for process in processes:
        process.kill()  # otherwise they would slow down and confuse later tests
    assert not described, f"left behind: {', '.join(described)}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = _tier({mark.name for mark in item.iter_markers()})
        if tier in ("unit", "slow"):
            item.add_marker("side_by_side")


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        items[0].config.stash[LEFT_OUT].extend(items)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    spent, ran = Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent[_tier(report.keywords)] += report.duration
                ran[_tier(report.keywords)] += report.when == "setup"
    times = [f"{tier} {spent[tier]:.1f} s ({ran[tier]} tests)" for tier in ran]
    terminalreporter.write_line(f"Time by tier: {', '.join(times) or 'nothing ran'}")
    left_out = config.stash[LEFT_OUT]
    if "not side_by_side" in config.option.markexpr:  # they ran before, except for the slow ones
        left_out = [
            item
            for item in left_out
            if not item.get_closest_marker("side_by_side") or item.get_closest_marker("slow")
        ]
    if config.getoption("numprocesses", None):  # only some of the tests; others follow
        return
    if not left_out:
        terminalreporter.write_line("Left out: nothing")
        return
    marks = Counter(tier for item in left_out for tier in TIERS if item.get_closest_marker(tier))
    parts = ", ".join(f"{number} marked {mark}" for mark, number in marks.items())
    terminalreporter.write_line(
        f"Left out: {len(left_out)} tests ({parts or 'by the given choice'}); "
        "scripts/test.sh --all runs everything"
    )
