"""Deployments: a file of hosts, and the placement of ranks on them."""

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from mindspore_rl import config
from mindspore_rl.errors import ConfigError, MsrlError, install
from mindspore_rl.platform.names import RULE, is_name

LOCAL_ADDRESS = "127.0.0.1"
LAUNCHERS = ("ssh", "slurm", "fork")


@dataclass(frozen=True)
class Host:
    """A machine that can run ranks."""

    name: str = field(metadata={"help": "for plans and messages"})
    address: str = field(metadata={"help": "address or name by which all hosts reach it"})
    cores: int = field(default=1, metadata={"help": "CPU cores: ranks that it takes on CPUs"})
    gpus: int = field(default=0, metadata={"help": "GPUs: ranks that it takes with --device gpu"})
    slots: int | None = field(default=None, metadata={"help": "ranks that it takes, if not those"})

    def __post_init__(self) -> None:
        if not is_name(self.name) or not is_name(self.address):
            raise ValueError(
                f"host name={self.name!r}, address={self.address!r}; expected a name, and an IPv4 "
                "address or host name, for example `{name: node1, address: 10.0.0.1, cores: 16}`; "
                f"both are {RULE}"
            )
        for key in ("cores", "slots"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ValueError(f"host {self.name}: {key} is {value}, expected at least 1")
        if self.gpus < 0:
            raise ValueError(f"host {self.name}: gpus is {self.gpus}, expected at least 0")

    def capacity(self, device: str) -> int:
        """Returns how many ranks the host takes if cells run on a device."""
        if self.slots is not None:
            return self.slots
        return self.gpus if device == "GPU" else self.cores


@dataclass(frozen=True)
class Deployment:
    """The hosts of a job; by default this machine.

    The coordinator, the MindSpore scheduler and the leader run on the first host.
    """

    hosts: tuple[Host, ...] = field(default=(), metadata={"help": "none: this machine"})
    interface: str = field(default="", metadata={"help": "network interface, such as eth0"})
    launcher: str = field(
        default="ssh",
        metadata={"help": "ssh, slurm, fork, or a program to be called like ssh: PROGRAM HOST ..."},
    )
    policy: str | None = field(default=None, metadata={"help": "if --policy does not say"})
    workers: int | None = config.option(None, "if --workers does not say", ge=1)

    def __post_init__(self) -> None:
        for key in ("name", "address"):
            values = [getattr(host, key) for host in self.hosts]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(
                    f"hosts: {key} {twice[0]} occurs {values.count(twice[0])} times; expected "
                    "every host once (`slots: 2` lets one take two ranks)"
                )
        if self.interface and not is_name(self.interface):
            raise ValueError(f"interface is {self.interface!r}, expected one such as eth0: {RULE}")
        program = Path(self.launcher)
        usable = program.is_file() and os.access(program, os.X_OK)
        if self.launcher not in LAUNCHERS and not usable:
            raise ValueError(
                f"launcher is {self.launcher!r}, expected {', '.join(LAUNCHERS)}, or the path of "
                "a program that may be run (seen from where `msrl` is started)"
            )

    @property
    def spans_hosts(self) -> bool:
        """True if the job has more than one host."""
        return len(self.hosts) > 1

    @property
    def address(self) -> str:
        """Address at which the coordinator and the MindSpore scheduler listen."""
        return self.hosts[0].address if self.spans_hosts else LOCAL_ADDRESS

    def place(self, num_ranks: int, device: str) -> tuple[str, ...]:
        """Places ranks on hosts: consecutive ranks fill the hosts in their order.

        Returns: the host name of each rank; empty if all run on this machine.

        Raises:
            ConfigError: the hosts have too few slots.
        """
        if not self.spans_hosts:
            return ()
        places = [host.name for host in self.hosts for _ in range(host.capacity(device))]
        if num_ranks > len(places):
            room = ", ".join(f"{host.name} {host.capacity(device)}" for host in self.hosts)
            raise ConfigError(
                f"the job has {num_ranks} ranks, and its hosts take {len(places)} on "
                f"{device} ({room}); add hosts, ask for fewer --workers, or set `slots` of a host"
            )
        return tuple(places[:num_ranks])

    def host_file(self, hosts: tuple[str, ...]) -> str:
        """Formats MPI's host file for placed ranks: `address:ranks`, one line for each host."""
        counts = {host.address: hosts.count(host.name) for host in self.hosts}
        return "".join(f"{address}:{count}\n" for address, count in counts.items() if count)


def load(file: Path) -> Deployment:
    """Reads a deployment file.

    Raises:
        ConfigError: it cannot be read, or does not describe a deployment.
    """
    try:
        return config.resolve(Deployment, file, {}, ())
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(str(file)) else f"{file}: {text}") from None


def find_mpiexec() -> str:
    """Returns the path of the MPI launcher. Raises: MsrlError."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise MsrlError(
            f"no mpiexec beside {sys.executable} nor on PATH, and a job of several "
            f"ranks needs MPICH's; {install()}"
        )
    return found
