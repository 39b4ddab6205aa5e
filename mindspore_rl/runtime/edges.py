"""Cut edges as a rank sees them: what of which array goes to or comes from which rank."""

import numpy as np

from mindspore_rl.graph.ir import Value
from mindspore_rl.lowering.plan import FragmentPlan, MessagePlan


class Edge:
    """One cut edge.

    A leaf that is split travels as the intersections of the two partitions of the environments; a
    whole one comes from one replica, chosen so that the targets spread over the sources.
    """

    def __init__(
        self, message: MessagePlan, tag: int, source: FragmentPlan, target: FragmentPlan
    ) -> None:
        self.message, self.tag = message, tag
        self.source, self.target = source, target
        self.leaves = [leaf for value in message.values for leaf in value.leaves]

    def pairs(self) -> list[tuple[int, int]]:
        """(source replica, target replica) that exchange something, in a fixed order."""
        return [
            (i, j)
            for i in range(len(self.source.shares))
            for j in range(len(self.target.shares))
            if self._parts(i, j)
        ]

    def _parts(self, i: int, j: int) -> list[tuple[int, range | None]]:
        """Leaves that replica i sends to replica j, with the environments if split."""
        first = max(self.source.shares[i][0], self.target.shares[j][0])
        last = min(self.source.shares[i][1], self.target.shares[j][1])
        parts: list[tuple[int, range | None]] = []
        for index, leaf in enumerate(self.leaves):
            if leaf.axis is None:
                if self.message.partial or i == j % len(self.source.shares):
                    parts.append((index, None))
            elif first < last:
                parts.append((index, range(first, last)))
        return parts

    def size(self, i: int, j: int) -> int:
        """Bytes of the message from replica i to replica j."""
        total = 0
        for index, envs in self._parts(i, j):
            leaf = self.leaves[index]
            entries = leaf.size
            if envs is not None:
                total_envs = self.source.shares[-1][1]
                entries = entries // total_envs * len(envs)
            total += entries * np.dtype(leaf.dtype).itemsize
        return total

    def pack(self, i: int, j: int, arrays: list[np.ndarray], out: np.ndarray) -> None:
        """Writes replica i's message to replica j into `out`."""
        start = 0
        for index, envs in self._parts(i, j):
            leaf, array = self.leaves[index], arrays[index]
            if envs is not None:
                array = _rows(array, leaf, self.source.shares[i], envs)
            size = array.size * array.itemsize
            out[start : start + size].view(array.dtype)[:] = array.reshape(-1)
            start += size

    def unpack(self, i: int, j: int, data: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Reads a message from replica i to replica j into the target's arrays."""
        start = 0
        for index, envs in self._parts(i, j):
            leaf, array = self.leaves[index], arrays[index]
            place = array if envs is None else _rows(array, leaf, self.target.shares[j], envs)
            size = place.size * place.itemsize
            part = data[start : start + size].view(place.dtype).reshape(place.shape)
            if self.message.partial:
                place += part
            else:
                place[...] = part
            start += size

    def allocate(self, j: int) -> list[np.ndarray]:
        """The arrays that replica j receives into."""
        first, last = self.target.shares[j]
        return [np.zeros(local_shape(leaf, last - first), leaf.dtype) for leaf in self.leaves]


def local_shape(value: Value, num_envs: int) -> tuple[int, ...]:
    """A value's shape with some of the environments."""
    shape = list(value.shape)
    if value.axis is not None:
        shape[value.axis] = value.per_env * num_envs
    return tuple(shape)


def _rows(array: np.ndarray, leaf: Value, share: tuple[int, int], envs: range) -> np.ndarray:
    """A view of some environments of a share's array, as `[..., per_env, environments, ...]`."""
    assert leaf.axis is not None
    before, after = array.shape[: leaf.axis], array.shape[leaf.axis + 1 :]
    view = array.reshape(*before, leaf.per_env, share[1] - share[0], *after)
    chosen = slice(envs.start - share[0], envs.stop - share[0])
    return view[(slice(None),) * (leaf.axis + 1) + (chosen,)]
