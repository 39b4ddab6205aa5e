"""Jobs of fake workers: real processes, sockets and mpiexec; nothing remains."""

import dataclasses
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.deployment import Deployment, Host
from mindspore_rl.plan.plan import FragmentPlan, MessagePlan, Plan, save_plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.plan.value import Value
from mindspore_rl.runtime.coordinator import cores, launch
from mindspore_rl.runtime.coordinator.interruption import BURST_S, Interruption
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from mindspore_rl.runtime.coordinator.state_machine import Monitor
from mindspore_rl.runtime.heartbeat import ROW, STAMPS_FILE
from mindspore_rl.runtime.rank.worker_settings import worker_settings
from tests.commands import started
from tests.runtime.test_monitor import PLAN
from tests.tiers import quick

FAKE = Path(__file__).with_name("fake_worker.py")
COMMANDS = launch.Commands(
    worker=(sys.executable, str(FAKE)),
    scheduler=(sys.executable, "-c", "import time; time.sleep(100)"),
)
STARTS = f"import runpy; runpy.run_path({str(FAKE)!r}, run_name='__main__')"
LONG = 10_000  # iterations


def make_plan(run_dir: Path, actors: int = 1, **fields) -> Plan:
    config = {"mode": "", "victim": 1, "daemon": False, "sent": ""}
    config |= {name: fields.pop(name) for name in config.keys() & fields.keys()}
    collectives = fields.pop("collectives", ())
    shares = tuple((i, i + 1) for i in range(actors))
    learner = FragmentPlan(
        "learner", "learner.py", 0, ((0, max(actors, 1)),), (), ("learn",), collectives, False
    )
    actor = FragmentPlan("actor", "actor.py", 1, shares, (), (), (), False)
    value = Value((actors,), "float32", 0)
    edges = tuple(
        MessagePlan(name, "", source, target, (value,), "", (False,), pattern, 1)
        for name, source, target, pattern in (
            ("obs", "actor", "learner", "Gather"),
            ("action", "learner", "actor", "Scatter"),
        )
    )
    job = {
        "config": config,
        "num_envs": 2,
        "num_steps": 4,
        "steps_per_env": 4,
        "num_iterations": 12,
    }
    job |= {"fragments": (learner, actor) if actors else (learner,), "timeout_s": 20.0}
    job |= {"messages": edges if actors else ()}
    plan = Plan(**{**PLAN, **job, **fields})
    save_plan(plan, run_dir)
    return plan


def run(plan: Plan, run_dir: Path, **options):
    return run_job(plan, run_dir, JobOptions(progress=False, total_steps=100, **options), COMMANDS)


