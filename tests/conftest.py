"""Fixtures of all tests: MindSpore's settings, a check for leaks, and a summary by tier."""

import fcntl
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
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

from mindspore_rl.platform import interpreter  # noqa: E402
from tests.one_core import pin  # noqa: E402

interpreter.hasten_mindspore()

ONE_CORE = (
    *("checking", "codegen", "compiler", "environments", "multiprocess", "rl"),
    *("test_acting.py", "test_commands.py", "test_evaluate.py", "test_maddpg.py", "test_mappo.py"),
    *("test_on_policy.py", "test_pretrained.py", "test_simulate.py", "test_vdn.py"),
)
"""Folders and files whose tests run MindSpore in this process, except those that start ranks."""
TIERS = ("gpu", "kill", "learning", "multiprocess", "slow")  # a test counts in the first it has
LEFT_OUT = pytest.StashKey[Counter]()


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


@pytest.fixture(params=["native", pytest.param("mindspore", marks=pytest.mark.slow)])
def cells(request: pytest.FixtureRequest) -> str:
    """The cells of a test that holds for both kinds."""
    return request.param


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five iterations of A2C in one process; tests copy it to change it.

    The first of the processes that run tests makes it, the others wait for it.
    """
    from mindspore_rl.cli import main as cli  # noqa: PLC0415  (only these tests need it)

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    run, made = folder / "small" / "run", folder / "small_run_is_made"
    with (folder / "small_run_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            words = ["train", "a2c", "--policy", "GPUOnly", "--seed", "1", "--backend", "inproc"]
            words += ["--total-steps", "640", "--stop-return", "nan", "--quiet"]
            assert cli.main([*words, "--run-dir", str(run)]) == 0
            made.touch()
    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Runs `msrl` in this process, which ends with exit code 2. Returns: its error."""
    from mindspore_rl.cli import main as cli  # noqa: PLC0415  (only these tests need it)

    def run(*words: object) -> str:
        assert cli.main([*map(str, words)]) == 2
        return capsys.readouterr().err

    return run


@pytest.fixture
def place(tmp_path: Path):
    """A folder of disturbed jobs, none of which outlives the test."""
    from tests.chaos.jobs import Place  # noqa: PLC0415  (only these tests need it)

    place = Place(tmp_path)
    yield place
    place.kill()


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect():
    """Exempts what is there from garbage collection: each compilation of MindSpore asks for one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def pynative_mode():
    """Starts each test in MindSpore's eager mode; a job in this process leaves that of graphs."""
    if "mindspore" in sys.modules:
        mindspore = sys.modules["mindspore"]
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.fixture(scope="module", autouse=True)
def no_leaks():
    """Fails the module's last test if it leaves processes behind."""
    before = _processes()
    yield
    deadline = time.monotonic() + 5.0  # terminated processes may need a moment to end
    while (left := _processes() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        process.kill()  # otherwise they would slow down and confuse later tests
    assert not left, f"left behind: {', '.join(map(str, left))}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs a test of `ONE_CORE` on one core, with its fixtures."""
    here = item.path.name in ONE_CORE or item.path.parent.name in ONE_CORE
    pin(here and _tier({mark.name for mark in item.iter_markers()}) in ("unit", "slow"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Lets another process have this one's core after each test."""
    pin(False)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT][_tier({mark.name for mark in item.iter_markers()})] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist: only workers select tests
        session.config.workeroutput["left out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left out"))


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
    parts = ", ".join(f"{number} of {tier}" for tier, number in left_out.items())
    terminalreporter.write_line(
        f"Left out: {left_out.total()} tests ({parts}); scripts/test.sh --all runs everything"
        if left_out
        else "Left out: nothing"
    )
