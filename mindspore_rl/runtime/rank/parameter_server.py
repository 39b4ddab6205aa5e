"""The parameter server of an asynchronous job, which serves one worker's sums at a time."""

from typing import Any

import numpy as np

from mindspore_rl.runtime.rank.exchange import Exchange
from mindspore_rl.runtime.rank.leases import Leases
from mindspore_rl.runtime.rank.messenger import CONTINUE, CONTROL_TAG, PAUSE
from mindspore_rl.runtime.rank.rank import Rank


class Server(Leases):
    """Continues a worker's iteration with each of its messages.

    Attributes:
        current: the worker that is being served.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.current = 0

    def fire(self, worker: int) -> None:
        """Receives a worker's message and continues its iteration."""
        served = self._served[worker]
        assert served.under_way is not None
        values = self._exchange.receive(served.expected, worker)
        if self._drops:
            served.fresh = self.tickets.staleness(worker) <= self._bound
            values = (*values, np.bool_(served.fresh))
        self.current = worker
        try:
            served.expected = served.under_way.send(values)
        except StopIteration:
            served.under_way = None
            served.iteration += 1
            self._count_steps(served.steps, self._staleness.take)
        self._poll()

    def send(self, name: str, values: tuple) -> None:
        """Sends to the worker being served; parameters wait until its next lease may begin."""
        worker, served = self.current, self._served[self.current]
        if not self._exchange.edges[name].message.parameters:
            self._exchange.send(name, values, worker)
            return
        if served.fresh:
            self._staleness.values.append(self.tickets.staleness(worker))
        self._staleness.dropped += not served.fresh
        self.tickets.end(worker, served.fresh)
        self._reply[worker] = name
        self._waiting.append(worker)

    def _next(self) -> int:
        """Returns the worker with the oldest lease among those whose messages have arrived."""
        return self._first(list(self.tickets.read))

    def _begin(self, worker: int) -> None:
        super()._begin(worker)
        served = self._served[worker]
        self.current = worker
        served.under_way = self._serve(served.iteration)
        served.expected = next(served.under_way)


class Client:
    """A worker's side of the parameter server.

    Args:
        rank: the worker's.
        exchange: the rank's side of the cut edges.
        parameters: name of the message that brings parameters at an iteration boundary.
    """

    def __init__(self, rank: Rank, exchange: Exchange, parameters: str) -> None:
        self._rank, self._exchange, self._parameters = rank, exchange, parameters
        self._command: int | None = None

    def agree(self) -> int:
        """Returns the command of an iteration boundary; waits for it if necessary."""
        while True:
            if self._command is None:
                self.receive(self._parameters)
            command, self._command = self._command, None
            if command is not None and command != PAUSE:
                return command

    def receive(self, name: str) -> None:
        """Waits for the server's command, and for parameters if they follow."""
        rank, word = self._rank, np.zeros(2, np.int64)
        edge = self._exchange.edges[name]
        (source,) = (i for i, target in edge.pairs if target == rank.replica)
        server = edge.source.first_rank + source
        rank.messenger.receive(server, CONTROL_TAG, word.view(np.uint8), rank.stages.edge(name))
        self._command, rank.env_steps = int(word[0]), int(word[1])
        if self._command == CONTINUE:
            self._exchange.receive(name)
