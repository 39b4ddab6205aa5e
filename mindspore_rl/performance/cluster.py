"""Clusters of hosts and links on which a job is simulated."""

from dataclasses import dataclass, field

from mindspore_rl.performance.cost_tables import FragmentCosts, Link, MachineCosts
from mindspore_rl.performance.device_model import Device
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan


@dataclass(frozen=True)
class Cluster:
    """Hosts whose processors are like the one that was measured, and what is between them.

    Attributes:
        machine: its costs.
        far: messages between ranks of different hosts; None: as between those of one.
        far_bytes_per_s: of a network card.
        cores_of: cores of a host by name, if not as many as the measured machine has.
        device: a described one that cells run on, one a rank.
    """

    machine: MachineCosts
    far: Link | None = None
    far_bytes_per_s: float = float("inf")
    cores_of: dict[str, int] = field(default_factory=dict)
    device: Device | None = None

    @classmethod
    def described(cls, machine: MachineCosts, deployment: Deployment, device: Device) -> "Cluster":
        """A deployment's hosts with a described device each rank, and what joins them."""
        cores = {host.name: host.cores for host in deployment.hosts}
        far = device.link(machine.near)
        return cls(machine, far, device.far_bytes_per_s, cores, device)

    @classmethod
    def measured(cls, machine: MachineCosts, deployment: Deployment, far: Link) -> "Cluster":
        """A deployment's hosts, between which messages were measured."""
        return cls(machine, far, cores_of={host.name: host.cores for host in deployment.hosts})

    @property
    def oversleep_s(self) -> float:
        """See `MachineCosts`."""
        return self.machine.oversleep_s

    def cores(self, host: str) -> int:
        """Cores of a host."""
        return self.cores_of.get(host, self.machine.cores)

    def link(self, plan: Plan, source: int, target: int) -> Link:
        """Between two ranks."""
        if self.far is None or plan.same_host(source, target):
            return self.machine.near
        return self.far

    def reduce_s(self, plan: Plan, ranks: range, size: int) -> float:
        """A collective, from when the last rank comes.

        Between processors by recursive doubling: Thakur et al. 2005, "Optimization of collective
        communication operations in MPICH".
        """
        if self.device is not None:
            hosts = {plan.hosts[rank] for rank in ranks} if plan.hosts else {""}
            return self.device.reduce_s(len(ranks), len(hosts), size)
        rounds = (len(ranks) - 1).bit_length()
        slowest = max(self.link(plan, ranks[0], rank).reduce.at(size) for rank in ranks)
        return rounds * slowest

    def cell_s(self, costs: FragmentCosts, name: str) -> float | None:
        """What a cell takes on the device; None: it runs on the processor, as it was measured."""
        work = costs.work.get(name)
        if self.device is None or work is None:
            return None
        return self.device.cell_s(work)
