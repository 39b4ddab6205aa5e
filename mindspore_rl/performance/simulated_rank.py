"""One simulated rank, which executes the words of its script."""

import random
from collections import defaultdict, deque
from collections.abc import Generator, Iterator
from typing import Any

import simpy

from mindspore_rl.communication.mpi import OWN_CORE_SPIN_S, SPIN_S
from mindspore_rl.compiler.ir.ir import Program
from mindspore_rl.performance.cost_tables import Doing, FragmentCosts
from mindspore_rl.performance.cpu_model import HostModel, noticed_after
from mindspore_rl.performance.rank_script import (
    APART,
    BOUNDARY,
    CELL,
    RECEIVE,
    SEND,
    YIELD,
    Script,
    Word,
)
from mindspore_rl.performance.simulated_network import Network
from mindspore_rl.plan.traffic import CONTROL
from mindspore_rl.runtime.rank.leases import Tickets

WORD_BYTES = 16
Steps = Generator[Any, Any, Any]
NOTHING = Doing((0.0,), (0.0,))


class SimulatedRank:
    """One simulated rank, which executes the words of its script.

    Attributes:
        marks: end time of each of its iterations.
        spent: seconds since the end of its first iterations, by activity.
    """

    def __init__(
        self,
        job: Network,
        number: int,
        programs: dict[str, Program],
        costs: dict[str, FragmentCosts],
        host: HostModel,
    ) -> None:
        self.job, self.number, self.host = job, number, host
        self.fragment, self.replica = job.plan.fragment_of(number)
        self.script = Script(job.plan, number, programs[self.fragment.name], job.edges)
        self._known = costs[self.fragment.name]
        self.costs = self._known.doings
        self.marks: list[float] = []
        self.spent: dict[str, float] = defaultdict(float)
        self.over = job.env.event()
        self._before = ""
        self._meetings = 0
        self._told = False
        self._chance = random.Random(number)

    def run(self, iterations: int) -> Steps:
        """Executes the whole script."""
        for word in self.script.words(iterations):
            yield from self.do(word)

    def do(self, word: Word) -> Steps:
        """Executes one word, and the gap between it and the word before."""
        if word.kind == APART:
            yield from self._as_ready(word.parts)
            return
        yield from self._gap(word.name)
        if word.kind == CELL:
            yield from self._cell(word)
        elif word.kind == SEND:
            yield from self._send(word.peer, word.name.partition(" ")[2], word.sizes[0])
        elif word.kind == RECEIVE:
            yield from self._received(word)
        elif word.kind == BOUNDARY:
            yield from self._boundary()
        else:
            yield from self._work(word.name)

    def _as_ready(self, parts: tuple[Iterator[Word], ...]) -> Steps:
        """Executes the words of parts, each up to what it awaits, then whichever has that."""
        expected: dict[int, tuple[Word, ...]] = {}
        ready = list(range(len(parts)))
        while ready:
            for word in parts[ready[0]]:
                if word.kind == YIELD:
                    expected[ready[0]] = word.awaited
                    break
                yield from self.do(word)
            ready.pop(0)
            if not ready and expected:
                ready = [(yield from self._first_of(expected))]
                del expected[ready[0]]

    def _gap(self, name: str) -> Steps:
        key = f"{self._before} > {name}"
        if self._before and key in self.costs:
            yield from self._work(key, "Python")
        self._before = name

    def _work(self, name: str, kind: str = "") -> Steps:
        pieces = self.costs.get(name, NOTHING).once(self._chance)
        alone, busy = map(sum, zip(*pieces, strict=True))
        if name in self._known.asleep:
            yield from self._elsewhere(name, alone)
        else:
            yield from self._compute(kind or name, alone, busy)

    def _compute(self, kind: str, alone: float, busy: float) -> Steps:
        begun = self.job.env.now
        if alone > 0:
            yield self.host.work(alone, busy)
        self._spend(kind, begun)

    def _elsewhere(self, kind: str, seconds: float) -> Steps:
        """Spends time that needs no core of the host."""
        begun = self.job.env.now
        yield self.job.env.timeout(seconds)
        self._spend(kind, begun)

    def _spend(self, kind: str, begun: float) -> None:
        if len(self.marks) > 1 + self.job.plan.lag:
            self.spent[kind] += self.job.env.now - begun

    def _cell(self, word: Word) -> Steps:
        pieces = self.costs.get(word.name, NOTHING).once(self._chance)
        count = len(word.sizes) + 1
        if len(pieces) != count:
            sums = [sum(times) for times in zip(*pieces, strict=True)]
            pieces = [(sums[0] / count, sums[1] / count)] * count
        device_s = self.job.cluster.cell_s(self._known, word.name)
        whole_s = sum(alone for alone, _ in pieces) or 1.0
        for i, (alone, busy) in enumerate(pieces):
            if word.name in self._known.asleep:
                yield from self._elsewhere(word.name, alone)
            elif device_s is None:
                yield from self._compute(word.name, alone, busy)
            else:
                yield from self._elsewhere(word.name, device_s * alone / whole_s)
            if i < len(word.sizes):
                yield from self._reduce(word.collectives[i], word.sizes[i])

    def _reduce(self, name: str, size: int) -> Steps:
        job, ranks, begun = self.job, self.fragment.ranks, self.job.env.now
        job.count(name, size)
        meeting = job.meeting(self.fragment.name, self._meetings, len(ranks))
        self._meetings += 1
        if meeting.missing:
            yield from self._wait(meeting.complete)
        else:
            yield job.env.timeout(job.cluster.reduce_s(job.plan, ranks, size))
            meeting.complete.succeed()
        self._spend("collectives", begun)

    def _send(self, target: int, name: str, size: int) -> Steps:
        job = self.job
        job.count(name, size)
        seconds = job.cluster.link(job.plan, self.number, target).send.at(size)
        yield from self._compute(f"send {name}", seconds, seconds)
        job.deliver(self.number, target, name, size)

    def _received(self, word: Word) -> Steps:
        assert word.edge is not None
        if self._served and word.edge.message.parameters:
            yield from self._receive(word.peer, CONTROL, WORD_BYTES)
            self._told = True
        yield from self._receive(word.peer, word.name.partition(" ")[2], word.sizes[0])

    def _receive(self, source: int, name: str, size: int) -> Steps:
        job = self.job
        taken = job.box(source, self.number, name).get()
        begun = job.env.now
        yield from self._wait(taken)
        self._spend(f"waiting for {name}", begun)
        seconds = job.cluster.link(job.plan, source, self.number).receive.at(size)
        yield from self._compute(f"receive {name}", seconds, seconds)

    def _wait(self, event: simpy.Event) -> Steps:
        """Waits like a communicator: polls for a while, then sleeps until it is woken or looks."""
        env, begun = self.job.env, self.job.env.now
        if event.triggered:
            yield event
            return
        one_host = not self.job.plan.hosts
        spin_s = OWN_CORE_SPIN_S if self.host.pinned and one_host else SPIN_S
        self.host.spin(1)
        yield event | env.timeout(spin_s)
        self.host.spin(-1)
        if event.triggered:
            return
        share = self.job.cluster.machine.polling_share
        self.host.poll(share)
        yield event
        self.host.poll(-share)
        waited_s, oversleep_s = env.now - begun, self.job.cluster.oversleep_s
        noticed_s = noticed_after(waited_s, spin_s, oversleep_s)
        yield env.timeout(oversleep_s if one_host else noticed_s - waited_s)

    @property
    def _served(self) -> bool:
        arrivals = self.job.plan.arrivals
        return arrivals is not None and arrivals.sender == self.fragment.name

    def _boundary(self) -> Steps:
        """Simulates an iteration boundary: the leader tells all others to continue."""
        self.marks.append(self.job.env.now)
        plan, reported_s = self.job.plan, self.job.cluster.machine.reported_s
        if plan.in_one_process:
            yield from self._compute("coordinator", reported_s, reported_s)
        elif self.number == plan.leader:
            self.host.work(reported_s, reported_s)  # the coordinator is a process of its own
        if self._served:
            if not self._told:
                yield from self._received(self._parameters())
            self._told = False
        elif plan.num_ranks > 1 and self.number == 0:
            for target in range(1, plan.num_ranks):
                yield from self._send(target, CONTROL, 1)
        elif plan.num_ranks > 1:
            yield from self._receive(0, CONTROL, 1)
        yield from self._work("boundary")

    def _parameters(self) -> Word:
        for word in self.script.served():
            if word.kind == RECEIVE and word.edge and word.edge.message.parameters:
                return word
        raise AssertionError

    # ---- asynchronous ------------------------------------------------------------------------

    def serve(self, workers: range, turns: int) -> Steps:
        """Serves workers in the order of their messages, each with its own script."""
        plan, job = self.job.plan, self.job
        assert plan.arrivals is not None
        drops = plan.arrivals.drop_stale
        tickets = Tickets(None if drops else plan.arrivals.staleness)
        waiting = deque(range(len(workers)))
        scripts: dict[int, Iterator[Word]] = {}
        expected: dict[int, Word] = {}
        while len(self.marks) <= turns:
            while waiting and tickets.free():
                worker = waiting.popleft()
                yield from self._lend(worker, workers, tickets)
                if worker not in scripts:
                    scripts[worker] = iter(list(self.script.served()))
                    expected[worker] = _first_from(workers[worker], scripts[worker])
            worker = yield from self._first_of({one: (expected[one],) for one in tickets.read})
            word = expected[worker]
            name = word.name.partition(" ")[2]
            yield from self._gap(word.name)
            yield from self._receive(workers[worker], name, word.sizes[0])
            del expected[worker]
            while (following := next(scripts[worker], None)) is not None:
                if following.kind == RECEIVE:
                    if following.peer == workers[worker]:
                        expected[worker] = following
                        break
                elif following.kind == SEND:
                    if following.peer != workers[worker]:
                        continue
                    assert following.edge is not None
                    if following.edge.message.parameters:
                        tickets.end(worker, True)
                        waiting.append(worker)
                    else:
                        yield from self.do(following)
                else:
                    yield from self.do(following)
            if following is None:
                del scripts[worker]
                self.marks.append(job.env.now)
                self.host.work(job.cluster.machine.reported_s, job.cluster.machine.reported_s)
        self.over.succeed()

    def serve_batches(self, workers: range, turns: int) -> Steps:
        """Makes updates with the rows of the first workers that are there."""
        arrivals = self.job.plan.arrivals
        assert arrivals is not None
        tickets = Tickets(arrivals.staleness, arrivals.gather)
        waiting = deque(range(len(workers)))
        script = list(self.script.served())
        rows = {workers.index(word.peer): word for word in script if word.kind == RECEIVE}
        while len(self.marks) <= turns:
            while waiting and tickets.free():
                yield from self._lend(waiting.popleft(), workers, tickets)
            batch: list[int] = []
            while len(batch) < arrivals.gather:
                worker = yield from self._first_of({one: (rows[one],) for one in tickets.read})
                word = rows[worker]
                yield from self._gap(word.name)
                yield from self._receive(word.peer, word.name.partition(" ")[2], word.sizes[0])
                tickets.arrive(worker)
                batch.append(worker)
                waiting.extend([worker] if arrivals.kept else [])
                while arrivals.kept and waiting and tickets.free():
                    yield from self._lend(waiting.popleft(), workers, tickets)
            tickets.take()
            waiting.extend([] if arrivals.kept else batch)
            while waiting and tickets.free():
                yield from self._lend(waiting.popleft(), workers, tickets)
            for word in script:
                if word.kind not in (RECEIVE, SEND):
                    yield from self.do(word)
            tickets.made()
            self.marks += [self.job.env.now] * len(batch)
            reported_s = self.job.cluster.machine.reported_s
            self.host.work(reported_s, reported_s)
        self.over.succeed()

    def _lend(self, worker: int, workers: range, tickets: Tickets) -> Steps:
        """Sends parameters, with which a worker's lease begins."""
        first = next(m for m in self.job.plan.messages if m.parameters)
        yield from self._send(workers[worker], CONTROL, WORD_BYTES)
        yield from self._send(workers[worker], first.name, first.parameter_bytes)
        tickets.begin(worker)

    def _first_of(self, expected: dict[int, tuple[Word, ...]]) -> Steps:
        """Waits for all messages of one of several. Returns: its number."""
        job = self.job
        begun = job.env.now
        while True:
            for number, words in expected.items():
                names = [(word.peer, word.name.partition(" ")[2]) for word in words]
                if all(job.box(peer, self.number, name).items for peer, name in names):
                    self._spend("waiting", begun)
                    return number
            event = job.arrived.setdefault(self.number, job.env.event())
            yield from self._wait(event)


def _first_from(rank: int, script: Iterator[Word]) -> Word:
    """Returns the first message of a rank in a script, and advances the script past it."""
    return next(word for word in script if word.kind == RECEIVE and word.peer == rank)
