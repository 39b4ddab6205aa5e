"""Starts and ends the processes of a job.

mpiexec (MPICH's Hydra) starts one proxy, which starts the workers; each is in a session of its own,
so no process group reaches them all. What does: every process of a job inherits MSRL_COORDINATOR,
the address of the coordinator's listening socket, which no other job has while this one lives.
On other hosts workers end by themselves when their link to the coordinator does.

If the coordinator is killed, parent-death signals end mpiexec and the scheduler; the proxy ends its
workers when mpiexec is gone (measured with mpich 5.0.2, for workers that ignore SIGTERM too). What
workers have started themselves, as environments may, is ended by a guard: a process that waits for
the coordinator's end of a pipe to close, and then kills all that carry the mark. It also removes
the shared memory that MPI leaves behind when a rank is killed, whose names come through the pipe.
A job of one process has a guard too, which knows nothing of what forks without starting a program.
"""

import contextlib
import fcntl
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspore_rl import gpu
from mindspore_rl.plan.deployment import LAUNCHERS, Deployment, find_mpiexec
from mindspore_rl.plan.plan import Plan
from mindspore_rl.storage import own_folder, temporary, writing

MARK = "MSRL_COORDINATOR"
WORKERS_LOG = "workers.log"
SCHEDULER_LOG = "scheduler.log"
HOST_FILE = "hosts.txt"
LOG_BYTES, LOG_LINES = 1 << 18, 20
TERM_GRACE_S = 1.0
KILL_GRACE_S = 3.0

# A process in between, not Popen's preexec_fn: that runs Python after a fork of a process that
# may have threads, and can deadlock.
_UNTIL_PARENT_DIES = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # it died before the call above
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which Hydra tells ranks of another's death
os.execvp(sys.argv[2], sys.argv[2:])
"""
_GUARD = """\
import os, signal, sys, time
segments = sys.stdin.read().split()
mark, deadline = sys.argv[1].encode(), time.monotonic() + 5
found = True
while found and time.monotonic() < deadline:
    found = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\\0"):
                    found = True
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass  # ended meanwhile, or another user's
    time.sleep(0.05)
for name in segments:
    try:
        os.unlink(f"/dev/shm/{name}")
    except OSError:
        pass  # MPI has done so itself
"""
_SCHEDULER = """\
import sys
import mindspore
mindspore.set_device(sys.argv[1])
mindspore.communication.init()
"""


@dataclass(frozen=True)
class Commands:
    """What is started; tests put others in their place."""

    worker: tuple[str, ...] = (sys.executable, "-m", "mindspore_rl.runtime.rank.worker")
    scheduler: tuple[str, ...] = (sys.executable, "-c", _SCHEDULER)


def reserve_port(host: str) -> socket.socket:
    """A socket that keeps a port from all who ask for any, but not from the one who listens to it.

    (Who listens must set SO_REUSEADDR, as MindSpore does.)
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def worker_environment(run_dir: Path, host: str, port: int, device: str) -> dict[str, str]:
    """The environment of a job's processes.

    Args:
        run_dir: the job's folder.
        host: where the coordinator listens.
        port: the coordinator's.
        device: of the job.
    """
    package_parent = str(Path(__file__).resolve().parents[3])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "GLOG_v": "3",
        **os.environ,
        "MSRL_RUN": str(run_dir.resolve()),
        MARK: f"{host}:{port}",
        "MS_DEV_HOST_BLOCKING_RUN": "1",
        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a traceback in the log
        "PYTHONIOENCODING": "utf-8:backslashreplace",  # whatever an environment prints
        "PYTHONPATH": os.pathsep.join(paths),
        **(gpu.environment() if device == "GPU" else {}),
    }
    for inherited in ("MSRL_SCHEDULER", "MSRL_CORES", "PMI_RANK"):
        environment.pop(inherited, None)
    return environment


