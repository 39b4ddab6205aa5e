"""A Slurm cluster on the hosts of `network_hosts.py`: a controller, and a node on each host."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
NETNS = Path("/etc/netns")
CONFIG = """
ClusterName=msrl
SlurmctldHost={here}({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={down_after_s}
KillWait={kill_wait_s}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
CGROUPS = "CgroupPlugin=cgroup/v1\n"  # not used; v2 does not start in a namespace
DOWN_AFTER_S, KILL_WAIT_S = 12, 20


def why_not() -> str:
    """Returns why no cluster can be made here, or an empty text."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} on PATH (Debian: apt-get install slurm-wlm munge)"
    return ""


class Slurm:
    """A cluster; as a context, ends it.

    Args:
        network: a `network_hosts.py` network; node i is its host i.
        folder: the folder for the daemons' files.
    """

    def __init__(self, network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.nodes = [f"host{i}" for i in range(len(network.names))]
        self._daemons: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "Slurm":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self.network.names:
            shutil.rmtree(NETNS / name, ignore_errors=True)

    def _start(self) -> None:
        addresses = self.network.addresses
        pairs = list(zip(addresses, self.nodes, strict=True))
        names = "".join(f"{address} {node}\n" for address, node in pairs)
        for name in self.network.names:
            (NETNS / name).mkdir(parents=True)
            (NETNS / name / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for node in ("state", *self.nodes):
            (self.folder / node).mkdir()
        text = CONFIG.format(
            here=socket.gethostname(),
            controller=addresses[0],
            folder=self.folder,
            down_after_s=DOWN_AFTER_S,
            kill_wait_s=KILL_WAIT_S,
        )
        for address, node in pairs:
            text += f"NodeName={node} NodeAddr={address} CPUs=2 RealMemory=1000\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(CGROUPS)
        self._munge()
        config = str(self.folder / "slurm.conf")
        self._daemon("slurmctld", 0, ["slurmctld", "-D", "-f", config])
        for i, node in enumerate(self.nodes):
            self._daemon(node, i, ["slurmd", "-D", "-N", node, "-f", config])
        self._until(lambda: self.run("sinfo", "-h", "-o", "%T") == "idle", 30)

    def _munge(self) -> None:
        key, at = self.folder / "munge.key", str(self.folder / "munge")
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = [f"--{what}={at}.{end}" for what, end in (
            ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
        )]  # fmt: skip
        command = ["munged", "--foreground", "--force", f"--key-file={key}", *places]
        self._daemon("munged", None, command)
        self._until((self.folder / "munge.socket").exists, 10)

    def _daemon(self, name: str, host: int | None, command: list[str]) -> None:
        if host is not None:
            command = self.network.command(host, command)
        log = (self.folder / f"{name}.out").open("w")
        self._daemons[name] = subprocess.Popen(
            command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def environment(self) -> dict[str, str]:
        """Returns the variables of commands that use the cluster."""
        return {**self.network.environment(), "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Returns the output of a command on the first node; empty if it fails."""
        done = subprocess.run(
            self.network.command(0, list(command)),
            env=self.environment(),
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def state(self, job: str) -> str:
        """Returns the state of a job, such as RUNNING or NODE_FAIL."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return next((w.partition("=")[2] for w in words if w.startswith("JobState=")), "")

    def lose(self, node: int) -> None:
        """Removes a node from the cluster: cuts its cable, and ends its processes."""
        self.network.cut(node)
        self.network.end_processes(self.network.names[node])

    def _until(self, condition, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "".join(
                f"== {file.name}\n{file.read_text()[-2000:]}" for file in self.folder.glob("*.log")
            )
            time.sleep(0.2)
