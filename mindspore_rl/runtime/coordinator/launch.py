"""Starts and ends the processes of a job.

mpiexec (MPICH's Hydra) starts one proxy, which starts the workers; each is in a session of its own,
so no process group contains them all. Therefore mpiexec and the scheduler each run under a reaper
(`reaper.py`), which ends all its descendants, whichever of these processes ends first. If a reaper
is killed, its command is killed with it, and the coordinator adopts the orphans. On other hosts
workers end by themselves when their link to the coordinator closes; processes that their
environments have started there cannot be reached.

Every process of a job also inherits MSRL_COORDINATOR: the address of the coordinator's listening
socket, which no other job has while this one runs, or, for a job in one process, the number of that
process.

Not covered: for a job in one process that is killed, processes that an environment has started
without that variable, or forked without exec; for any job, detached processes when the coordinator
and a reaper are killed at once.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mindspore_rl.communication import group
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.deployment import LAUNCHERS, Deployment, find_mpiexec
from mindspore_rl.plan.plan import Plan
from mindspore_rl.platform import gpu, interpreter, toolchain
from mindspore_rl.platform.cache import writing
from mindspore_rl.platform.resources import SHARED_MEMORY, free_shared_bytes
from mindspore_rl.replay import bindings
from mindspore_rl.runtime.coordinator import reaper
from mindspore_rl.runtime.coordinator.cleanup import MARK, Orphans, Reaper

WORKERS_LOG = "workers.log"
SCHEDULER_LOG = "scheduler.log"
HOST_FILE, SECRETS_FILE = "hosts.txt", "secrets.json"
GUARD = Path(__file__).with_name("guard.cpp")
SECRET = re.compile(r"^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL)|://[^/\s]*:[^/\s]*@", re.I)
"""Variables taken to be secrets: by their names, or addresses with a password."""
LOG_BYTES, LOG_LINES = 1 << 18, 20
ENDING_S = reaper.TERM_GRACE_S + reaper.KILL_GRACE_S + 1.0
SHARED_BYTES = 1_100_000
"""Bytes of /dev/shm that MPI takes for each rank; measured with mpich 5.0.2."""
MORE_SHARED = (
    "make room there, or more of it: mount -o remount,size=1G /dev/shm, or docker run --shm-size=1g"
)

FOREIGN = (*("PMI_", "PMI2_", "PMIX_", "PALS_", "MPI_LOCAL"), *("OMPI_", "OPAL_", "ORTE_", "PRTE_"))
SLURM_STEP = (
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
    *("SLURM_TASK_PID", "SLURM_SRUN_COMM", "SLURM_MPI_TYPE", "SLURM_PMI"),
)
"""Prefixes of variables that another launcher has set: a rank that inherits them takes itself for a
rank of that launcher. Ranks that Slurm starts keep Slurm's own."""
_SCHEDULER = """\
import sys
import mindspore
mindspore.set_device(sys.argv[1])
mindspore.communication.init()
"""


@dataclass(frozen=True)
class Commands:
    """The commands of workers and scheduler; tests replace them."""

    worker: tuple[str, ...] = tuple(interpreter.command("-m", "mindspore_rl.runtime.rank.worker"))
    scheduler: tuple[str, ...] = tuple(interpreter.command("-c", _SCHEDULER))


def reserve_port(host: str) -> socket.socket:
    """Returns a socket that reserves a free port, on which another program can still listen.

    (The listener must set SO_REUSEADDR, as MindSpore does.)
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def check_shared_memory(num_ranks: int) -> None:
    """Checks that /dev/shm has room for the ranks of this machine. Raises: MsrlError."""
    free_bytes, needed_bytes = free_shared_bytes(), num_ranks * SHARED_BYTES
    if free_bytes < needed_bytes:
        raise MsrlError(
            f"{SHARED_MEMORY} has {free_bytes / 1e6:.1f} MB free, and MPI needs about "
            f"{needed_bytes / 1e6:.1f} MB for {num_ranks} ranks on this machine; {MORE_SHARED}"
        )


def foreign_variables(slurm: bool = False) -> list[str]:
    """Returns the variables that another launcher has set; with `slurm` without Slurm's."""
    prefixes = FOREIGN if slurm else (*FOREIGN, *SLURM_STEP)
    return sorted(name for name in os.environ if name.startswith(prefixes))