def processes_of(run_dir: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MSRL_RUN") == str(run_dir):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def start_coordinator(run_dir: Path) -> subprocess.Popen:
    return started(FAKE, run_dir, "60", stderr=subprocess.STDOUT)


def wait_for(condition, within_s: float = 60.0) -> None:
    """Waits until a condition holds, or for some seconds."""
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def when(condition, action) -> None:
    """Calls a function from another thread once a condition holds."""

    def wait() -> None:
        wait_for(condition, 20.0)
        action()

    threading.Thread(target=wait, daemon=True).start()


def iterations(run_dir: Path) -> list[dict]:
    path = run_dir / "metrics.jsonl"
    # The last line may be half-written.
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def trains(run_dir: Path):
    return lambda: bool(iterations(run_dir))


def stamped(run_dir: Path) -> list[tuple[int, int]]:
    """Returns iteration and stage of each rank."""
    path = run_dir / STAMPS_FILE
    rows = path.read_bytes() if path.exists() else b""
    return [ROW.unpack_from(rows, start)[:2] for start in range(0, len(rows), ROW.size)]


@pytest.fixture
def run_dir(tmp_path):
    """A run directory; at the end, no process of the job may remain, not even a zombie."""
    before = psutil.Process().children()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield tmp_path
    assert not processes_of(tmp_path)
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


multiprocess, kill = pytest.mark.multiprocess, pytest.mark.kill


@pytest.fixture(params=[pytest.param("ranks", marks=multiprocess), "here"])
def make(request, monkeypatch, run_dir):
    """Makes plans of jobs in ranks, and of one in this process, whose victim is its only rank."""
    if request.param == "ranks":
        return lambda **fields: make_plan(run_dir, actors=2, **fields)
    return lambda **fields: fake_here(monkeypatch, run_dir, **fields)


def test_normal_end(run_dir, make):
    plan = make()
    outcome = run(plan, run_dir, checkpoint_every_s=0.001)
    assert (outcome.iterations, outcome.env_steps, outcome.stopped) == (12, 96, "steps")
    lines = iterations(run_dir)
    assert [line["iteration"] for line in lines] == list(range(1, 13))
    assert all(line["values"] == {"loss": 0.5} for line in lines)
    # 10 episodes per iteration and rank, of return 0, 1, ... 11; of the last 100.
    returns = [number for number in range(12) for _ in range(10 * plan.num_ranks)][-100:]
    assert outcome.mean_return == pytest.approx(sum(returns) / 100)
    if plan.num_ranks > 1:
        assert outcome.checkpoint is not None
        assert "[1] cores" in (run_dir / "workers.log").read_text()


def test_threshold(run_dir, make):
    outcome = run(make(num_iterations=LONG), run_dir, stop_return=10.0)
    assert outcome.stopped == "threshold"
    assert outcome.mean_return >= 10.0
    assert outcome.iterations < LONG


@pytest.mark.parametrize("mode", ["error", "mistake"])
def test_error_of_a_rank(run_dir, make, mode):
    plan = make(mode=mode, victim=2, num_iterations=LONG)
    with pytest.raises(JobFailure) as caught:
        run(plan, run_dir)
    text = str(caught.value)
    victim = plan.rank_name(plan.config["victim"])
    assert text.startswith(f"{victim}, iteration 3, the environment: the pole broke")
    assert ("Traceback" in text) == (mode == "error")
    assert caught.value.exit_code == (1 if mode == "error" else 2)


@multiprocess
def test_strangers_that_say_nothing_leave_descriptors_for_ranks(run_dir):
    """60 of these files are the clients' ends; an accepted connection takes two."""
    idle = []

    def strangers() -> None:
        address = processes_of(run_dir)[0].environ()["MSRL_COORDINATOR"].split(":")
        idle.extend(socket.create_connection(address) for _ in range(60))
        os.kill(os.getpid(), signal.SIGINT)

    when(trains(run_dir), strangers)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 170, before[1]))
    try:
        outcome = run(make_plan(run_dir, actors=2, num_iterations=LONG), run_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for link in idle:
            link.close()
    assert (len(idle), outcome.stopped) == (60, "interrupted")


@multiprocess
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("\xff", r"what is no message: b'\\xff'"),
        ('{"kind": "finished", "rank": 0}', "a message of the kind 'finished' whose 'iteration'"),
    ],
)
def test_nonsense_of_a_rank(run_dir, sent, told):
    plan = make_plan(run_dir, mode="nonsense", victim=1, sent=sent, num_iterations=LONG)
    with pytest.raises(JobFailure, match=rf"^rank 1 .*, iteration 3, .*: it sent {told}") as caught:
        run(plan, run_dir)
    assert caught.value.exit_code == 1


def two_hosts(launcher: str) -> Deployment:
    """Two hosts, both this machine, which has more than one loopback address."""
    return Deployment((Host("near", "127.0.0.1"), Host("far", "127.0.0.2")), "lo", launcher)


@multiprocess
def test_ranks_on_two_hosts(run_dir):
    plan = make_plan(run_dir, hosts=("near", "far"))
    outcome = run(plan, run_dir, deployment=two_hosts("fork"))
    assert (outcome.iterations, outcome.stopped) == (12, "steps")
    assert (run_dir / "hosts.txt").read_text() == "127.0.0.1:1\n127.0.0.2:1\n"


@multiprocess
def test_host_that_cannot_be_reached(run_dir):
    launcher = run_dir / "launcher"
    launcher.write_text("#!/bin/sh\necho no route to $2 >&2\nexit 255\n")
    launcher.chmod(0o755)
    plan = make_plan(run_dir, hosts=("near", "far"))
    with pytest.raises(JobFailure) as caught:
        run(plan, run_dir, deployment=two_hosts(str(launcher)), start_timeout_s=20.0)
    assert "no rank on near, far has started" in str(caught.value)


@multiprocess
@kill
def test_crash_shows_what_the_rank_left_in_the_log(run_dir):
    with pytest.raises(JobFailure) as caught:
        run(make_plan(run_dir, mode="abort", num_iterations=LONG), run_dir)
    text = str(caught.value)
    where = "rank 1 (actor[0]), iteration 3, the environment"
    assert text.startswith(f"{where}: died (killed by signal 6)")
    assert "Fatal Python error: Aborted" in text


