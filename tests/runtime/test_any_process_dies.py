"""Kills any process of a job: the failure is reported, and no process remains, even hidden."""

import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from mindspore_rl.errors import JobFailure
from mindspore_rl.runtime.coordinator import cleanup as ending
from mindspore_rl.runtime.coordinator import launch, reaper
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.chaos.jobs import kind_of
from tests.runtime.test_coordinator import (
    FAKE,
    LONG,
    fake_here,
    iterations,
    kill,
    make_plan,
    multiprocess,
    processes_of,
    run,
    run_dir,  # noqa: F401  (a fixture)
    start_coordinator,
    trains,
    wait_for,
    when,
)


def find(folder: Path, whom: str) -> psutil.Process | None:
    """Finds a process of a job by its kind, or a rank by its number, as in "rank 1"."""
    pid = folder / whom.replace("rank ", "pid-")
    if pid.exists() and pid.read_text():
        return psutil.Process(int(pid.read_text()))
    for process in processes_of(folder):
        with contextlib.suppress(psutil.Error):
            if kind_of(process.cmdline(), process.environ()) == whom:
                return process
    return None


def run_code(folder: Path, code: str, failure: str) -> None:
    """Runs a job whose ranks run some code, and fails with its error."""
    commands = launch.Commands(worker=(sys.executable, "-c", code))
    with pytest.raises(JobFailure, match=failure):
        run_job(make_plan(folder), folder, JobOptions(False, 100), commands)


RANK_DIED = r"^RANK, .*the environment: died \(killed by signal 9\)(?s:.*)Last good checkpoint"
REAPER = r"the reaper of %s \(pid PID\).* ended \(killed by signal 9\) before"
PROXY = r"^Hydra's proxy \(pid PID\) on here was killed, and the ranks that it had started"
KILLED = {
    "rank 0": RANK_DIED.replace("RANK", r"rank 0 \(learner\[0\]\)"),
    "rank 2": RANK_DIED.replace("RANK", r"rank 2 \(actor\[1\]\)"),
    "proxy": PROXY,
    "mpiexec": r"mpiexec ended \(killed by signal 9\)",
    "scheduler": r"MindSpore scheduler .* \(killed by signal 9\) before rank 0 \(learner\[0\]\)",
    "reaper": REAPER % "mpiexec",
    "scheduler's reaper": REAPER % "the MindSpore scheduler",
}
EARLY = ("reaper", "scheduler's reaper")


@multiprocess
@kill
@pytest.mark.parametrize(
    ("whom", "early"), [*((whom, False) for whom in KILLED), *((whom, True) for whom in EARLY)]
)
def test_a_killed_process_is_named(run_dir, whom, early):  # noqa: F811
    plan = make_plan(run_dir, actors=2, collectives=("learn",), num_iterations=LONG)
    before, pids = reaper.shared_segments(), []

    def strike() -> None:
        victim = find(run_dir, whom)
        pids.append(victim.pid)
        victim.kill()

    # Late enough for a checkpoint to be requested and reported.
    when(lambda: find(run_dir, whom) and (early or len(iterations(run_dir)) > 20), strike)
    with pytest.raises(JobFailure) as caught:
        run(plan, run_dir, checkpoint_every_s=0.05)
    told = KILLED[whom].replace("PID", str(pids[0]))
    assert re.search(told, str(caught.value)), str(caught.value)
    assert still_there(reaper.shared_segments() - before) == set()


def still_there(segments: set[Path]) -> set[Path]:
    """Returns the names that remain; jobs of others that start now remove their own."""
    wait_for(lambda: not segments & reaper.shared_segments(), 10.0)
    return segments & reaper.shared_segments()


@multiprocess
@kill
@pytest.mark.parametrize(("mode", "stopped"), [("", False), ("stubborn", False), ("", True)])
def test_killed_coordinator_leaves_nothing(run_dir, mode, stopped):  # noqa: F811
    """Not even if its reapers are stopped: they wake up when it dies."""
    make_plan(run_dir, mode=mode, collectives=("learn",), num_iterations=LONG)
    coordinator = start_coordinator(run_dir)
    # The scheduler, mpiexec, their reapers, a proxy, two ranks, and the children of each.
    count = 9 if mode == "stubborn" else 7
    wait_for(lambda: (run_dir / "pid-1").exists() and len(processes_of(run_dir)) == count)
    below = processes_of(run_dir)
    assert len(below) == count
    reapers = [process for process in below if process.name() == reaper.NAME]
    assert len(reapers) == 2
    for process in reapers if stopped else ():
        process.suspend()
    coordinator.kill()
    coordinator.communicate()
    assert not psutil.wait_procs(below, timeout=10.0)[1]