def worker_environment(
    run_dir: Path, host: str, port: int, device: str, slurm: bool = False
) -> dict[str, str]:
    """Returns the environment of a job's processes.

    Args:
        run_dir: the job's folder.
        host: address at which the coordinator listens.
        port: at which the coordinator listens.
        device: of the job.
        slurm: whether Slurm starts the ranks.
    """
    environment = {
        "GLOG_v": "3",
        # Seconds that a replica waits in MindSpore's collectives on the CPU. The default of 30 ends
        # a job where another still compiles on a busy core; `timeout_s` ends a real stall.
        "MS_CPU_COMM_OP_TIMEOUT": "1000000",
        # Without one Hydra writes /tmp/hydra_hwloc_xmlfile_*, and leaves it behind when killed.
        "HWLOC_XMLFILE": "",
        **os.environ,
        "MSRL_RUN": str(run_dir.resolve()),
        MARK: f"{host}:{port}",
        "MS_DEV_HOST_BLOCKING_RUN": "1",
        # Sets of strings have the same order in all ranks and in every run.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a traceback in the log
        "PYTHONIOENCODING": "utf-8:backslashreplace",  # environments may print any character
        **interpreter.environment(),
        **(gpu.environment() if device == "GPU" else {}),
    }
    for inherited in ("MSRL_SCHEDULER", "MSRL_CORES", *foreign_variables(slurm)):
        environment.pop(inherited, None)
    return environment


def mpi_options(deployment: Deployment, hosts: tuple[str, ...], folder: Path) -> list[str]:
    """Returns the options of Hydra: where to start ranks, and how.

    Args:
        deployment: that the ranks run on.
        hosts: of each rank; empty: all ranks on this machine.
        folder: where the file of hosts is written.
    """
    # Hydra must not end the other ranks when one dies: it would do so 1 ms later, too early to tell
    # which rank died first. `-rmk user`: this project chooses the hosts, not a batch system.
    common = ["-rmk", "user", "-prepend-rank", "-disable-auto-cleanup"]
    if not hosts:
        # The proxy forks the ranks, which inherit its environment; none is sent over a port.
        return ["-launcher", "fork", "-iface", "lo", "-genvnone", *common]
    file = folder / HOST_FILE
    with writing(file):
        file.write_text(deployment.host_file(hosts))
    options = [*common, "-f", str(file), "-localhost", deployment.address]
    if deployment.interface:
        options += ["-iface", deployment.interface]
    if deployment.launcher in LAUNCHERS:
        return [*options, "-launcher", deployment.launcher]
    program = str(Path(deployment.launcher).resolve())
    return [*options, "-launcher", "ssh", "-launcher-exec", program]


def guarded(environment: dict[str, str]) -> dict[str, str]:
    """Returns the environment for mpiexec and ranks on one host, with a library that guards them.

    Hydra listens on all networks, and any connection ends it while ranks start; UCX's segments are
    readable by the group. The preloaded library prevents both; without a compiler they stay open.
    """
    if toolchain.compiler() is None:
        return environment
    try:
        library = str(toolchain.library(GUARD, {}))
    except (MsrlError, OSError):
        return environment
    if re.search(r"[\s:]", library):  # LD_PRELOAD cannot name such a path
        return environment
    preloaded = [library, *filter(None, [environment.get("LD_PRELOAD")])]
    return {**environment, "LD_PRELOAD": ":".join(preloaded)}


def without_secrets(environment: dict[str, str], run_dir: Path) -> dict[str, str]:
    """Moves secrets from an environment to a file that ranks read.

    Hydra sends its environment to other hosts unencrypted.
    """
    secret = {name for name, value in environment.items() if SECRET.search(f"{name}={value}")}
    path = run_dir.resolve() / SECRETS_FILE
    with writing(path):
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump({name: environment[name] for name in secret}, file)
    rest = {name: value for name, value in environment.items() if name not in secret}
    return {**rest, "MSRL_SECRETS": str(path)}


def begin_guard() -> None:
    """Starts compiling the library of `guarded` in the background."""
    toolchain.begin(partial(toolchain.library, GUARD, {}))


def _libraries(plan: Plan) -> list[Callable[[], Path]]:
    """Returns the makers of libraries that ranks need after they have imported MindSpore."""
    reduces = plan.device == "CPU" and any(f.collectives for f in plan.fragments)
    return [group.library] * reduces + [bindings.library] * bool(plan.replays)


