"""Sends and receives the messages of a rank by name."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from mindspore_rl.plan.edges import Edge
from mindspore_rl.runtime.rank.arrays import host_leaves
from mindspore_rl.runtime.rank.rank import Rank


class Exchange:
    """A rank's side of every cut edge.

    Args:
        edges: by name of their message.
        trainer: its parameters are sent and overwritten; None on a rank without any.

    Attributes:
        lag: number of messages with parameters that wait for their use between two iterations.
    """

    def __init__(self, rank: Rank, edges: dict[str, Edge], trainer: Any) -> None:
        self._rank, self.edges, self.trainer = rank, edges, trainer
        self._known: dict[str, list[tuple[str, Any]]] = {}  # parameters by scope
        here = (e for e in edges.values() if e.message.lag and e.target.name == rank.fragment.name)
        self._lagged = next(here, None)
        self.lag = self._lagged.message.lag if self._lagged else 0
        # Parameters that wait, the oldest first; None: the same as those before, which are in use.
        self._waiting: deque[np.ndarray | None] = deque([None] * self.lag)

    def send(self, name: str, values: tuple, only: int | None = None) -> None:
        """Sends this replica's part of a message to the replicas that need it.

        Args:
            name: of the message.
            values: of the message; empty if it carries parameters.
            only: the one replica of the target to send to; None: all.
        """
        edge, here = self.edges[name], self._rank.replica
        leaves = host_leaves(values)
        targets = [t for source, t in edge.pairs if source == here and only in (None, t)]
        same = self._parameters(edge) if edge.message.parameters and targets else None
        for target in targets:
            if (data := same) is None:
                data = np.empty(edge.size(here, target), np.uint8)
                edge.pack(here, target, leaves, data)
            self._rank.messenger.send(edge.target.first_rank + target, edge.tag, data)

    def receive(self, name: str, only: int | None = None) -> tuple:
        """Receives this replica's part of a message; writes received parameters into the trainer.

        Args:
            name: of the message.
            only: the one replica of the source to receive from; None: all.

        Returns: the values; empty if the message carries parameters.
        """
        edge, here = self.edges[name], self._rank.replica
        arrays = edge.allocate(here)
        for source, target in edge.pairs:
            if target != here or only not in (None, source):
                continue
            if edge is self._lagged and self._waiting:
                if (waited := self._waiting.popleft()) is not None:
                    self._take_parameters(edge, waited)
                continue
            data = self.received(name, source)
            if edge.message.parameters:
                self._take_parameters(edge, data)
            else:
                edge.unpack(source, here, data, arrays)
        return _values(edge, arrays)

    def batch(self, name: str, messages: list[np.ndarray]) -> tuple:
        """Returns the values of messages that make one batch, in the order of their rows.

        Args:
            name: of the messages, see `Edge.gather`.
            messages: their bytes.
        """
        edge, here = self.edges[name], self._rank.replica
        arrays = edge.allocate(here)
        for place, data in enumerate(messages, here * edge.served):
            edge.unpack(place, here, data, arrays)
        return _values(edge, arrays)

    def received(self, name: str, source: int) -> np.ndarray:
        """Waits for the next message of a replica of an edge's source. Returns: its bytes."""
        edge = self.edges[name]
        data = np.empty(edge.size(source, self._rank.replica), np.uint8)
        stage = self._rank.stages.edge(edge.message.name)
        self._rank.messenger.receive(edge.source.first_rank + source, edge.tag, data, stage)
        return data

    # ---- parameters with a lag -----------------------------------------------------------------

    def settle(self) -> None:
        """Between two iterations: receives the parameters that are still under way."""
        if self._lagged is not None:
            here = self._rank.replica
            (source,) = (i for i, target in self._lagged.pairs if target == here)
            while len(self._waiting) < self.lag:
                self._waiting.append(self.received(self._lagged.message.name, source))

    def older(self) -> list[dict[str, np.ndarray]]:
        """Returns parameters by name, after `settle`: those before the newest, the newest first.

        The last are those in use.
        """
        if self._lagged is None:
            return []
        versions = [self._parameters(self._lagged)]
        for waiting in self._waiting:
            versions.append(versions[-1] if waiting is None else waiting)
        return [self._by_name(version) for version in reversed(versions[:-1])]

    def take(self, versions: list[Mapping[str, np.ndarray]]) -> None:
        """Replaces the parameters that wait and those in use, after `settle`.

        Args:
            versions: the newest, then `lag` older ones, by name.
        """
        if self._lagged is not None:
            names = [name for name, _ in self._named(self._lagged.message.parameters)]
            *waiting, used = [_joined([version[n] for n in names]) for version in versions]
            self._waiting = deque(reversed(waiting))
            self._take_parameters(self._lagged, used)

    def _by_name(self, data: np.ndarray) -> dict[str, np.ndarray]:
        assert self._lagged is not None
        found, start = {}, 0
        for name, parameter in self._named(self._lagged.message.parameters):
            there = parameter.asnumpy()
            part = data[start : start + there.nbytes]
            found[name] = part.view(there.dtype).reshape(there.shape)
            start += there.nbytes
        return found

    # ---- parameters ------------------------------------------------------------------------------

    def _parameters(self, edge: Edge) -> np.ndarray:
        return _joined([p.asnumpy() for _, p in self._named(edge.message.parameters)])

    def _take_parameters(self, edge: Edge, data: np.ndarray) -> None:
        from mindspore_rl.rl.parameters import write_parameters  # noqa: PLC0415

        write_parameters([p for _, p in self._named(edge.message.parameters)], data)

    def _named(self, scope: str) -> list[tuple[str, Any]]:
        from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415

        if scope not in self._known:
            self._known[scope] = named_parameters(self.trainer, scope)
        return self._known[scope]


def _values(edge: Edge, arrays: list[np.ndarray]) -> tuple:
    """Returns the values of a message, of the arrays of their leaves."""
    result, start = [], 0
    for value in edge.message.values:
        count = len(value.leaves)
        part = tuple(arrays[start : start + count])
        result.append(part if value.parts else part[0])
        start += count
    return tuple(result)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Returns the bytes of arrays, one after the other."""
    found = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.concatenate([np.empty(0, np.uint8), *found])