@multiprocess
@kill
def test_segment_of_a_rank_that_dies_while_it_starts(run_dir):  # noqa: F811
    path = reaper.SHARED_MEMORY / f"mpich_shm_{os.getpid()}_0"
    code = f"import os; open({str(path)!r}, 'a'); os.kill(os.getpid(), 9)"
    run_code(run_dir, code, "died|ended")
    assert not path.exists()


def test_segments_of_other_jobs_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(reaper, "SHARED_MEMORY", tmp_path)
    earlier, open_one, mapped, orphan = (tmp_path / f"mpich_shm_{name}_0" for name in "abcd")
    earlier.touch()
    before = reaper.shared_segments()
    for path in (mapped, orphan):
        path.write_bytes(bytes(10))
    with open_one.open("w"), mapped.open("r+b") as file, mmap.mmap(file.fileno(), 10):
        file.close()
        reaper.remove_segments(before)
    assert sorted(tmp_path.iterdir()) == [earlier, open_one, mapped]


@multiprocess
def test_mpi_leaves_no_name_to_be_forgotten(run_dir):  # noqa: F811
    """After its start, MPI has no names in /dev/shm, and UCX has nothing there."""
    code = (
        "import os, pathlib\n"
        "from mindspore_rl.communication.mpi import MpiCommunicator\n"
        "comm = MpiCommunicator()\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "pathlib.Path(os.environ['MSRL_RUN'], f'maps-{comm.rank}').write_text(maps)\n"
    )
    run_code(run_dir, code, r"mpiexec ended \(exit status 0\)")
    for rank in range(2):
        held = re.findall(r"/dev/shm/(.*)", (run_dir / f"maps-{rank}").read_text())
        assert held
        assert all(re.fullmatch(r"mpich_shm_\w+ \(deleted\)", name) for name in held)


@multiprocess
def test_hydra_writes_no_file_that_a_killed_proxy_would_leave(run_dir):  # noqa: F811
    """Ranks ask their proxy for it (/tmp is shared with others, so it is not checked)."""
    code = (
        "import os, pathlib, signal\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which Hydra tells of the other's end\n"
        "def ask(text):\n"
        "    os.write(int(os.environ['PMI_FD']), f'cmd={text}\\n'.encode())\n"
        "    return os.read(int(os.environ['PMI_FD']), 1 << 10).decode()\n"
        "ask('init pmi_version=1 pmi_subversion=1')\n"
        "name = ask('get_my_kvsname').split('kvsname=')[1].strip()\n"
        "keys = ('process_mapping', 'hwloc_xmlfile')\n"
        "said = [ask(f'get kvsname={name} key=PMI_{key}') for key in keys]\n"
        "pathlib.Path(os.environ['MSRL_RUN'], 'said').write_text(''.join(said))\n"
        "ask('finalize')\n"
    )
    run_code(run_dir, code, "mpiexec ended")
    mapping, topology = (run_dir / "said").read_text().splitlines()
    assert "value=(vector," in mapping
    assert topology == "cmd=get_result rc=1"


