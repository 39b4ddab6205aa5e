"""Messages and collectives of a simulated job that are under way."""

from collections import defaultdict
from typing import Any

import simpy

from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cpu_model import Meeting
from mindspore_rl.plan.edges import edges_by_chunk
from mindspore_rl.plan.plan import Plan


class Network:
    """The messages and collectives between the ranks of a job, in virtual time.

    Args:
        plan: of the job.
        cluster: hosts and network that it runs on.

    Attributes:
        env: the virtual time.
        arrived: by rank, an event at the next message to it.
        traffic: calls and bytes by message or collective, over all ranks and iterations.
    """

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan, self.cluster = plan, cluster
        self.env = simpy.Environment()
        self.cards: dict[tuple[str, str], float] = defaultdict(float)
        self.boxes: dict[tuple[Any, ...], simpy.Store] = {}
        self.arrived: dict[int, simpy.Event] = {}
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.traffic: dict[str, tuple[int, int]] = {}
        self.edges = edges_by_chunk(plan)
        self._put_lagged()

    def _put_lagged(self) -> None:
        """Puts the initial parameters that wait at the actors into their queues."""
        for name, edge in self.edges[0].items():
            for i, j in edge.pairs:
                box = self.box(edge.source.first_rank + i, edge.target.first_rank + j, name)
                for _ in range(edge.message.lag):
                    box.put(0.0)

    def box(self, source: int, target: int, name: str) -> simpy.Store:
        """Returns the queue of messages under way from one rank to another."""
        key = (source, target, name)
        if key not in self.boxes:
            self.boxes[key] = simpy.Store(self.env)
        return self.boxes[key]

    def count(self, name: str, size: int) -> None:
        """Counts a call."""
        calls, total = self.traffic.get(name, (0, 0))
        self.traffic[name] = (calls + 1, total + size)

    def deliver(self, source: int, target: int, name: str, size: int) -> None:
        """Schedules a message's arrival, after the link's delay and the network cards' queues."""
        now, link = self.env.now, self.cluster.link(self.plan, source, target)
        delay = link.transit.at(size)
        if not self.plan.same_host(source, target):
            hosts = self.plan.hosts
            carried = size / self.cluster.far_bytes_per_s
            out, into = ("out", hosts[source]), ("in", hosts[target])
            begin = max(now, self.cards[out], self.cards[into])
            self.cards[out] = self.cards[into] = begin + carried
            delay += begin + carried - now
        self.env.timeout(delay).callbacks.append(lambda _: self._arrive(source, target, name))

    def _arrive(self, source: int, target: int, name: str) -> None:
        self.box(source, target, name).put(self.env.now)
        waiting = self.arrived.pop(target, None)
        if waiting is not None:
            waiting.succeed()

    def meeting(self, fragment: str, number: int, members: int) -> Meeting:
        """Returns a collective of a fragment, shared by all ranks that enter it."""
        key = (fragment, number)
        found = self.meetings.setdefault(key, Meeting(self.env.event(), members))
        found.missing -= 1
        if not found.missing:
            del self.meetings[key]
        return found