@multiprocess
@pytest.mark.parametrize("mode", ["hang", "stubborn"])
def test_hang(run_dir, mode):
    plan = make_plan(run_dir, actors=2, mode=mode, victim=2, timeout_s=1.0)
    started = []
    when((run_dir / "pid-2").exists, lambda: started.append(time.monotonic()))
    with pytest.raises(JobFailure) as caught:
        run(plan, run_dir)
    assert time.monotonic() - started[0] < 1.0 + 5.0
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("rank 2 (actor[1]), iteration 3, the environment: no progress for 1")
    waiting = {
        "  rank 0 (learner[0]) (iteration 3, edge obs) waits for "
        "rank 2 (actor[1]) (iteration 3, the environment), "
        "rank 1 (actor[0]) (iteration 3, edge action)",
        "  rank 1 (actor[0]) (iteration 3, edge action) waits for "
        "rank 0 (learner[0]) (iteration 3, edge obs)",
    }
    assert set(lines[1:3]) == waiting


@multiprocess
@pytest.mark.parametrize(
    ("mode", "victim"),  # in its environment, in its wait
    quick([("hang", 1), ("wait", 0), ("hang", 0), ("wait", 1)], 1),
)
def test_stopped_rank(run_dir, victim, mode):
    plan = make_plan(run_dir, mode=mode, victim=victim, timeout_s=3.0)
    stages = Stages(plan)
    at = [(3, stages.edge("obs")), (3, stages.edge("action"))]
    if mode == "hang":
        at[victim] = (3, Stage.ENVIRONMENT)
    pids = []

    def stop() -> None:
        pids.append(int((run_dir / f"pid-{victim}").read_text()))
        os.kill(pids[0], signal.SIGSTOP)

    when(lambda: stamped(run_dir) == at, stop)
    with pytest.raises(JobFailure) as caught:
        run(plan, run_dir)
    place = "the environment" if mode == "hang" else ("edge obs", "edge action")[victim]
    pattern = rf"{plan.rank_name(victim)}, iteration 3, {place}: \S+ (pid {pids[0]}) is stopped"
    pattern = pattern.translate({ord(c): f"\\{c}" for c in "()[]"})
    assert re.match(pattern, str(caught.value)), str(caught.value)
    assert f"kill -CONT {pids[0]}" in str(caught.value)


@multiprocess
def test_hang_before_the_first_iteration_has_a_deadline_of_its_own(run_dir):
    plan = make_plan(run_dir, timeout_s=0.01)  # starting takes longer than that
    commands = launch.Commands(worker=(sys.executable, "-c", "import time; time.sleep(100)"))
    options = JobOptions(progress=False, total_steps=100, start_timeout_s=1.5)
    with pytest.raises(JobFailure, match=r"starting: no progress for 1.*start_timeout_s: 1.5"):
        run_job(plan, run_dir, options, commands)


@multiprocess
def test_mpiexec_that_ends_early(run_dir):
    commands = launch.Commands(worker=(sys.executable, "-c", "raise SystemExit('no such module')"))
    with pytest.raises(JobFailure, match=r"mpiexec ended \(exit status 1\)(.|\n)*no such module"):
        run_job(make_plan(run_dir), run_dir, JobOptions(False, 100), commands)


@multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interruption_stops_at_the_iteration_boundary(run_dir, number, capsys):
    when(trains(run_dir), lambda: os.kill(os.getpid(), number))
    outcome = run(make_plan(run_dir, num_iterations=LONG), run_dir)
    assert outcome.stopped == "interrupted"
    assert 0 < outcome.iterations < LONG
    assert outcome.checkpoint == f"checkpoint-{outcome.iterations - 1}"
    assert "Stopping after this iteration" in capsys.readouterr().err


@multiprocess
def test_second_interruption_ends_everything(run_dir):
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    when(trains(run_dir), twice)
    started = time.monotonic()
    outcome = run(make_plan(run_dir, num_iterations=LONG, mode="deaf"), run_dir)
    assert outcome.stopped == "interrupted"
    assert outcome.checkpoint.startswith("checkpoint-")
    assert time.monotonic() - started < 8.0


