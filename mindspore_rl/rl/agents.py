"""Networks of several agents, and what an agent's row takes of values of all agents."""

from mindspore import Tensor, nn, ops

from mindspore_rl.rl.networks import MLP


class AgentNetworks(nn.Cell):
    """Networks of groups of agents, such as a team's or one of each agent's own.

    Each row goes through all networks, and those of the other groups count as zero: so a replica
    may hold the rows of any agents.

    Args:
        in_size: features of a row, with those of `common`.
        hidden: widths of the hidden layers.
        out_size: features of the output.
        out_gain: factor on the last layer's weights, see `MLP`.
        seed: the job's seed.
        indices: a number for each group that is unique to its network in the job.
        activation: see `MLP`.
        initial: see `MLP`.
    """

    def __init__(
        self,
        in_size: int,
        hidden: tuple,
        out_size: int,
        out_gain: float,
        seed: int,
        indices: range,
        activation: str = "tanh",
        initial: str = "orthogonal",
    ):
        super().__init__()
        self.num_groups, self.out_size = len(indices), out_size
        rest = out_size, out_gain, seed
        self.networks = nn.CellList(
            [MLP(in_size, hidden, *rest, index, activation, initial) for index in indices]
        )

    def construct(self, rows: Tensor, groups: Tensor, common: Tensor | None = None) -> Tensor:
        """Returns the output of each agent's network, `[..., A, out_size]`.

        Args:
            rows: [..., A, k] float32, features of each agent.
            groups: [A, groups] or [..., A, groups] float32, one-hots; not read if there is one.
            common: [..., c] float32, further features, the same for all agents.
        """
        flat = rows.reshape((-1, rows.shape[-1]))
        shared = None if common is None else common.reshape((-1, common.shape[-1]))
        shape, total = (*rows.shape[:-1], self.out_size), 0.0
        if self.num_groups == 1:
            return self.networks[0](flat, shared).reshape(shape)
        for group in range(self.num_groups):
            out = self.networks[group](flat, shared).reshape(shape)
            total = total + groups[..., group : group + 1] * out
        return total


def of_agent(members: Tensor, value: Tensor) -> Tensor:
    """Returns each agent's part of a value of all agents.

    Args:
        members: [A, agents] float32, one-hots of the agents whose rows these are.
        value: [..., agents, k] float32.

    Returns:
        own: [..., A, k] float32.
    """
    return (ops.expand_dims(members, -1) * ops.expand_dims(value, -3)).sum(-2)


def with_own(members: Tensor, value: Tensor, own: Tensor) -> Tensor:
    """Returns a value of all agents, in which each agent's part is replaced by its own.

    So MADDPG's critic sees what an agent would do beside what the others did (Lowe et al. 2017,
    arXiv 1706.02275, eq. 5); zeros in the place of an agent's action give the input of COMA's
    critic (Foerster et al. 2018, arXiv 1705.08926, figure 1).

    Args:
        members: [A, agents] float32, one-hots of the agents whose rows these are.
        value: [..., agents, k] float32.
        own: [..., A, k] float32; the gradient flows through it.

    Returns:
        joint: [..., A, agents * k] float32.
    """
    places = ops.expand_dims(members, -1)
    joint = (1.0 - places) * ops.expand_dims(value, -3) + places * ops.expand_dims(own, -2)
    return joint.reshape((*joint.shape[:-2], -1))
