"""What every test gets: MindSpore's settings, a look for leaks, and a summary by tier."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

# Before anything imports MindSpore.
os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
os.environ.setdefault("GLOG_v", "3")
# Inherited by all that a test starts: finds even a process whose parent is gone.
MARK = "MSRL_TEST_SESSION"
os.environ[MARK] = str(os.getpid())
# Under nohup a hangup is ignored, by all that a test starts too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import psutil  # noqa: E402
import pytest  # noqa: E402

TIERS = ("gpu", "kill", "learning", "multiprocess", "slow")  # a test counts in the first it has
SHARED_MEMORY = Path("/dev/shm")
SPENT = pytest.StashKey[Counter]()
RAN = pytest.StashKey[Counter]()
LEFT_OUT = pytest.StashKey[list]()


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in TIERS if item.get_closest_marker(tier)), "unit")


def _processes() -> set[psutil.Process]:
    """Gives the live processes that this session started, however deep."""
    found = set()
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(os.getpid()) and process.pid != os.getpid()
            # The standard library's own helper lives as long as the session.
            if ours and "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.add(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, a zombie, or another user's
    return found


def _leaks(processes: set[psutil.Process], segments: set[Path]) -> tuple[set, set]:
    return _processes() - processes, set(SHARED_MEMORY.glob("msrl*")) - segments


@pytest.fixture(params=["native", pytest.param("mindspore", marks=pytest.mark.slow)])
def cells(request: pytest.FixtureRequest) -> str:
    """Who runs the cells of a test that holds for both."""
    return request.param


@pytest.fixture(scope="module", autouse=True)
def no_leaks():
    """Fails the module's last test if it leaves processes or shared-memory segments behind."""
    before = _processes(), set(SHARED_MEMORY.glob("msrl*"))
    yield
    deadline = time.monotonic() + 5.0  # what has been told to end may take a moment
    while any(left := _leaks(*before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes, segments = left
    described = [str(process) for process in processes] + [str(path) for path in segments]
    for process in processes:
        process.kill()  # else they would slow down and confuse the tests that follow
    assert not described, f"left behind: {', '.join(described)}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SPENT], config.stash[RAN], config.stash[LEFT_OUT] = Counter(), Counter(), []


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        items[0].config.stash[LEFT_OUT].extend(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    started = time.monotonic()
    try:
        return (yield)
    finally:
        item.config.stash[SPENT][_tier(item)] += time.monotonic() - started
        item.config.stash[RAN][_tier(item)] += 1


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    spent, ran = config.stash[SPENT], config.stash[RAN]
    times = [f"{tier} {spent[tier]:.1f} s ({ran[tier]} tests)" for tier in ran]
    terminalreporter.write_line(f"Time by tier: {', '.join(times) or 'nothing ran'}")
    left_out = config.stash[LEFT_OUT]
    if not left_out:
        terminalreporter.write_line("Left out: nothing")
        return
    marks = Counter(tier for item in left_out for tier in TIERS if item.get_closest_marker(tier))
    parts = ", ".join(f"{number} marked {mark}" for mark, number in marks.items())
    terminalreporter.write_line(
        f"Left out: {len(left_out)} tests ({parts or 'by the given choice'}); "
        "scripts/test.sh --all runs everything"
    )
