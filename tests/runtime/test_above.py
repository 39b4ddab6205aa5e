"""The process that supervises a command: its report of the command's end."""

import signal
import sys

import psutil
import pytest

from tests import commands
from tests.commands import python
from tests.runtime.fake_worker import HIDE
from tests.runtime.test_coordinator import FAKE, make_plan, run_dir  # noqa: F401

SCRIPT = """\
import ctypes, os, signal, subprocess, sys, time
from mindspore_rl.runtime.coordinator.supervisor import run_below

def go(name, command):
    own = os.getpid()
    code = run_below(command)
    if os.getpid() != own:  # the child
        os._exit(3)
    print(name, code, flush=True)

def waits(tell):
    try:
        print("waits", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        return 130

"""


def started(code):
    return commands.started("-c", SCRIPT + code)


def test_a_command_is_done_only_if_it_says_so():
    script = started(
        "go('done', lambda tell: 0)\n"
        "go('mistake', lambda tell: 2)\n"
        "go('os._exit', lambda tell: os._exit(0))\n"
        "go('exit of C', lambda tell: ctypes.CDLL(None).exit(0))\n"
        "go('sys.exit', lambda tell: sys.exit(0))\n"
        "go('crash', lambda tell: ctypes.string_at(0))\n"
        "go('closed', lambda tell: os.closerange(3, 1000) or 0)\n"
    )
    printed, said = script.communicate()
    ends = dict(line.rsplit(" ", 1) for line in printed.splitlines())
    failed = dict.fromkeys(("os._exit", "exit of C", "sys.exit", "crash", "closed"), "1")
    assert ends == {"done": "0", "mistake": "2", **failed}, said
    why = [line for line in said.splitlines() if line.startswith("msrl: ")]
    assert why[:2] == ["msrl: its process ended (exit status 0), before the command was done"] * 2
    assert "sys.exit(0) at <string>:" in why[2]
    assert why[3] == "msrl: its process was killed by signal 11, before the command was done"
    assert "exit status 3" in why[4]


def test_a_thread_that_an_environment_has_left_holds_no_command():
    script = started(
        "import threading\n"
        "def leaves(tell):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    return 2\n"
        "sys.exit(run_below(leaves))\n"
    )
    assert script.communicate(timeout=40) == ("", "")
    assert script.returncode == 2


def test_signals_are_passed_on_and_what_is_left_is_ended(tmp_path):
    hide = [sys.executable, "-c", HIDE, str(tmp_path / "pid")]
    script = started(
        "def leaves(tell):\n"
        f"    subprocess.run({hide!r}, env={{}})\n"
        f"    path = {str(tmp_path / 'pid')!r}\n"
        "    while not os.path.exists(path) or not os.path.getsize(path): time.sleep(0.01)\n"
        "    return waits(tell)\n"
        "go('ended', leaves)\n"
    )
    assert script.stdout.readline() == "waits\n"
    script.send_signal(signal.SIGTERM)
    assert script.communicate(timeout=30)[0] == "ended 130\n"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_what_a_killed_coordinator_has_not_finished_is_removed(tmp_path):
    """Also where nobody resumes the run: segments of a next checkpoint, which may be large."""
    for name in ("checkpoints/checkpoint-00000004.npz", "replay/00000005-0000-aa.segment"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
        (tmp_path / f"{name}.tmp").touch()
    for name in ("job.json.tmp", "arrivals.bin.tmp", "checkpoints/best.npz.tmp", "own.tmp"):
        (tmp_path / name).touch()
    script = started(
        f"go('', lambda tell: tell('run', {str(tmp_path)!r}) and os.kill(os.getpid(), 9) or 0)\n"
    )
    assert script.communicate(timeout=30)[0] == " 1\n"
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"checkpoint-00000004.npz", "00000005-0000-aa.segment", "own.tmp"}


def test_killed_it_takes_the_command_with_it():
    script = started("go('', waits)\n")
    assert script.stdout.readline() == "waits\n"
    below = psutil.Process(script.pid).children()
    script.kill()
    script.communicate()
    assert len(below) == 1
    assert not psutil.wait_procs(below, timeout=10)[1]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("exit", ": its process ended (exit status 0)"),
        (
            "crash",
            " (killed by signal 11): its process was killed by signal 11\nIt printed:\nFatal",
        ),
        ("close", ": the program has closed descriptors of this process that are not its own"),
    ],
)
def test_what_an_environment_does_to_its_process_is_told_of_its_rank(run_dir, mode, said):  # noqa: F811
    make_plan(run_dir, actors=0, victim=0, mode=mode)
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "checkpoint-00000002.npz").touch()
    done = below(run_dir)
    assert done.returncode == 1
    where = "rank 0 (learner[0]), iteration 3, the environment: died"
    assert f"msrl: {where}{said}" in done.stderr
    assert "Last good checkpoint: " in done.stderr
    assert done.stderr.count("the environment: died") == 1
    if mode == "crash":
        assert "fake_worker.py" in done.stderr  # the place


def test_an_environment_without_variables_ends_as_others_do(run_dir):  # noqa: F811
    make_plan(run_dir, actors=0, victim=0, mode="clear")
    done = below(run_dir)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def below(run_dir):  # noqa: F811
    return python(FAKE, run_dir, "60", "below", timeout=60)


INTERRUPTED_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "mindspore.train":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

def interrupt(*_):
    raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGTERM, interrupt)
try:
    import mindspore_rl.api
except KeyboardInterrupt:
    import mindspore
    print(mindspore.Tensor(1) + 1)
"""


def test_an_interruption_waits_for_the_import_of_mindspore():
    """MindSpore crashes at the end of a process that has imported a part of it."""
    done = python("-c", INTERRUPTED_IMPORT)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
