"""Clusters of hosts and links on which a job is simulated."""

from dataclasses import dataclass, field

from mindspore_rl.performance.cost_tables import FragmentCosts, LinkCosts, MachineCosts
from mindspore_rl.performance.device_model import Device
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan


@dataclass(frozen=True)
class Cluster:
    """Simulated hosts, whose processors are like the measured machine's, and their network.

    Attributes:
        machine: costs of the measured machine.
        far: costs of messages between ranks of different hosts; None: as between ranks of one host.
        far_bytes_per_s: throughput of a host's network card.
        cores_of: cores of a host by name; others have as many as the measured machine.
        device: a described device that runs the cells, one for each rank; None: the processor.
    """

    machine: MachineCosts
    far: LinkCosts | None = None
    far_bytes_per_s: float = float("inf")
    cores_of: dict[str, int] = field(default_factory=dict)
    device: Device | None = None

    @classmethod
    def described(cls, machine: MachineCosts, deployment: Deployment, device: Device) -> "Cluster":
        """Makes a cluster of a deployment's hosts, with a described device and network."""
        cores = {host.name: host.cores for host in deployment.hosts}
        far = device.link(machine.near)
        return cls(machine, far, device.far_bytes_per_s, cores, device)

    @classmethod
    def measured(cls, machine: MachineCosts, deployment: Deployment, far: LinkCosts) -> "Cluster":
        """Makes a cluster of a deployment's hosts, with measured messages between them."""
        return cls(machine, far, cores_of={host.name: host.cores for host in deployment.hosts})

    @property
    def oversleep_s(self) -> float:
        """See `MachineCosts`."""
        return self.machine.oversleep_s

    def cores(self, host: str) -> int:
        """Returns the cores of a host."""
        return self.cores_of.get(host, self.machine.cores)

    def link(self, plan: Plan, source: int, target: int) -> LinkCosts:
        """Returns the costs of messages between two ranks."""
        if self.far is None or plan.same_host(source, target):
            return self.machine.near
        return self.far

    def reduce_s(self, plan: Plan, ranks: range, size: int) -> float:
        """Returns the seconds of a collective, counted from the last rank's arrival.

        On processors by recursive doubling: Thakur et al. 2005, "Optimization of collective
        communication operations in MPICH".
        """
        if self.device is not None:
            hosts = {plan.hosts[rank] for rank in ranks} if plan.hosts else {""}
            return self.device.reduce_s(len(ranks), len(hosts), size)
        rounds = (len(ranks) - 1).bit_length()
        slowest = max(self.link(plan, ranks[0], rank).reduce.at(size) for rank in ranks)
        return rounds * slowest

    def cell_s(self, costs: FragmentCosts, name: str) -> float | None:
        """Returns a cell's seconds on the device; None: it runs on the processor, as measured."""
        work = costs.work.get(name)
        if self.device is None or work is None:
            return None
        return self.device.cell_s(work)
