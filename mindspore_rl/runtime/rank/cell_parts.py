"""Parts of generated cells: random tables, collectives, buffers."""

import math

import numpy as np
from mindspore import Parameter, Tensor, int32, nn, ops

from mindspore_rl.communication.group import Group
from mindspore_rl.rl.operators import drawn_rows, flatten, shaped
from mindspore_rl.rl.random import Agents, stream
from mindspore_rl.rl.random_graph import permutations, schedule, uniform


class NoiseTable(nn.Cell):
    """Uniform numbers in [0, 1) for all turns of a call in one iteration.

    The shape is `[rows, B, size]`, with agents `[rows, B, A, size]`.
    """

    def __init__(
        self,
        seed: int,
        purpose: str,
        rows: int,
        env_indices: range,
        size: int,
        agents: Agents | None = None,
    ) -> None:
        super().__init__()
        self.rows, self.size = rows, size
        lanes = np.array(env_indices) if agents is None else agents.lanes(np.array(env_indices))
        name = f"{purpose}, {size}"  # a call in an unrolled loop may draw several sizes
        self.schedule = _given(schedule(seed, stream(purpose)), f"schedule of {name}")
        self.lanes = _given(Tensor(lanes.astype(np.int32)), f"lanes of {name}")
        self.turns = Tensor(np.arange(rows, dtype=np.int32))
        self.shape = (rows, len(env_indices), len(agents.share), size) if agents else ()

    def table(self, iteration: Tensor) -> Tensor:
        """Returns the numbers of an iteration (0-d int32)."""
        steps = iteration * self.rows + self.turns
        noise = uniform(self.schedule, steps, self.lanes, self.size)
        return noise.reshape(self.shape) if self.shape else noise


class PermutationTable(nn.Cell):
    """First positions of segments in the flattened local batch, permuted in time.

    `[rounds, T / steps, B]` int32.
    """

    def __init__(
        self, seed: int, purpose: str, rounds: int, env_indices: range, num_steps: int, steps: int
    ) -> None:
        super().__init__()
        self.rounds, self.segments = rounds, num_steps // steps
        self.stride = steps * len(env_indices)
        self.schedule = _given(schedule(seed, stream(purpose)), f"schedule of {purpose}")
        lanes = Tensor(np.array(env_indices, np.int32))
        self.env_indices = _given(lanes, f"lanes of {purpose}")
        self.columns = Tensor(np.arange(len(env_indices), dtype=np.int32))
        self.turns = Tensor(np.arange(rounds, dtype=np.int32))

    def table(self, iteration: Tensor) -> Tensor:
        """Returns the permutations of an iteration (0-d int32)."""
        rounds = iteration * self.rounds + self.turns
        order = permutations(self.schedule, rounds, self.env_indices, self.segments)
        return order * self.stride + self.columns


class Draws(nn.Cell):
    """Random rows of a replay, equally many for each environment, see `drawn_rows`."""

    def __init__(self, capacity: int, steps: int, env_indices: range) -> None:
        super().__init__()
        self.capacity, self.steps = capacity, steps
        self.columns = Tensor(np.arange(len(env_indices), dtype=np.int32))

    def rows(self, noise: Tensor, inserted: Tensor) -> Tensor:
        """See `operators.drawn_rows`."""
        return drawn_rows(noise, inserted, self.capacity, self.columns, self.steps)


def _given(value: Tensor, name: str) -> Parameter:
    """Makes a parameter of a value that differs by seed and replica, so that all share a graph."""
    return Parameter(value, name=name, requires_grad=False)


class AllReduce(nn.Cell):
    """Sum, maximum or minimum over the replicas of a fragment, in one flat bucket.

    Args:
        group: the replicas.
        reduction: `sum`, `max` or `min`.
        shapes: of the values reduced together.
        name: of what is reduced, as in the plan.

    Attributes:
        calls: number of calls, 0-d int32: counted in the graph, loops and conditions included.
        message_bytes: bytes of one call.
    """

    def __init__(
        self, group: Group, reduction: str, shapes: tuple[tuple[int, ...], ...], name: str
    ) -> None:
        super().__init__()
        self.reduced = name
        self.calls = Parameter(Tensor(0, int32), name=f"calls of {name}", requires_grad=False)
        self.collective = group(reduction)
        self.shapes = shapes
        self.message_bytes = 4 * sum(map(math.prod, shapes))  # float32

    def reduce(self, *leaves: Tensor) -> tuple:
        """Reduces the values over all replicas."""
        ops.assign_add(self.calls, 1)
        return shaped(self.collective(flatten(leaves)), self.shapes)


def env_index(env_indices: range, name: str) -> Parameter:
    """Makes the numbers of a replica's environments, `[B]` int32."""
    return _given(Tensor(np.array(env_indices, np.int32)), name)


def agent_index(agents: Agents, name: str) -> Parameter:
    """Makes the numbers of a replica's agents, `[A]` int32."""
    return _given(Tensor(np.array(agents.share, np.int32)), name)


def turns(count: int) -> Parameter:
    """Makes a loop's bound, the number of its turns, which is lowered to check native code."""
    return Parameter(Tensor(count, int32), requires_grad=False)


def turns_of(cell: nn.Cell) -> list[Parameter]:
    """Returns the bounds of a generated cell's loops."""
    own = cell.parameters_and_names(expand=False)
    return [parameter for name, parameter in own if name.startswith("turns_")]


def buffer(shape: tuple[int, ...], dtype: str, name: str) -> Parameter:
    """Makes a buffer that a cell writes row by row."""
    return Parameter(Tensor(np.zeros(shape, dtype)), name=name, requires_grad=False)


def reductions_of(cell: nn.Cell) -> list[AllReduce]:
    """Lists the collectives inside a cell."""
    return [part for _, part in cell.cells_and_names() if isinstance(part, AllReduce)]
