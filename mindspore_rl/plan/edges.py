"""Cut edges of a rank: which part of which array goes to or comes from which rank."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mindspore_rl.plan.plan import FragmentPlan, MessagePlan, Plan
from mindspore_rl.plan.value import Value

FIRST_EDGE_TAG = 10
"""Tag of a plan's first message; the runtime uses smaller tags itself."""


class Edge:
    """A cut edge: the message from the replicas of one fragment to those of another.

    A sharded leaf travels as the intersections of both partitions, of the environments and of the
    agents. A block that several replicas hold comes from one of them, chosen such that the targets
    are balanced over the sources.

    Args:
        gather: number of sources whose rows make one batch of a target, whichever of those that it
            serves; 0: each block has its own place there.
    """

    def __init__(
        self,
        message: MessagePlan,
        tag: int,
        source: FragmentPlan,
        target: FragmentPlan,
        chunk: int = 0,
        gather: int = 0,
    ) -> None:
        self.message, self.tag, self.chunk, self.gather = message, tag, chunk, gather
        self.source, self.target = source, target
        self.leaves = [leaf for value in message.values for leaf in value.leaves]
        pairs = zip(message.values, message.partial, strict=True)
        self.partial = [partial for value, partial in pairs for _ in value.leaves]
        self._known: dict[tuple[int, int], list[tuple[int, Block]]] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._cuts: dict[tuple[bool, int, int], list[tuple[int, AxisCut]]] = {}

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs (source replica, target replica) that exchange data, in a fixed order."""
        if self.message.parameters:
            sources = len(self.source.shares)
            targets = len(self.target.shares)
            return [(j * sources // targets, j) for j in range(targets)]
        return [
            (i, j)
            for i in range(len(self.source.shares))
            for j in range(len(self.target.shares))
            if self._parts(i, j)
        ]

    @cached_property
    def served(self) -> int:
        """Number of sources that each target serves, if it makes batches."""
        return len(self.source.shares) // len(self.target.shares)

    def _parts(self, i: int, j: int) -> list[tuple[int, "Block"]]:
        """Returns the leaves that replica i sends to replica j, with the block of each."""
        if (i, j) not in self._known:
            self._known[i, j] = self._exchanged(i, j)
        return self._known[i, j]

    def _exchanged(self, i: int, j: int) -> list[tuple[int, "Block"]]:
        parts = []
        for index, leaf in enumerate(self.leaves):
            block = self._block(self.source, leaf, i)
            common = block.common(self._block(self.target, leaf, j))
            if common is None:
                continue
            same = self._sources[block]
            if self.partial[index] or self.message.asynchronous or i == same[j % len(same)]:
                parts.append((index, common))
        return parts

    @cached_property
    def _sources(self) -> dict["Block", list[int]]:
        """Replicas of the source by the block that they hold, for every kind of leaf."""
        found: dict[Block, list[int]] = {}
        for leaf in {(v.axis is None, v.agent_axis is None): v for v in self.leaves}.values():
            for replica in range(len(self.source.shares)):
                found.setdefault(self._block(self.source, leaf, replica), []).append(replica)
        return found

    def _block(self, fragment: FragmentPlan, leaf: Value, replica: int) -> "Block":
        """Returns the block of a leaf that a replica holds."""
        if self.gather and fragment is self.source:
            target, number = divmod(replica, self.served)  # all shares have the same size
            replica = target * self.gather + number % self.gather
        envs = chunk_of(fragment.shares[replica], self.chunk, self.message.chunks)
        return Block(
            envs if leaf.axis is not None else None,
            fragment.agents[replica] if leaf.agent_axis is not None else None,
        )

    def size(self, i: int, j: int) -> int:
        """Returns the bytes of the message from replica i to replica j."""
        if (i, j) not in self._sizes:
            self._sizes[i, j] = self._size(i, j)
        return self._sizes[i, j]

    def _size(self, i: int, j: int) -> int:
        total = self.message.parameter_bytes
        for index, block in self._parts(i, j):
            leaf = self.leaves[index]
            shape = local_shape(leaf, block.num_envs, block.num_agents)
            total += int(np.prod(shape, dtype=int)) * np.dtype(leaf.dtype).itemsize
        return total

    def pack(self, i: int, j: int, arrays: list[np.ndarray], out: np.ndarray) -> None:
        """Packs the message from replica i to replica j into `out`."""
        start = 0
        for index, cut in self._cut(True, i, j):
            array = cut.of(arrays[index])
            size = array.size * array.itemsize
            out[start : start + size].view(array.dtype)[:] = array.reshape(-1)
            start += size

    def unpack(self, i: int, j: int, data: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Unpacks replica i's message to replica j into the target's arrays; sums partials."""
        start = 0
        for index, cut in self._cut(False, i, j):
            place = cut.of(arrays[index])
            size = place.size * place.itemsize
            part = data[start : start + size].view(place.dtype).reshape(place.shape)
            if self.partial[index]:
                place += part
            else:
                place[...] = part
            start += size

    def _cut(self, sent: bool, i: int, j: int) -> list[tuple[int, "AxisCut"]]:
        """Returns the places of a message's parts in the source's or the target's arrays."""
        if (sent, i, j) not in self._cuts:
            fragment, replica = (self.source, i) if sent else (self.target, j)
            self._cuts[sent, i, j] = [
                (index, block.cut(leaf := self.leaves[index], self._block(fragment, leaf, replica)))
                for index, block in self._parts(i, j)
            ]
        return self._cuts[sent, i, j]

    def allocate(self, j: int) -> list[np.ndarray]:
        """Allocates the arrays that replica j receives into, filled with zeros."""
        blocks = [(leaf, self._block(self.target, leaf, j)) for leaf in self.leaves]
        return [
            np.zeros(local_shape(leaf, block.num_envs, block.num_agents), leaf.dtype)
            for leaf, block in blocks
        ]


