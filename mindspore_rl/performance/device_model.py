"""Model of a device and a network that are described by public figures."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mindspore_rl import config
from mindspore_rl.errors import ConfigError
from mindspore_rl.performance.cost_tables import CostTable, LinkCosts
from mindspore_rl.platform.yaml_files import read_yaml

POINTS = (0, 1 << 30)


@dataclass(frozen=True)
class Device:
    """A GPU, the links between GPUs of a host, and the network between hosts."""

    operations_per_s: float = config.option(1e12, "single precision", gt=0)
    memory_bytes_per_s: float = config.option(1e11, "of its memory", gt=0)
    launch_s: float = config.option(5e-6, "from one operator to the next", ge=0)
    near_latency_s: float = config.option(5e-6, "of a step between GPUs of a host", ge=0)
    near_bytes_per_s: float = config.option(1e11, "between GPUs of a host, one way", gt=0)
    far_latency_s: float = config.option(25e-6, "of a message between hosts", ge=0)
    far_bytes_per_s: float = config.option(1.17e9, "of a host's network card, one way", gt=0)

    def cell_s(self, work: tuple[float, float, float]) -> float:
        """Returns a cell's seconds: launches plus the longer of operations and memory traffic.

        Williams et al. 2009, "Roofline: an insightful visual performance model".
        """
        launches, operations, moved = work
        return launches * self.launch_s + max(
            operations / self.operations_per_s, moved / self.memory_bytes_per_s
        )

    def reduce_s(self, ranks: int, hosts: int, size: int) -> float:
        """Returns the seconds of an all-reduce: as a ring, or as a tree if that is faster.

        Thakur et al. 2005, "Optimization of collective communication operations in MPICH".
        """
        if ranks == 1:
            return 0.0
        latency_s, bytes_per_s = self.near_latency_s, self.near_bytes_per_s
        if hosts > 1:
            latency_s = max(latency_s, self.far_latency_s)
            bytes_per_s = min(bytes_per_s, self.far_bytes_per_s)
        ring = 2 * (ranks - 1) * (latency_s + size / ranks / bytes_per_s)
        tree = 2 * (ranks - 1).bit_length() * (latency_s + size / bytes_per_s)
        return min(ring, tree)

    def link(self, near: LinkCosts) -> LinkCosts:
        """Returns messages between hosts, with the processor time of messages measured here."""
        flat = CostTable(POINTS, (self.far_latency_s,) * 2)
        return LinkCosts(near.send, near.receive, flat, flat)


def load(file: Path) -> tuple[Device, dict[str, str]]:
    """Reads a description. Returns: the device, and the source of each of its figures.

    Raises:
        ConfigError: a figure or its source is missing, or a figure is invalid.
    """
    found = read_yaml(file)
    sources: Any = found.pop("sources", None)
    expected = [f.name for f in fields(Device)]
    for what, given in (("figure", found), ("source of", sources)):
        lacking = [name for name in expected if not isinstance(given, dict) or name not in given]
        if lacking:
            raise ConfigError(
                f"{file} has no {what} {', '.join(lacking)}; expected for each of "
                f"{', '.join(expected)} a number, and under `sources` where it comes from"
            )
    try:
        return config.resolve(Device, None, {}, [f"{k}={v}" for k, v in found.items()]), sources
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
