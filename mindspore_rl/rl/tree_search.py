"""Gumbel search in a tree of imagined steps, of all environments at once, inside a compiled cell.

Danihelka et al. 2022, "Policy improvement by planning with Gumbel". A tree has one node for each
simulation and a root; the arrays of all trees are carried by one loop, which compiles as fast for
fifty simulations as for two.
"""

import numpy as np
from mindspore import Tensor, float32, int32, nn, ops

from mindspore_rl.rl.action_masks import INVALID


def halving_schedule(considered: int, simulations: int) -> np.ndarray:
    """Returns which of the root's actions each simulation may take, by their visits so far.

    Sequential halving (Karnin et al. 2013): the simulations are divided into rounds, and in each
    round the better half of the actions of the round before is visited equally often.

    Args:
        considered: number of actions of the first round, >= 1.
        simulations: number of simulations, >= 1.

    Returns:
        visits: [simulations] int32; simulation i takes the best action that was visited as often.
    """
    rounds = max(1, int(np.ceil(np.log2(considered))))
    found: list[int] = []
    visits = 0  # of each action that is still considered
    while len(found) < simulations:
        for _ in range(max(1, simulations // (rounds * considered))):
            found += [visits] * considered
            visits += 1
        considered = max(min(considered, 2), considered // 2)
    return np.array(found[:simulations], np.int32)


def completed_values(
    value: Tensor, logits: Tensor, visits: Tensor, totals: Tensor, scale: float
) -> Tensor:
    """Returns how much the values of actions add to their logits (Danihelka et al. 2022, eq. 8).

    An action without a visit has the mixed value of appendix D: that of the network together with
    the visited actions' values, by their probabilities. Values are scaled to [0, 1] within a row,
    then by ``(50 + the largest number of visits) scale``. Differences below 1e-3 stay small.

    Args:
        value: [N] float32, of the state by the network.
        logits: [N, A] float32, of the policy.
        visits: [N, A] float32, visits of each action.
        totals: [N, A] float32, the sum of the returns of these visits.
        scale: c_scale of the paper, > 0.

    Returns:
        [N, A] float32.
    """
    visited = visits > 0.0
    values = totals / ops.maximum(visits, 1.0)
    probs = ops.softmax(logits, -1) * visited.astype(float32)
    seen = (probs * values).sum(-1) / ops.maximum(probs.sum(-1), 1e-8)
    count = visits.sum(-1)
    mixed = (value + count * seen) / (1.0 + count)
    values = ops.where(visited, values, mixed.expand_dims(-1))
    lowest = ops.amin(values, -1, True)
    spread = ops.maximum(ops.amax(values, -1, True) - lowest, 1e-3)
    return (50.0 + ops.amax(visits, -1, True)) * scale * (values - lowest) / spread


def _at(table: Tensor, node: Tensor) -> Tensor:
    """Returns `table[i, node[i]]`: [B, k] of [B, N, k]."""
    index = node.reshape((-1, 1, 1)).broadcast_to((-1, 1, table.shape[2]))
    return ops.gather_elements(table, 1, index)[:, 0]


def _of(row: Tensor, action: Tensor) -> Tensor:
    """Returns `row[i, action[i]]`: [B] of [B, A]."""
    return ops.gather_elements(row, 1, action.expand_dims(1))[:, 0]


class GumbelSearch(nn.Cell):
    """Searches the steps that a learnt model imagines.

    Args:
        model: a cell whose method `imagine(latent, action)` returns the next latent state, the
            reward, the policy's logits and the value there.
        num_actions: A.
        simulations: imagined steps of a search, >= 1.
        considered: actions at the root that are searched at first, >= 1.
        max_depth: the longest imagined sequence of steps, >= 1; a simulation that gets there
            evaluates the last state again.
        gamma: discount per step; its negative where two players move in turn, for a value is that
            of the player who moves in the state, and one's gain is the other's loss.
        scale: c_scale of `completed_values`.
    """

    def __init__(
        self,
        model: nn.Cell,
        num_actions: int,
        simulations: int,
        considered: int,
        max_depth: int,
        gamma: float,
        scale: float = 0.1,
    ):
        super().__init__()
        self.model, self.num_actions, self.simulations = model, num_actions, simulations
        # By the number of valid actions.
        schedules = [
            halving_schedule(max(1, min(considered, valid)), simulations)
            for valid in range(num_actions + 1)
        ]
        self.schedules = Tensor(np.stack(schedules), float32)
        self.depth, self.gamma, self.scale = min(max_depth, simulations), gamma, scale
        # Rows of these are 1 at an index and 0 elsewhere.
        self.nodes = Tensor(np.eye(simulations + 1), float32)
        self.actions = Tensor(np.eye(num_actions), float32)

    def construct(self, latent: Tensor, logits: Tensor, value: Tensor, gumbel: Tensor) -> tuple:
        """Searches from the root.

        Args:
            latent: [B, k] float32, the state at the root.
            logits: [B, A] float32, its policy; `action_masks.INVALID` forbids an action.
            value: [B] float32, its value.
            gumbel: [B, A] float32, a sample of the Gumbel distribution for each action, or 0.

        Returns:
            (action, policy): [B] int32; [B, A] float32, the improved policy.
        """
        root = value.astype(int32) * 0
        first = self._node(root)
        # By node [B, N, ...]: state, policy, value, parent, and the action that led to it.
        latents = first * latent.expand_dims(1)
        policies = first * logits.expand_dims(1)
        values = first * value.reshape((-1, 1, 1))
        parents = (first * 0.0).astype(int32)
        causes = parents
        # By edge [B, N, A]: the node below, or 0, the reward, visits, the sum of returns.
        edges = policies * 0.0
        children, rewards, visits, totals = edges.astype(int32), edges, edges, edges
        gain = self._gain(value, logits, visits[:, 0], totals[:, 0])
        valid = (logits > 0.5 * INVALID).astype(int32).sum(-1).astype(int32)
        schedule = ops.gather(self.schedules, valid, 0)
        simulation = Tensor(0, int32)
        while simulation < self.simulations:
            eligible = visits[:, 0] == ops.gather(schedule, simulation, 1).expand_dims(1)
            action = self._best(gumbel + logits + gain, eligible)
            node, depth = root, Tensor(1, int32)
            while depth < self.depth:
                child = _of(_at(children, node), action)
                node, prior = ops.where(child > 0, child, node), _at(policies, child)
                count, total = _at(visits, child), _at(totals, child)
                inner = self._gain(_at(values, child)[:, 0], prior, count, total)
                inner = ops.softmax(prior + inner, -1) - count / (1.0 + count.sum(-1, True))
                action = ops.where(child > 0, inner.argmax(-1).astype(int32), action)
                depth = depth + 1
            child = _of(_at(children, node), action)
            leaf = ops.where(child > 0, child, simulation + 1)
            after, reward, prior, found = self.model.imagine(_at(latents, node), action)
            here, edge = self._node(leaf) > 0.0, self._edge(node, action) > 0.0
            latents = ops.where(here, after.expand_dims(1), latents)
            policies = ops.where(here, prior.expand_dims(1), policies)
            values = ops.where(here, found.reshape((-1, 1, 1)), values)
            parents = ops.where(here, node.reshape((-1, 1, 1)), parents)
            causes = ops.where(here, action.reshape((-1, 1, 1)), causes)
            children = ops.where(edge, leaf.reshape((-1, 1, 1)), children)
            rewards = ops.where(edge, reward.reshape((-1, 1, 1)), rewards)
            node, depth = leaf, Tensor(0, int32)
            while depth < self.depth:  # back to the root, where nothing changes any more
                parent, cause = _at(parents, node)[:, 0], _at(causes, node)[:, 0]
                found = _of(_at(rewards, parent), cause) + self.gamma * found
                below = (node > 0).astype(float32).reshape((-1, 1, 1))
                edge = self._edge(parent, cause) * below
                visits, totals = visits + edge, totals + edge * found.reshape((-1, 1, 1))
                node, depth = parent, depth + 1
            gain = self._gain(value, logits, visits[:, 0], totals[:, 0])
            simulation = simulation + 1
        most = visits[:, 0] == ops.amax(visits[:, 0], -1, True)
        return self._best(gumbel + logits + gain, most), ops.softmax(logits + gain, -1)

    def _gain(self, value: Tensor, logits: Tensor, visits: Tensor, totals: Tensor) -> Tensor:
        return completed_values(value, logits, visits, totals, self.scale)

    def _best(self, score: Tensor, eligible: Tensor) -> Tensor:
        """Returns the eligible action of the largest score: [B] int32 of [B, A]."""
        return ops.where(eligible, score, 2.0 * INVALID).argmax(-1).astype(int32)

    def _node(self, node: Tensor) -> Tensor:
        """Returns 1 at a node, 0 at others: [B, N, 1] float32 of [B]."""
        return ops.gather(self.nodes, node, 0).expand_dims(2)

    def _edge(self, node: Tensor, action: Tensor) -> Tensor:
        """Returns 1 at an edge, 0 at others: [B, N, A] float32 of [B], [B]."""
        return self._node(node) * ops.gather(self.actions, action, 0).expand_dims(1)