def fake_here(monkeypatch, run_dir: Path, **fields):
    monkeypatch.syspath_prepend(str(FAKE.parent))
    fake_worker = pytest.importorskip("fake_worker")
    monkeypatch.setattr("mindspore_rl.runtime.rank.worker.run_worker", fake_worker.work)
    return make_plan(run_dir, **{**fields, "actors": 0, "victim": 0})


def test_one_rank_whose_environment_raises_an_interruption(run_dir, monkeypatch):
    """Nobody requested an end: it is an error like others."""
    said = r"^rank 0 \(learner\[0\]\), iteration 3, the environment: died: KeyboardInterrupt"
    with pytest.raises(JobFailure, match=said):
        run(fake_here(monkeypatch, run_dir, mode="interrupt"), run_dir)


def test_signals_that_come_together_are_one_interruption():
    """`timeout` sends one signal to a process and one to its group."""
    with Interruption() as interruption, interruption.raised_at_second():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.poll() == 1
        time.sleep(2 * BURST_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0)
        assert interruption.poll() == 2


@pytest.mark.parametrize("mode", ["", "deaf", "hang"])
def test_one_rank_interruption(run_dir, monkeypatch, mode):
    def interrupt() -> None:
        for _ in range(2 if mode else 1):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    started = time.monotonic()
    when(lambda: time.monotonic() - started > 0.5, interrupt)
    outcome = run(fake_here(monkeypatch, run_dir, mode=mode, num_iterations=LONG), run_dir)
    assert outcome.stopped == "interrupted"
    assert 0 < outcome.iterations < LONG


@pytest.mark.parametrize("mode", ["hang", "native"])
def test_one_rank_hang_ends_the_process(run_dir, mode):
    make_plan(run_dir, actors=0, victim=0, mode=mode, timeout_s=1.0)
    coordinator = start_coordinator(run_dir)
    text = coordinator.communicate(timeout=30)[0]
    assert coordinator.returncode == 1
    assert "rank 0 (learner[0]), iteration 3, the environment: no progress for 1" in text


def test_one_rank_leaves_nothing_that_its_environment_started(run_dir):
    make_plan(run_dir, actors=0, victim=0, mode="stubborn", timeout_s=60.0)
    coordinator = start_coordinator(run_dir)
    below = psutil.Process(coordinator.pid).children
    wait_for(lambda: "sleep" in [child.name() for child in below()])
    started = [child for child in below() if child.name() == "sleep"]
    assert started
    coordinator.kill()
    coordinator.wait()
    assert not psutil.wait_procs(started, timeout=5)[1]


def test_one_rank_hang_can_be_interrupted(run_dir):
    make_plan(run_dir, actors=0, victim=0, mode="native", timeout_s=60.0)
    coordinator = start_coordinator(run_dir)
    wait_for(lambda: stamped(run_dir)[:1] == [(3, Stage.ENVIRONMENT)])
    for _ in range(2):
        coordinator.send_signal(signal.SIGINT)
        time.sleep(0.5)
    coordinator.communicate(timeout=10)
    assert coordinator.returncode == 130


def test_cores_are_reserved_once(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8})
    notes = []
    with cores.pin_cores(2, notes.append) as first:
        assert first == [(3,), (5,)]
        assert notes == []
        with cores.pin_cores(2, notes.append) as second:
            assert second is None
        with cores.pin_cores(1, notes.append) as single:
            assert single == [(8,)]
        assert [note.partition("; ")[2] for note in notes] == [
            "this one shares them, unpinned.",
            "this one has 1 to itself.",
        ]
        assert all(note.startswith("Other jobs have reserved 2 of 3 cores;") for note in notes)
        notes.clear()
    with cores.pin_cores(3, notes.append) as later:
        assert later == [(3,), (5,), (8,)]
    with cores.pin_cores(1, notes.append) as alone:
        assert alone == [(3, 5, 8)]
    with cores.pin_cores(4, notes.append) as too_many:
        assert too_many is None
    assert notes == []