@contextlib.contextmanager
def pin_cores(num_ranks: int) -> Iterator[list[tuple[int, ...]] | None]:
    """Reserves cores for each rank, against other jobs, for as long as the context lasts.

    Returns: equally many for each rank, or None (no pinning) if fewer cores are free than ranks.
    """
    with contextlib.ExitStack() as locks:
        cores: list[tuple[int, contextlib.ExitStack]] = []
        for core in sorted(os.sched_getaffinity(0)) if num_ranks else ():
            if (lock := _lock_core(core)) is not None:
                held = locks.enter_context(contextlib.ExitStack())
                held.callback(os.close, lock)
                cores.append((core, held))
        each = len(cores) // num_ranks if num_ranks else 0
        for _, held in cores[each * num_ranks :]:  # another job may have them
            held.close()
        if each:
            own = [core for core, _ in cores]
            yield [tuple(own[rank * each : (rank + 1) * each]) for rank in range(num_ranks)]
        else:
            yield None


def _lock_core(core: int) -> int | None:
    """A descriptor that holds the core's lock file, or None; the file itself stays."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not own_folder(temporary()):
            return None
        descriptor = os.open(temporary() / f"core-{core}.lock", flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Guard:
    """Ends what carries a mark, and removes shared memory, as soon as this process has ended.

    Args:
        value: of the environment variable `MARK`.
    """

    def __init__(self, value: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, f"{MARK}={value}"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def remove_in_the_end(self, segments: list[str]) -> None:
        """Notes names in /dev/shm of MPI's."""
        assert self._process.stdin is not None
        for name in segments:
            if re.fullmatch(r"mpich_\w+", name):
                print(name, file=self._process.stdin, flush=True)

    def end(self) -> None:
        """Ends and removes it all now."""
        self._process.communicate()