class JobProcesses:
    """mpiexec with the workers, and the MindSpore scheduler if the plan has a group.

    A context that ends all of them on exit.

    Attributes:
        token: a secret that only these processes know.
    """

    def __init__(
        self,
        plan: Plan,
        run_dir: Path,
        commands: Commands,
        deployment: Deployment,
        orphans: Orphans,
    ) -> None:
        self.mpiexec: Reaper | None = None
        self.scheduler: Reaper | None = None
        self._plan, self._run_dir, self._commands = plan, run_dir, commands
        self._deployment, self._orphans = deployment, orphans
        self._port: socket.socket | None = None
        self._mark = ""
        self.token = secrets.token_hex(16)
        self._log_starts: dict[str, int] = {}
        self._segments = reaper.shared_segments()

    def __enter__(self) -> "JobProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, port: int, cores: list[tuple[int, ...]] | None) -> None:
        """Starts all processes, which connect to `port`. Raises: MsrlError, OSError."""
        mpiexec = find_mpiexec()
        plan = self._plan
        check_shared_memory(sum(plan.same_host(rank, 0) for rank in range(plan.num_ranks)))
        address, slurm = self._deployment.address, self._deployment.launcher not in ("ssh", "fork")
        environment = worker_environment(
            self._run_dir, address, port, plan.device, bool(plan.hosts) and slurm
        )
        # On one host MPI's own shared memory carries all messages; UCX would listen on every
        # network without carrying any. UCX's files in /dev/shm would take four times as much, stay
        # if a rank is killed, and crash MPI when /dev/shm fills up half-way.
        environment.setdefault("UCX_TLS", "^posix" if plan.hosts else "self,sysv")
        self._mark = f"{MARK}={environment[MARK]}"
        if plan.group_ranks:  # first, and unpinned: else the group's `init()` hung
            host = self._deployment.address
            self._port = reserve_port(host)
            scheduler_port = self._port.getsockname()[1]
            environment["MSRL_SCHEDULER"] = f"{host}:{scheduler_port}"
            self.scheduler = self._start(
                "the MindSpore scheduler",
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
        environment = without_secrets({**environment, "MSRL_TOKEN": self.token}, self._run_dir)
        self.mpiexec = self._start(
            "mpiexec",
            [
                mpiexec,
                *mpi_options(self._deployment, plan.hosts, self._run_dir),
                "-n",
                str(plan.num_ranks),
                *self._commands.worker,
            ],
            WORKERS_LOG,
            environment if plan.hosts else guarded(environment),
        )
        toolchain.begin(*_libraries(plan))

    def _start(
        self, name: str, command: list[str], log: str, environment: dict[str, str]
    ) -> Reaper:
        path = self._run_dir / log
        with writing(path), path.open("ab") as output:
            self._log_starts[log] = output.tell()
            return Reaper(name, self._mark, command, environment, output)

    def log(self) -> str:
        """Returns the last output of mpiexec and the workers."""
        return self._tail(WORKERS_LOG)

    def _tail(self, log: str) -> str:
        """Returns the end of a log, without output of earlier starts of the job."""
        path = self._run_dir / log
        with path.open("rb") as file:
            file.seek(max(self._log_starts[log], path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")

    def output_of(self, rank: int) -> list[str]:
        """Returns a rank's last lines of output, from its crash on if Python caught one."""
        # Hydra writes `[rank] ` before every line and before every chunk that it happened to read.
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

    def why_bus_error(self) -> str:
        """Explains a rank's bus error, if the log has one, by the free shared memory."""
        if "Bus error" not in self.log():
            return ""
        free = f"{SHARED_MEMORY} has {free_shared_bytes() / 1e6:.1f} MB free now"
        return f"\n  a bus error can be shared memory that is not to be had: {free}; {MORE_SHARED}"

    def why_scheduler_ended(self) -> str:
        """Summarises the log of a scheduler that has ended."""
        text = self._tail(SCHEDULER_LOG)
        if "Failed to create the TCP server" in text and self._port is not None:
            address = "{}:{}".format(*self._port.getsockname())
            return f"another program had taken its port {address} before it; start again"
        return f"the end of {SCHEDULER_LOG}:\n" + "\n".join(text.splitlines()[-LOG_LINES:])

    def wait(self, timeout_s: float) -> None:
        """Waits for mpiexec, at most `timeout_s`."""
        if self.mpiexec is not None:
            self.mpiexec.wait(timeout_s)

    def end(self) -> None:
        """Ends every process of the job, including those that workers have started."""
        reapers = [kept for kept in (self.mpiexec, self.scheduler) if kept is not None]
        deadline = time.monotonic() + ENDING_S
        for kept in reapers:
            kept.ask_to_end()
        for kept in reapers:
            kept.wait(max(0.0, deadline - time.monotonic()))
            kept.end()
        if reapers:  # finds processes only if a reaper was killed or stopped
            self._orphans.end(self._mark)
            reaper.remove_segments(self._segments)
            with contextlib.suppress(OSError):
                (self._run_dir / SECRETS_FILE).unlink(missing_ok=True)
        if self._port is not None:
            self._port.close()

    def living_ranks(self) -> set[int]:
        """Returns the ranks that have a process on this machine, as Hydra numbers them."""
        every = (variable for variables in self.marked().values() for variable in variables)
        return {int(x.partition(b"=")[2]) for x in every if x.startswith(b"PMI_RANK=")}

    def marked(self) -> dict[int, list[bytes]]:
        """Returns the processes that carry this job's mark, and their environments."""
        return reaper.marked(self._mark.encode())