def test_environment_of_workers(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOG_v", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    found = launch.worker_environment(tmp_path, "127.0.0.1", 5, "CPU")
    assert found["MSRL_COORDINATOR"] == "127.0.0.1:5"
    assert (found["GLOG_v"], found["MS_DEV_HOST_BLOCKING_RUN"]) == ("1", "1")
    assert int(found["MS_CPU_COMM_OP_TIMEOUT"]) > 24 * 3600  # a replica may compile for long
    assert found["PYTHONPATH"] == f"{FAKE.parents[2]}:/elsewhere"
    assert "MSRL_SCHEDULER" not in found
    assert found["PYTHONHASHSEED"] == "0"  # sets of strings have one order in all ranks
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert launch.worker_environment(tmp_path, "::1", 5, "CPU")["PYTHONHASHSEED"] == "7"


def test_ranks_inherit_nothing_of_another_launcher(monkeypatch, tmp_path):
    """In a shell of `srun --mpi=pmix` or of `mpirun`, MPI would look for that launcher's server."""
    others = ("PMI_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PRTE_LAUNCHED")
    slurm = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_JOB_ID")
    for name in (*others, *slurm):
        monkeypatch.setenv(name, "1")
    found = launch.worker_environment(tmp_path, "127.0.0.1", 5, "CPU")
    assert found.keys() & {*others, *slurm} == {"SLURM_JOB_ID"}
    found = launch.worker_environment(tmp_path, "127.0.0.1", 5, "CPU", slurm=True)
    assert found.keys() & {*others, *slurm} == set(slurm)


def test_secrets_are_in_no_environment_that_hydra_sends(monkeypatch, tmp_path):
    own = tmp_path / "own"
    own.write_text("mine")
    (tmp_path / launch.SECRETS_FILE).symlink_to(own)
    secret = {
        "MSRL_TOKEN": "0123",
        "WANDB_API_KEY": "k",
        "db_password": "p",
        "http_proxy": "http://user:pass@proxy:8080",
        "ODD_SECRET": "\udcff\n",
    }
    others = {"PATH": "/bin:/usr/bin", "no_proxy": "http://proxy:8080", "MSRL_RUN": str(tmp_path)}
    others["MSRL_COORDINATOR"] = "127.0.0.1:5"
    found = launch.without_secrets({**others, **secret}, tmp_path)
    path = tmp_path / launch.SECRETS_FILE
    assert found == {**others, "MSRL_SECRETS": str(path)}
    assert path.lstat().st_mode & 0o777 == 0o600
    assert own.read_text() == "mine"
    monkeypatch.setattr(os, "environ", dict(found))
    assert worker_settings().token == "0123"
    assert {name: os.environ[name] for name in secret} == secret


def test_reserved_port_is_given_to_nobody_else():
    with launch.reserve_port("127.0.0.1") as held:
        port = held.getsockname()[1]
        with socket.socket() as careless, pytest.raises(OSError, match="in use"):
            careless.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):  # sets SO_REUSEADDR
            assert socket.create_connection(("127.0.0.1", port)).close() is None


@multiprocess
def test_taken_port_is_told(run_dir, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(launch, "reserve_port", lambda host: taken.dup())
        plan = make_plan(run_dir, collectives=("learn",), num_iterations=LONG)
        commands = dataclasses.replace(COMMANDS, scheduler=launch.Commands().scheduler)
        with pytest.raises(JobFailure) as caught:
            run_job(plan, run_dir, JobOptions(False, 100), commands)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert f"another program had taken its port {address} before it" in str(caught.value)


@multiprocess
@pytest.mark.parametrize(
    ("victim", "other"),
    quick([(1, "import time; time.sleep(100)"), (0, STARTS), (1, STARTS)], 0),
    ids=["of a pair", "0", "1"],
)
def test_rank_whose_import_fails(run_dir, victim, other, monkeypatch):
    """The other rank waits in MPI's start, which has no deadline: asleep, or in a loop.

    The rank fails once both were seen; of one that never was, `LAUNCH_S` later, `test_monitor.py`
    has the test.
    """
    seen, look = run_dir / "both were seen", Monitor._look_for_deaths

    def noted(monitor, *given):
        if monitor._all_launched:
            seen.touch()
        return look(monitor, *given)

    monkeypatch.setattr(Monitor, "_look_for_deaths", noted)
    code = f"""
import os, time
if os.environ["PMI_RANK"] == "{victim}":
    while not os.path.exists({str(seen)!r}):
        time.sleep(0.01)
    import no_such_module
{other}"""
    commands = dataclasses.replace(COMMANDS, worker=(sys.executable, "-c", code))
    plan = make_plan(run_dir, num_iterations=LONG)
    with pytest.raises(JobFailure) as caught:
        run_job(plan, run_dir, JobOptions(False, 100), commands)
    text = str(caught.value)
    assert text.startswith(f"{plan.rank_name(victim)}, starting: died")
    assert "No module named 'no_such_module'" in text
