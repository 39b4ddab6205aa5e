"""Sends and receives the messages of a rank by name."""

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
    """

    def __init__(self, rank: Rank, edges: dict[str, Edge], trainer: Any) -> None:
        self._rank, self.edges, self.trainer = rank, edges, trainer
        self._known: dict[str, list[Any]] = {}  # parameters by scope

    def send(self, name: str, values: tuple, only: int | None = None) -> None:
        """Sends this replica's part of a message to the replicas that need it.

        Args:
            name: of the message.
            values: of the message; empty if it carries parameters.
            only: the one replica of the target to send to; None: all.
        """
        edge, here = self.edges[name], self._rank.replica
        leaves = host_leaves(values)
        for source, target in edge.pairs:
            if source != here or only not in (None, target):
                continue
            if edge.message.parameters:
                data = self._parameters(edge)
            else:
                data = np.empty(edge.size(source, target), np.uint8)
                edge.pack(source, target, leaves, data)
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
            data = np.empty(edge.size(source, here), np.uint8)
            stage = self._rank.stages.edge(name)
            self._rank.messenger.receive(edge.source.first_rank + source, edge.tag, data, stage)
            if edge.message.parameters:
                self._take_parameters(edge, data)
            else:
                edge.unpack(source, here, data, arrays)
        result, start = [], 0
        for value in edge.message.values:
            count = len(value.leaves)
            part = tuple(arrays[start : start + count])
            result.append(part if value.parts else part[0])
            start += count
        return tuple(result)

    def _parameters(self, edge: Edge) -> np.ndarray:
        arrays = [p.asnumpy() for p in self._known_parameters(edge.message.parameters)]
        found = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        return np.concatenate([np.empty(0, np.uint8), *found])

    def _take_parameters(self, edge: Edge, data: np.ndarray) -> None:
        from mindspore_rl.rl.parameters import write_parameters  # noqa: PLC0415

        write_parameters(self._known_parameters(edge.message.parameters), data)

    def _known_parameters(self, scope: str) -> list[Any]:
        from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415

        if scope not in self._known:
            self._known[scope] = [p for _, p in named_parameters(self.trainer, scope)]
        return self._known[scope]
