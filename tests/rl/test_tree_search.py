"""The search inside a compiled cell is that of a tree of Python objects, one environment a time."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_rl.rl.action_masks import INVALID
from mindspore_rl.rl.tree_search import GumbelSearch, halving_schedule
from tests.tiers import quick

ACTIONS, SIZE, GAMMA = 3, 4, 0.9


class Model(nn.Cell):
    """A model whose steps are random matrices."""

    def __init__(self):
        super().__init__()
        draws = np.random.default_rng(3)
        shapes = (ACTIONS, SIZE, SIZE), (SIZE, ACTIONS), (SIZE,), (SIZE,)
        self.arrays = [draws.normal(size=shape).astype(np.float32) for shape in shapes]
        self.steps, self.policy, self.of_value, self.of_reward = map(Tensor, self.arrays)

    def imagine(self, latent, action):
        steps = ops.gather(self.steps, action, 0)
        latent = ops.tanh((latent.expand_dims(2) * steps).sum(1))
        reward, value = (latent * self.of_reward).sum(-1), (latent * self.of_value).sum(-1)
        return latent, reward, ops.matmul(latent, self.policy), value

    def imagined(self, latent, action):
        """The same for one environment, in NumPy."""
        steps, policy, of_value, of_reward = self.arrays
        latent = np.tanh(latent @ steps[action])
        return latent, latent @ of_reward, latent @ policy, latent @ of_value


class Node:
    """A state; `player` is 0 or 1, who moves there, and values are that player's."""

    def __init__(self, latent, logits, value, player=0):
        self.latent, self.logits, self.value, self.player = latent, logits, value, player
        self.below = [None] * ACTIONS
        self.rewards, self.visits, self.totals = np.zeros((3, ACTIONS))

    def completed(self):
        """Logits plus sigma of the completed values (Danihelka et al. 2022, eq. 8 and 33)."""
        probs, seen = softmax(self.logits), self.visits > 0
        values = self.totals / np.maximum(self.visits, 1)
        count, mixed = self.visits.sum(), self.value
        if seen.any():
            average = (probs * values)[seen].sum() / probs[seen].sum()
            mixed = (self.value + count * average) / (1 + count)
        values = np.where(seen, values, mixed)
        spread = max(values.max() - values.min(), 1e-3)
        return self.logits + (50 + self.visits.max()) * 0.1 * (values - values.min()) / spread


def softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def searched(model, root, gumbel, schedule, max_depth, players):
    for wanted in schedule:
        score = np.where(root.visits == wanted, gumbel + root.completed(), -np.inf)
        path = [(root, int(score.argmax()))]
        while (node := path[-1][0].below[path[-1][1]]) is not None and len(path) < max_depth:
            score = softmax(node.completed()) - node.visits / (1 + node.visits.sum())
            path.append((node, int(score.argmax())))
        node, action = path[-1]
        latent, reward, logits, found = model.imagined(node.latent, action)
        mover = (node.player + 1) % players
        if node.below[action] is None:
            node.below[action], node.rewards[action] = Node(latent, logits, found, mover), reward
        # What each player has, from here to the end: the other has lost as much.
        each = [found if player == mover else -found for player in range(players)]
        for node, action in reversed(path):
            gain = node.rewards[action]
            each = [
                (gain if player == node.player else -gain) + GAMMA * later
                for player, later in enumerate(each)
            ]
            node.visits[action] += 1
            node.totals[action] += each[node.player]
    score = np.where(root.visits == root.visits.max(), gumbel + root.completed(), -np.inf)
    return score.argmax(), softmax(root.completed())


@pytest.mark.parametrize(
    ("simulations", "considered", "max_depth", "players"),
    quick([(7, 3, 4, 1), (6, 2, 2, 1), (1, 1, 1, 1), (8, 3, 4, 2)], 0, 3),
)
def test_trees_are_those_of_one_environment_each(run, simulations, considered, max_depth, players):
    model, draws = Model(), np.random.default_rng(simulations)
    discount = GAMMA if players == 1 else -GAMMA
    search = GumbelSearch(model, ACTIONS, simulations, considered, max_depth, discount)
    shapes = (4, SIZE), (4, ACTIONS), (4,), (4, ACTIONS)
    given = [draws.normal(size=shape).astype(np.float32) for shape in shapes]
    given[1][1, 2] = INVALID
    action, policy = run(search, *given)
    for row, (latent, logits, value, gumbel) in enumerate(zip(*given, strict=True)):
        schedule = halving_schedule(min(considered, ACTIONS - (row == 1)), simulations)
        root = Node(latent, logits, value)
        best, improved = searched(model, root, gumbel, schedule, max_depth, players)
        assert action[row] == best
        np.testing.assert_allclose(policy[row], improved, rtol=1e-3, atol=1e-6)


def test_sequential_halving_visits_the_better_half_as_often_again():
    assert halving_schedule(4, 16).tolist() == [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]
    assert halving_schedule(1, 3).tolist() == [0, 1, 2]