@dataclass(frozen=True)
class Block:
    """Environments and agents of a part of a leaf; None for an axis that the leaf lacks."""

    envs: range | None
    agents: tuple[int, int] | None

    @property
    def num_envs(self) -> int:
        """Number of environments in the block."""
        return len(self.envs) if self.envs else 0

    @property
    def num_agents(self) -> int:
        """Number of agents in the block."""
        return self.agents[1] - self.agents[0] if self.agents else 0

    def common(self, other: "Block") -> "Block | None":
        """Returns the intersection of two blocks of a leaf, or None."""
        envs, agents = self.envs, None
        if envs is not None and other.envs is not None:  # both are of the same chunk, if of any
            first, last = max(envs.start, other.envs.start), min(envs.stop, other.envs.stop)
            envs = range(first, last, envs.step)
        if self.agents and other.agents:
            agents = max(self.agents[0], other.agents[0]), min(self.agents[1], other.agents[1])
        empty = envs is not None and not envs or agents is not None and agents[0] >= agents[1]
        return None if empty else Block(envs, agents)

    def cut(self, leaf: Value, own: "Block") -> "AxisCut":
        """Returns the place of this block in the array of a larger one."""
        places: list[Any] = [slice(None)] * len(leaf.shape)
        if self.agents and own.agents and leaf.agent_axis is not None:
            first, last = self.agents
            places[leaf.agent_axis] = slice(first - own.agents[0], last - own.agents[0])
        split = None
        if self.envs is not None and own.envs is not None and leaf.axis is not None:
            first = own.envs.index(self.envs.start)
            here = slice(first, first + len(self.envs))
            if leaf.per_env == 1:
                places[leaf.axis] = here
            else:
                split = leaf.axis
                places.insert(split + 1, here)
        # `...` makes a scalar's part a view too.
        return AxisCut(split, leaf.per_env, (*places, ...))


@dataclass(frozen=True)
class AxisCut:
    """The place of a block in an array.

    Attributes:
        split: axis that is reshaped to (outer part, environments); None: no such axis.
        outer: length of the outer part.
        places: indices on each axis, after the reshape.
    """

    split: int | None
    outer: int
    places: tuple[Any, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        """Returns a view of the block."""
        if self.split is not None:  # splitting an axis always gives a view
            before, after = array.shape[: self.split], array.shape[self.split + 1 :]
            array = array.reshape(*before, self.outer, -1, *after)
        return array[self.places]


def chunk_of(share: tuple[int, int], chunk: int, chunks: int) -> range:
    """Returns the environments of a share whose index is `chunk` modulo `chunks`."""
    return range(share[0] + (chunk - share[0]) % chunks, share[1], chunks)


def plan_edges(plan: Plan, chunk: int = 0, part: FragmentPlan | None = None) -> dict[str, Edge]:
    """Returns a plan's cut edges by name.

    Args:
        plan: of the job.
        chunk: number of the chunk for messages that are sent in chunks.
        part: a fragment of one replica whose share is only a part of its environments.
    """
    by_name = {fragment.name: fragment for fragment in plan.fragments}
    by_name |= {part.name: part} if part else {}
    found = {}
    for i, m in enumerate(plan.messages):
        arrivals = plan.arrivals
        gather = arrivals.gather if arrivals and m.source == arrivals.sender else 0
        ends = by_name[m.source], by_name[m.target]
        found[m.name] = Edge(m, FIRST_EDGE_TAG + i, *ends, chunk, gather)
    return found


def edges_by_chunk(plan: Plan) -> list[dict[str, Edge]]:
    """Returns a plan's cut edges by name, for each chunk."""
    return [plan_edges(plan, chunk) for chunk in range(plan.chunks)]


def local_shape(value: Value, num_envs: int, num_agents: int = 0) -> tuple[int, ...]:
    """Returns a value's shape for some of the environments and agents."""
    shape = list(value.shape)
    if value.axis is not None:
        shape[value.axis] = value.per_env * num_envs
    if value.agent_axis is not None:
        shape[value.agent_axis] = num_agents
    return tuple(shape)
