"""Starts and ends the processes of a job.

mpiexec (MPICH's Hydra) starts one proxy, which starts the workers; each is in a session of its own,
so no process group reaches them all. Two things do. All of them are below a keeper (`keeper`), a
process that ends them when it is told to, or when this one is killed. And every process of a job
inherits MSRL_COORDINATOR, the address of the coordinator's listening socket, which no other job has
while this one lives. On other hosts workers end by themselves when their link to the coordinator
does; what they have started there is out of reach.
"""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_rl import gpu
from mindspore_rl.plan.deployment import LAUNCHERS, Deployment, find_mpiexec
from mindspore_rl.plan.plan import Plan
from mindspore_rl.runtime.coordinator import keeper
from mindspore_rl.storage import own_folder, temporary, writing

WORKERS_LOG = "workers.log"
SCHEDULER_LOG = "scheduler.log"
HOST_FILE = "hosts.txt"
LOG_BYTES, LOG_LINES = 1 << 18, 20
TERM_GRACE_S = 1.0
KILL_GRACE_S = 3.0

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


def worker_environment(run_dir: Path, device: str) -> dict[str, str]:
    """The environment of a job's processes, but for its mark.

    Args:
        run_dir: the job's folder.
        device: of the job.
    """
    package_parent = str(Path(__file__).resolve().parents[3])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "GLOG_v": "3",
        **os.environ,
        "MSRL_RUN": str(run_dir.resolve()),
        "MS_DEV_HOST_BLOCKING_RUN": "1",
        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a traceback in the log
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


def start_keeper(mark: str, command: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
    """Starts a program under a keeper, or a keeper alone; both end when its input is closed.

    Args:
        mark: value of the environment variable `MARK`, which the program gets.
        command: the program.
        options: for `subprocess.Popen`.
    """
    start = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), mark]
    return subprocess.Popen(
        [*start, *command], stdin=subprocess.PIPE, start_new_session=True, **options
    )


class Adoption:
    """Makes daemons children of this process when their parents end, and ends them in the end."""

    def __init__(self) -> None:
        self._before = keeper.children()
        keeper.adopt()

    def end(self) -> None:
        """Ends those that have come: in a session of their own, and not there before."""
        keeper.end(self._daemons)
        keeper.adopt(False)

    def _daemons(self) -> set[int]:
        own, found = os.getsid(0), set()
        for pid in keeper.children() - self._before:
            with contextlib.suppress(OSError):
                if os.getsid(pid) != own and os.waitpid(pid, os.WNOHANG) == (0, 0):
                    found.add(pid)
        return found


class Guard:
    """Ends what a job in this process has started, even if this process is killed.

    Args:
        mark: value of the environment variable `MARK`.
    """

    def __init__(self, mark: str) -> None:
        self._mark, self._adoption = mark, Adoption()
        self._keeper = start_keeper(mark)

    def renew(self) -> None:
        """Starts another keeper if somebody has killed it."""
        if self._keeper.poll() is not None:
            self._keeper = start_keeper(self._mark)

    def end(self) -> None:
        """Ends it all now."""
        self._keeper.communicate()
        self._adoption.end()


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
        self._port: socket.socket | None = None
        self._mark = ""
        self._adoption: Adoption | None = None
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
        environment = worker_environment(self._run_dir, plan.device)
        self._mark = f"{self._deployment.address}:{port}"
        self._adoption = Adoption()
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
        if not plan.hosts:  # UCX listens on every network otherwise, to carry nothing
            environment.setdefault("UCX_TLS", "self,sm")
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
        path = self._run_dir / log
        with writing(path), path.open("ab") as output:
            self._log_starts[log] = output.tell()
            return start_keeper(
                self._mark, command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

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
        keepers = [process for process in (self.mpiexec, self.scheduler) if process is not None]
        for process in keepers:
            process.terminate()  # the program, which may end the others in peace
        _wait(keepers, TERM_GRACE_S)
        for process in keepers:
            assert process.stdin is not None
            process.stdin.close()
        _wait(keepers, KILL_GRACE_S)
        # Nothing is left, unless a keeper has been killed or hangs.
        keeper.end(lambda: keeper.marked(self._mark) if keepers else {}, KILL_GRACE_S)
        for process in keepers:
            process.kill()
            process.wait()
        if self._adoption is not None:
            self._adoption.end()
        keeper.sweep()
        if self._port is not None:
            self._port.close()

    def living_ranks(self) -> set[int]:
        """The ranks on this machine that have a process, as Hydra numbers them."""
        found = set()
        for variables in keeper.marked(self._mark).values():
            for variable in variables:
                if variable.startswith("PMI_RANK="):
                    found.add(int(variable.partition("=")[2]))
        return found


def _wait(processes: list[subprocess.Popen], timeout_s: float) -> None:
    """Waits for all of them, but not for long."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.0))