class JobProcesses:
    """mpiexec with the workers, and the MindSpore scheduler if the plan has a group.

    A context that ends them all.

    Attributes:
        token: that only these processes have.
    """

    def __init__(
        self, plan: Plan, run_dir: Path, commands: Commands, deployment: Deployment
    ) -> None:
        self.mpiexec: subprocess.Popen | None = None
        self.scheduler: subprocess.Popen | None = None
        self._plan, self._run_dir, self._commands = plan, run_dir, commands
        self._deployment = deployment
        self._guard: Guard | None = None
        self._port: socket.socket | None = None
        self._mark = b""
        self.token = secrets.token_hex(16)
        self._log_starts: dict[str, int] = {}

    def __enter__(self) -> "JobProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, port: int, cores: list[tuple[int, ...]] | None) -> None:
        """Starts everything, to report to the coordinator's port. Raises: MsrlError, OSError."""
        mpiexec = find_mpiexec()
        plan = self._plan
        environment = worker_environment(self._run_dir, self._deployment.address, port, plan.device)
        self._mark = f"{MARK}={environment[MARK]}".encode()
        self._guard = Guard(environment[MARK])
        environment["MSRL_TOKEN"] = self.token  # in no command line, where others could read it
        if plan.group_ranks:  # first, and unpinned: the group's `init()` hung otherwise
            host = self._deployment.address
            self._port = reserve_port(host)
            scheduler_port = self._port.getsockname()[1]
            environment["MSRL_SCHEDULER"] = f"{host}:{scheduler_port}"
            self.scheduler = self._start(
                [*self._commands.scheduler, plan.device],
                SCHEDULER_LOG,
                {
                    **environment,
                    "MS_ROLE": "MS_SCHED",
                    "MS_SCHED_HOST": host,
                    "MS_SCHED_PORT": str(scheduler_port),
                    "MS_WORKER_NUM": str(len(plan.group_ranks)),
                },
            )
        if cores:
            environment["MSRL_CORES"] = ";".join(",".join(map(str, own)) for own in cores)
        self.mpiexec = self._start(
            [mpiexec, *self._mpi_options(), "-n", str(plan.num_ranks), *self._commands.worker],
            WORKERS_LOG,
            environment,
        )

    def _mpi_options(self) -> list[str]:
        """Where Hydra starts ranks, and how it treats them."""
        # If a rank dies, Hydra is not to end the others: 1 ms after it, so that who was first could
        # not be told. Hosts are ours to name, whatever batch system there is.
        common = ["-rmk", "user", "-prepend-rank", "-disable-auto-cleanup"]
        deployment = self._deployment
        if not self._plan.hosts:
            return ["-launcher", "fork", "-iface", "lo", *common]
        file = self._run_dir / HOST_FILE
        with writing(file):
            file.write_text(deployment.host_file(self._plan.hosts))
        options = [*common, "-f", str(file), "-localhost", deployment.address]
        if deployment.interface:
            options += ["-iface", deployment.interface]
        if deployment.launcher in LAUNCHERS:
            return [*options, "-launcher", deployment.launcher]
        program = str(Path(deployment.launcher).resolve())
        return [*options, "-launcher", "ssh", "-launcher-exec", program]

    def _start(self, command: list[str], log: str, environment: dict[str, str]) -> subprocess.Popen:
        wrapper = [sys.executable, "-I", "-S", "-c", _UNTIL_PARENT_DIES, str(os.getpid())]
        path = self._run_dir / log
        with writing(path), path.open("ab") as output:
            self._log_starts[log] = output.tell()
            return subprocess.Popen(
                [*wrapper, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def remove_in_the_end(self, segments: list[str]) -> None:
        """Notes names in /dev/shm that must not outlive the job."""
        if self._guard is not None:
            self._guard.remove_in_the_end(segments)

    def log(self) -> str:
        """What the workers and mpiexec printed last."""
        return self._tail(WORKERS_LOG)

    def _tail(self, log: str) -> str:
        """The end of what was appended to a log since this start of the job."""
        path = self._run_dir / log
        with path.open("rb") as file:
            file.seek(max(self._log_starts[log], path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")

    def output_of(self, rank: int) -> list[str]:
        """The lines that a rank printed last, from its crash on if Python caught one."""
        # Hydra writes `[rank] ` before every line and before every piece that it happened to read.
        text = re.split(r"^YOUR APPLICATION", self.log(), maxsplit=1, flags=re.M)[0]
        pieces = re.split(r"\[(\d+)\] ", text)
        own = "".join(
            piece
            for number, piece in zip(pieces[1::2], pieces[2::2], strict=True)
            if int(number) == rank
        )
        lines = own.splitlines()
        crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python")), None)
        return lines[-LOG_LINES:] if crash is None else lines[crash : crash + LOG_LINES]

    def why_scheduler_ended(self) -> str:
        """What the log of a scheduler that has ended says, in few words."""
        text = self._tail(SCHEDULER_LOG)
        if "Failed to create the TCP server" in text and self._port is not None:
            address = "{}:{}".format(*self._port.getsockname())
            return f"another program had taken its port {address} before it; start again"
        return f"the end of {SCHEDULER_LOG}:\n" + "\n".join(text.splitlines()[-LOG_LINES:])

    def wait(self, timeout_s: float) -> None:
        """Waits for mpiexec, but not for long."""
        if self.mpiexec is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.mpiexec.wait(timeout_s)

    def end(self) -> None:
        """Ends every process of the job, also those that workers started."""
        started = [p for p in (self.mpiexec, self.scheduler) if p is not None]
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        self._wait_until_gone(TERM_GRACE_S)
        deadline = time.monotonic() + KILL_GRACE_S
        while (left := self._alive()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait_until_gone(0.2)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        if self._port is not None:
            self._port.close()
        if self._guard is not None:  # finds nothing left
            self._guard.end()

    def _wait_until_gone(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def living_ranks(self) -> set[int]:
        """The ranks on this machine that have a process, as Hydra numbers them."""
        found = set()
        for variables in self._marked().values():
            for variable in variables:
                if variable.startswith(b"PMI_RANK="):
                    found.add(int(variable.partition(b"=")[2]))
        return found

    def _alive(self) -> list[int]:
        return list(self._marked())

    def _marked(self) -> dict[int, list[bytes]]:
        """Processes that carry this job's mark, and their environments; zombies have none."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not self._mark or not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                variables = (entry / "environ").read_bytes().split(b"\0")
                if self._mark in variables:
                    found[int(entry.name)] = variables
        return found
