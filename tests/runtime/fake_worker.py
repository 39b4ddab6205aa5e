"""A worker that trains nothing, uses the protocol, and fails as its plan's config says.

`python fake_worker.py` is a rank under mpiexec; with arguments `RUN_DIR TIMEOUT_S` it is a
coordinator of such ranks, with a third rank below a process like that of `msrl train`.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from mindspore_rl.communication.link import Link
from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.runtime.coordinator import supervisor
from mindspore_rl.runtime.coordinator.launch import Commands
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.rank import worker
from mindspore_rl.runtime.rank.worker_settings import worker_settings

EVENT_ITERATION = 3  # the iteration of the config's failure


def interrupt() -> None:
    raise KeyboardInterrupt


DEEDS = {  # what an environment does to its process
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "crash": lambda: ctypes.string_at(0),
    "close": lambda: os.closerange(3, 1000),
    "clear": os.environ.clear,
    "interrupt": interrupt,
}
LEADER = 0


HIDE = """\
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as file:
    print(os.getpid(), file=file)
time.sleep(100)
"""


def start_daemon(path: Path) -> None:
    """Starts a process that no session, group, parent or environment variable identifies."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.run([sys.executable, "-c", HIDE, str(path)], env={}, check=True, **quiet)
    while not path.exists() or not written(path):
        time.sleep(0.01)


def written(path: Path) -> bool:
    return path.read_text().endswith("\n")


def work(plan: Plan, run_dir: Path, rank: int, link: Link, threads: int = 1, **_) -> None:
    stamps = Stamps(run_dir, plan.num_ranks)
    if plan.config["daemon"]:
        start_daemon(run_dir / f"daemon-{rank}")
        while sum(map(written, run_dir.glob("daemon-*"))) < plan.num_ranks:
            time.sleep(0.01)  # else a rank's error can end the job before another has its daemon
    stop = run_dir / "stop"  # the leader's message to the others
    stopping = False

    def stamp(iteration: int, stage: int) -> None:
        stamps.write(rank, iteration, stage)

    def checkpoint(iteration: int) -> None:
        link.send("checkpoint", rank=rank, iteration=iteration, path=f"checkpoint-{iteration}")

    for iteration in range(plan.num_iterations):
        while rank == LEADER and (message := link.poll()) is not None:
            stopping = stopping or message["kind"] == "stop"
            checkpoint(iteration)
        if stopping and plan.config["mode"] != "deaf":
            stop.touch()
        if stop.exists():
            break
        stamp(iteration, Stage.ENVIRONMENT)
        if iteration == EVENT_ITERATION:
            event(plan, rank, link, stamp)
        time.sleep(0.01)
        # The parts of an iteration differ by rank: the coordinator joins them.
        link.send(
            "iteration",
            rank=rank,
            iteration=iteration + 1,
            env_steps=8 * (iteration + 1),
            episodes=[[float(iteration), 5]] * 10,
            metrics={"loss": 0.5} if rank == LEADER else {},
        )
    stamp(iteration, Stage.FINISHED)
    link.send("finished", rank=rank, iteration=iteration + 1, iterations_here=1, traffic={})


def event(plan: Plan, rank: int, link: Link, stamp) -> None:
    mode, victim = plan.config["mode"], plan.config["victim"]
    if mode in ("mistake", "error") and rank == victim:
        link.send(
            "error",
            rank=rank,
            iteration=EVENT_ITERATION,
            stage="the environment",
            message="the pole broke",
            traceback="Traceback: step()",
            mistake=mode == "mistake",
            symptom=False,
            echo=False,
        )
        raise RuntimeError("the pole broke")
    if mode == "nonsense" and rank == victim:
        link.connection.sendall(plan.config["sent"].encode("latin1") + b"\n")
        time.sleep(100)
    if mode in DEEDS and rank == victim:
        DEEDS[mode]()
    if mode in ("hang", "stubborn", "wait"):
        if rank != victim or mode == "wait":
            stamp(EVENT_ITERATION, Stages(plan).edge("action" if rank else "obs"))
        if mode == "stubborn":
            subprocess.Popen(["sleep", "100"])  # like a process of an environment
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
    if mode == "native":  # a deadlock in C: not even a signal's handler runs
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(mutex)


def main() -> None:
    settings = worker_settings()
    from mpi4py import MPI  # noqa: PLC0415  (starts MPI: Hydra treats ranks without it otherwise)

    plan, rank = load_plan(settings.run_dir), MPI.COMM_WORLD.rank
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    link = Link.connect(*settings.coordinator, settings.token)
    pids = {"pid": os.getpid(), "proxy": os.getppid()}
    link.send("hello", rank=rank, host="here", **pids)
    (settings.run_dir / f"pid-{rank}").write_text(str(os.getpid()))
    poller = select.poll()
    poller.register(link.connection, select.POLLRDHUP)
    threading.Thread(target=lambda: (poller.poll(), os._exit(1)), daemon=True).start()
    print("cores", settings.cores, flush=True)
    try:
        work(plan, settings.run_dir, rank, link)
    except (RuntimeError, OSError):
        os._exit(1)


def below(tell) -> int:
    tell("run", sys.argv[1])
    options = JobOptions(progress=False, total_steps=100, tell=tell)
    worker.run_worker = work
    run_job(load_plan(Path(sys.argv[1])), Path(sys.argv[1]), options)
    return 0


def coordinate(run_dir: Path, timeout_s: float) -> None:
    worker.run_worker = work
    options = JobOptions(progress=False, total_steps=100, start_timeout_s=timeout_s)
    try:
        print(
            run_job(
                load_plan(run_dir), run_dir, options, Commands(worker=(sys.executable, __file__))
            )
        )
    except JobFailure as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(supervisor.run_below(below))
    elif len(sys.argv) > 1:
        coordinate(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        main()