@pytest.mark.parametrize(
    ("size", "enough"),
    [
        pytest.param("1m", False, marks=multiprocess),
        pytest.param("2300k", True, marks=multiprocess),
        pytest.param("16m", True, marks=multiprocess),  # without our settings, UCX dies of this one
    ],
)
def test_small_shared_memory(run_dir, size, enough):  # noqa: F811
    make_plan(run_dir)
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    unshare = ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c"]
    tried = subprocess.run([*unshare, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no namespace for mounts here: {tried.stderr.strip()}")
    job = f'{mount} && exec "$@"'
    done = subprocess.run(
        [*unshare, job, "sh", sys.executable, str(FAKE), str(run_dir), "60"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FAKE.parents[2])},
        check=False,
    )
    if enough:
        assert "stopped='steps'" in done.stdout, done.stderr
    else:
        said = done.stderr.splitlines()[-1]
        assert "/dev/shm has 1.0 MB free, and MPI needs about 2.2 MB for 2 ranks" in said
        assert "--shm-size" in said
        assert not (run_dir / "pid-0").exists()


@multiprocess
def test_bus_error_is_told_with_what_is_left(run_dir):  # noqa: F811
    code = (
        "import mmap, os, sys\n"
        f"with open({str(run_dir / 'short')!r} + os.environ['PMI_RANK'], 'w+b') as file:\n"
        "    file.truncate(4096)\n"
        "    memory = mmap.mmap(file.fileno(), 4096)\n"
        "    file.truncate(0)\n"
        "    print(memory[0])\n"
    )
    run_code(run_dir, code, r"bus error can be shared memory(.|\n)*/dev/shm has ")


ENDINGS = ("normal", "error", "interrupted", "killed")


@pytest.mark.parametrize(
    ("place", "ending"),
    [
        *(pytest.param("ranks", ending, marks=multiprocess) for ending in ENDINGS),
        *(("here", ending) for ending in ENDINGS[:3]),
    ],
)
def test_daemons_of_environments_end_with_the_job(run_dir, monkeypatch, place, ending):  # noqa: F811
    """Daemons that no session, process group, parent or environment variable identifies."""
    fields = {"daemon": True, "mode": "error" if ending == "error" else "", "victim": 0}
    fields["num_iterations"] = LONG if ending in ("interrupted", "killed") else 12
    make = make_plan if place == "ranks" else partial(fake_here, monkeypatch)
    fields.pop("victim") if place == "here" else None
    plan = make(run_dir, **fields)
    if ending == "killed":
        coordinator = start_coordinator(run_dir)
        wait_for(trains(run_dir))
        coordinator.kill()
        coordinator.communicate()
    elif ending == "error":
        with pytest.raises(JobFailure, match="the pole broke"):
            run(plan, run_dir)
    else:
        if ending == "interrupted":
            when(trains(run_dir), lambda: os.kill(os.getpid(), signal.SIGINT))
        assert run(plan, run_dir).stopped == ("steps" if ending == "normal" else "interrupted")
    pids = [int(path.read_text()) for path in run_dir.glob("daemon-*")]
    assert len(pids) == plan.num_ranks
    if ending == "killed":
        wait_for(lambda: not any(map(psutil.pid_exists, pids)) and not processes_of(run_dir), 10.0)
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("mark", [b"", b"=", b"NAME=", b"NAME"])
def test_nothing_is_killed_for_a_mark_that_any_process_may_have(mark):
    with pytest.raises(ValueError, match="no mark of a job"):
        reaper.marked(mark)


def test_killed_reaper_of_a_job_in_one_process_is_replaced(run_dir, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(ending, "LOOK_S", 0.1)
    pids = []

    def reaper_now() -> int:
        below = psutil.Process().children()
        return next((process.pid for process in below if process.name() == reaper.NAME), 0)

    def strike() -> None:
        pids.append(reaper_now())
        os.kill(pids[0], signal.SIGKILL)
        when(lambda: reaper_now() not in (0, pids[0]), stop)

    def stop() -> None:
        pids.append(reaper_now())
        os.kill(os.getpid(), signal.SIGINT)

    plan = fake_here(monkeypatch, run_dir, num_iterations=LONG)
    when(lambda: bool(iterations(run_dir)) and reaper_now(), strike)
    assert run(plan, run_dir).stopped == "interrupted"
    assert len(set(pids) - {0}) == 2
    assert f"the reaper of this job (pid {pids[0]}) was killed" in capsys.readouterr().err


def test_orphans_that_have_ended_are_buried_and_children_are_not():
    gone = "import os\nif not os.fork():\n  os.setsid()\n  if not os.fork(): print(os.getpid())"
    with ending.Orphans() as orphans:
        own = [
            subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=new) for new in (True, False)
        ]
        orphan = int(subprocess.check_output([sys.executable, "-c", gone]))
        wait_for(lambda: orphans.bury() or not psutil.pid_exists(orphan), 10.0)
        assert not psutil.pid_exists(orphan)
        assert [process.wait() for process in own] == [3, 3]


def test_reaper_alone_tells_the_status_and_removes_what_its_command_left():
    path = reaper.SHARED_MEMORY / f"mpich_shm_{os.getpid()}_1"
    command = ["sh", "-c", f"touch {path}; exit 3"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), "NAME=VALUE", *command],
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == b"3\n"
    assert not path.exists()


def test_reaper_that_starts_after_its_job_died_removes_what_the_job_left():
    mark = f"MSRL_TEST_MARK={os.getpid()}-late"
    name, _, value = mark.partition("=")
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, name: value})
    nobody = "0"  # the parent of no process of this one
    subprocess.run([sys.executable, "-I", "-S", reaper.__file__, nobody, mark], check=True)
    assert left.wait(timeout=10) == -signal.SIGKILL
