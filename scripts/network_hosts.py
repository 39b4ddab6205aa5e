#!/usr/bin/env python3
"""Makes several hosts on one machine: network namespaces with their own addresses, as root.

    with Network(hosts=2) as network:
        network.write_deployment(Path("hosts.yaml"), policy="GPUOnly", workers=2)
        network.run(0, ["msrl", "train", "ppo", "--deployment", "hosts.yaml"])

or from a shell:

    scripts/network_hosts.py --hosts 2 --delay-ms 1 -- msrl train ppo --deployment {} --workers 3

It makes the hosts, runs the command on the first of them with a deployment file in place of
`{}`, and removes everything. Host i has the address 10.77.0.<i+1> on eth0. Without a delay, eth0
is a virtual cable (veth) to a switch (bridge) in its own namespace, so nothing appears in the
machine's own network; with a delay, it is a TUN device of `network_relay.cpp`, because not every
kernel has `tc netem`. The hosts share the machine's processors and its files.

`network_launcher.sh` starts ranks instead of ssh. With `--ssh`, ssh starts them, and then hosts
do not see each other's processes either.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAUNCHER = HERE / "network_launcher.sh"
SSHD = Path("/usr/sbin/sshd")
SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
LogLevel ERROR
"""
SSH_CONFIG = """
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""
OWN_PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
MTU = 9000


def why_not(ssh: bool = False) -> str:
    """Returns why hosts cannot be made here, or an empty text."""
    if ssh and not SSHD.exists():
        return f"no {SSHD} (Debian: apt-get install openssh-server)"
    if not shutil.which("ip"):
        return "no `ip` on PATH (Debian: apt-get install iproute2)"
    name = f"msrl-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL)


class Network:
    """Hosts that reach each other and nothing else; as a context, removes them at its end.

    Args:
        hosts: the number of hosts, at least 2.
        delay_ms: the one-way latency between hosts; None: a cable without added latency.
        ssh: True: each host has its own processes and an ssh server.
        loss: the fraction of packets lost between hosts; with a delay only.
        pinned: True: each host has one core of this machine; False: all of them.
    """

    def __init__(
        self,
        hosts: int,
        delay_ms: float | None = None,
        ssh: bool = False,
        pinned: bool = False,
        loss: float = 0.0,
    ) -> None:
        self.names = [f"msrl-{os.getpid()}-{i}" for i in range(hosts)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(hosts)]
        self._delay_ms, self._ssh, self._pinned, self._loss = delay_ms, ssh, pinned, loss
        self._servers: list[subprocess.Popen] = []
        self._switch = f"msrl-{os.getpid()}-switch"
        self._relay: subprocess.Popen | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="msrl-network-")

    def __enter__(self) -> "Network":
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            if self._delay_ms is None:
                self._plug_in()
            else:
                self._start_relay()
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
            if self._ssh:
                self._start_ssh()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self.end_processes(name)
        for server in self._servers:
            server.wait()
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        for name in [*self.names, self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._folder.cleanup()

    def _plug_in(self) -> None:
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for i, name in enumerate(self.names):
            cable = ["link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0"]
            _ip("-n", switch, *cable, "netns", name)
            _ip("-n", switch, "link", "set", f"port{i}", "master", "switch", "up")

    def _start_relay(self) -> None:
        program = Path(self._folder.name) / "network_relay"
        build = ["g++", "-O2", "-o", str(program), str(HERE / "network_relay.cpp")]
        subprocess.run(build, check=True)
        self._relay = subprocess.Popen(
            [program, str(self._delay_ms), str(self._loss), *self.names],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "ready\n":
            raise RuntimeError("the relay did not start; it says why above")
        for name in self.names:
            _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU))

    def _start_ssh(self) -> None:
        """Starts a server on every host, with keys for this network only."""
        folder = Path(self._folder.name)
        for key in ("host_key", "key"):
            generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(generate, check=True)
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
        (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
        Path("/run/sshd").mkdir(exist_ok=True)
        for host in range(1, len(self.names)):
            server = self.command(host, [str(SSHD), "-D", "-f", str(folder / "sshd_config")])
            self._servers.append(subprocess.Popen(server))

    def command(self, host: int, command: list[str]) -> list[str]:
        """Returns a command that runs on a host."""
        own = OWN_PROCESSES if self._ssh else []
        cores = sorted(os.sched_getaffinity(0))
        core = ["taskset", "-c", str(cores[host % len(cores)])] if self._pinned else []
        return ["ip", "netns", "exec", self.names[host], *own, *core, *command]

    def environment(self) -> dict[str, str]:
        """Returns variables for commands: UCX would use shared memory between these hosts."""
        extra = {"HYDRA_LAUNCHER_EXTRA_ARGS": f"-F {self._folder.name}/ssh_config"}
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if self._pinned else ""
        found = {**os.environ, "UCX_TLS": "self,tcp", "NETWORK_CORES": cores}
        return {**found, **(extra if self._ssh else {})}

    def run(self, host: int, command: list[str]) -> int:
        """Runs a command on a host. Returns: its exit status."""
        done = subprocess.run(self.command(host, command), env=self.environment(), check=False)
        return done.returncode

    def cut(self, host: int) -> None:
        """Takes a host's link down, at the other end of its cable."""
        if self._relay is not None:
            raise ValueError("a host behind the relay cannot be cut off; make one without delay")
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Takes the link up again."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def processes(self, name: str) -> list[int]:
        """Returns the processes in a host's namespace, given its name."""
        found = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def end_processes(self, name: str) -> None:
        """Kills the processes in a namespace."""
        deadline = time.monotonic() + 5.0
        while (left := self.processes(name)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def write_deployment(
        self, file: Path, policy: str = "", workers: int = 0, slots: int = 1
    ) -> None:
        """Writes the deployment file of these hosts, with a limit on each host's ranks."""
        lines = ["hosts:"]
        for i, address in enumerate(self.addresses):
            lines.append(f"  - {{name: host{i}, address: {address}, slots: {slots}}}")
        lines += ["interface: eth0", f"launcher: {'ssh' if self._ssh else LAUNCHER}"]
        lines += [f"policy: {policy}"] if policy else []
        lines += [f"workers: {workers}"] if workers else []
        file.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="ranks per host (default: 1)")
    parser.add_argument("--delay-ms", type=float, help="one-way latency (default: none, a cable)")
    parser.add_argument("--ssh", action="store_true", help="start ranks over ssh")
    parser.add_argument("command", nargs="+", help="{} stands for the deployment file")
    args = parser.parse_args()
    if reason := why_not(args.ssh):
        print(f"network_hosts: {reason}", file=sys.stderr)
        return 2
    with (
        Network(args.hosts, args.delay_ms, args.ssh) as network,
        tempfile.TemporaryDirectory() as folder,
    ):
        file = Path(folder) / "hosts.yaml"
        network.write_deployment(file, slots=args.slots)
        return network.run(0, [word.replace("{}", str(file)) for word in args.command])


if __name__ == "__main__":
    sys.exit(main())
