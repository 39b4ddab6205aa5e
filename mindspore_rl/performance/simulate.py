"""Simulates a plan in virtual time: every rank, with costs in place of work."""

from dataclasses import dataclass

from mindspore_rl.compiler.ir.ir import Program
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cost_tables import FragmentCosts
from mindspore_rl.performance.cpu_model import HostModel
from mindspore_rl.performance.simulated_network import Network
from mindspore_rl.performance.simulated_rank import SimulatedRank
from mindspore_rl.plan.plan import Plan


@dataclass(frozen=True)
class Simulation:
    """Results of a simulated job.

    Attributes:
        iteration_s: mean seconds of the simulated iterations, without the first.
        spent: seconds of an iteration, by rank and activity: `cell act`, `waiting`, ...
        traffic: calls and bytes by message or collective, over all ranks and iterations.
    """

    iteration_s: float
    spent: list[dict[str, float]]
    traffic: dict[str, tuple[int, int]]


class Simulator:
    """Discrete-event simulation of a job in virtual time.

    Args:
        plan: of the job.
        programs: of its fragments, with regions.
        costs: of its fragments.
        cluster: hosts and network that it runs on.
    """

    def __init__(
        self,
        plan: Plan,
        programs: dict[str, Program],
        costs: dict[str, FragmentCosts],
        cluster: Cluster,
    ) -> None:
        self.plan = plan
        self.network = Network(plan, cluster)
        self.env = self.network.env
        names = plan.hosts or ("",) * plan.num_ranks
        hosts = {
            name: HostModel(self.env, cluster.cores(name), names.count(name)) for name in set(names)
        }
        self.ranks = [
            SimulatedRank(self.network, rank, programs, costs, hosts[names[rank]])
            for rank in range(plan.num_ranks)
        ]

    def run(self, iterations: int) -> Simulation:
        """Simulates so many iterations; the first, and as many as the lag, are discarded."""
        if self.plan.arrivals is not None:
            return self._asynchronous(iterations)
        for rank in self.ranks:
            self.env.process(rank.run(iterations))
        self.env.run()
        marks, first = self.ranks[0].marks, 1 + self.plan.lag
        return self._result(marks[-1] - marks[first], len(marks) - 1 - first)

    def _asynchronous(self, iterations: int) -> Simulation:
        arrivals = self.plan.arrivals
        assert arrivals is not None
        served = next(f for f in self.plan.fragments if f.name == arrivals.sender)
        each = len(served.ranks) // arrivals.consumers
        for rank in self.ranks:
            fragment, replica = self.plan.fragment_of(rank.number)
            if fragment.name == arrivals.consumer:
                serve = rank.serve_batches if arrivals.gather else rank.serve
                own = served.ranks[replica * each : (replica + 1) * each]
                self.env.process(serve(own, iterations * each))
            else:
                self.env.process(rank.run(1 << 30))
        server = self.ranks[self.plan.leader]
        self.env.run(until=server.over)
        marks = server.marks
        turns = sum(mark > marks[each] for mark in marks)  # a batch ends those of several workers
        return self._result(marks[-1] - marks[each], turns / each)

    def _result(self, seconds: float, iterations: float) -> Simulation:
        counted = [
            {name: time / iterations for name, time in rank.spent.items()} for rank in self.ranks
        ]
        return Simulation(seconds / iterations, counted, self.network.traffic)
