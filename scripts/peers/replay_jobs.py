"""Starts our ranks in the benchmark of replay tables, on one host or on several."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SCRIPTS))
from network_hosts import LAUNCHER, Network, why_not  # noqa: E402

__all__ = ["link_rate", "note", "read", "why_not"]
LINK_GBIT = 1.0
SHAPE = ("tbf", "rate", f"{LINK_GBIT:g}gbit", "burst", "256kb", "latency", "50ms")
TIMEOUT_S = 300


def link_rate() -> float:
    """Return the GB/s that the link could send to one host."""
    return LINK_GBIT / 8


def read(python: Path, ranks: int, hosts: int, arguments: list[str]) -> dict[str, float]:
    """Return rank 0's report on a sharded table that all ranks read.

    Args:
        python: the interpreter of the virtual environment.
        ranks: the number of ranks.
        hosts: network namespaces, one rank on each; 0: this host.
        arguments: those of `replay_ranks.py`.

    Raises:
        SystemExit: it failed; with its output.
    """
    with tempfile.TemporaryDirectory(prefix="msrl-replay-", dir="/dev/shm") as folder:
        program = [str(python), str(SCRIPTS / "peers" / "replay_ranks.py"), *arguments]
        program += ["--table", folder]
        mpiexec = [str(python.with_name("mpiexec")), "-rmk", "user", "-n", str(ranks)]
        if not hosts:
            environment = {**os.environ, "UCX_TLS": "self,sysv"}
            return _told([*mpiexec, "-launcher", "fork", "-iface", "lo", *program], environment)
        with Network(hosts) as network:
            for host in range(hosts):
                shape = ["tc", "qdisc", "add", "dev", "eth0", "root", *SHAPE]
                subprocess.run(network.command(host, shape), check=True)
            file = Path(folder) / "hosts"
            file.write_text("".join(f"{address}:1\n" for address in network.addresses))
            launcher = ["-launcher", "ssh", "-launcher-exec", str(LAUNCHER)]
            here = ["-f", str(file), "-localhost", network.addresses[0], "-iface", "eth0"]
            command = [*mpiexec, *launcher, *here, *program, "--hosts"]
            return _told(network.command(0, command), network.environment())


def _told(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(lines[-1])


def note(found: dict[str, float]) -> str:
    """Return the link's traffic, in words."""
    return (
        f"{found['moved']:.1%} of all rows cross, {found['predicted'] / 1e6:,.1f} MB as predicted, "
        f"{found['crossed'] / 1e6:,.1f} MB counted on the link with all headers "
        f"({found['crossed'] / max(found['predicted'], 1):.3f} x)"
    )
