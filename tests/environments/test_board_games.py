"""Tic-tac-toe and connect four in MindSpore operators against games in plain Python."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl.environments import registry

TIC_TAC_TOE, CONNECT_FOUR = "graph:TicTacToe-v0", "graph:ConnectFour-v0"
NUM_ENVS = 8


class Game:
    """One game on a board of rows, the lowest first; 1 and -1 are the stones of the players."""

    def __init__(self, name):
        self.rows, self.columns, self.length = (3, 3, 3) if "Tic" in name else (6, 7, 4)
        self.drops = "Four" in name
        self.board = np.zeros((self.rows, self.columns), int)

    def place(self, action):
        """The cell of an action, or None if it is invalid."""
        if not self.drops:
            place = divmod(action, self.columns)
            return None if self.board[place] else place
        free = np.flatnonzero(self.board[:, action] == 0)
        return (free[0], action) if len(free) else None

    def actions(self):
        size = self.columns if self.drops else self.board.size
        return [action for action in range(size) if self.place(action)]

    def after(self, action, player):
        found = Game.__new__(Game)
        found.__dict__ = dict(self.__dict__, board=self.board.copy())
        found.board[self.place(action)] = player
        return found

    def won(self, player):
        mine = {tuple(place) for place in np.argwhere(self.board == player)}
        return any(
            all((row + up * k, column + right * k) in mine for k in range(1, self.length))
            for row, column in mine
            for up, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        )

    def best_replies(self, player):
        """Actions that win; else those after which the other cannot win; else all."""
        actions = self.actions()
        if wins := [a for a in actions if self.after(a, player).won(player)]:
            return wins
        boards = {a: self.after(a, player) for a in actions}
        safe = [
            a
            for a, board in boards.items()
            if not any(board.after(b, -player).won(-player) for b in board.actions())
        ]
        return safe or actions

    def seen(self, player):
        size = self.columns if self.drops else self.board.size
        mask = np.isin(np.arange(size), self.actions())
        return np.concatenate(
            [(self.board == player).ravel(), (self.board == -player).ravel(), mask]
        )


def played(name, steps, seed=0):
    """Yields each step of random play: observations before it, action and results, in NumPy."""
    env, chance = registry.make_graph(name), np.random.default_rng(seed)

    def noise():
        return Tensor(chance.random((NUM_ENVS, env.noise_size), np.float32))

    state, obs = env.reset(noise())
    for _ in range(steps):
        mask = obs.asnumpy()[:, -env.spec.action_space.n :]
        action = (mask * chance.random(mask.shape)).argmax(-1).astype(np.int32)
        before = obs.asnumpy()
        state, obs, *rest = env.step(state, Tensor(action), noise())
        yield before, action, obs.asnumpy(), *(part.asnumpy() for part in rest)


@pytest.mark.parametrize("name", [TIC_TAC_TOE, CONNECT_FOUR])
def test_two_players_play_by_the_rules(name):
    games, players = [Game(name) for _ in range(NUM_ENVS)], np.ones(NUM_ENVS, int)
    outcomes, rules = set(), registry.make_graph(name)
    for before, action, next_obs, final_obs, reward, terminated, truncated in played(name, 40):
        told = [part.asnumpy() for part in rules.after(Tensor(before), Tensor(action))]
        assert all(map(np.array_equal, told, (final_obs, reward, terminated)))
        for i, game in enumerate(games):
            assert (before[i] == game.seen(players[i])).all()
            after = game.after(action[i], players[i])
            won, full = after.won(players[i]), not after.actions()
            assert (reward[i], terminated[i], truncated[i]) == (won, won or full, False)
            assert (final_obs[i] == after.seen(-players[i])).all()
            games[i], players[i] = after, -players[i]
            if terminated[i]:
                games[i], players[i] = Game(name), 1
                assert (next_obs[i] == games[i].seen(1)).all()
                outcomes.add(bool(won))
    assert outcomes == {True, False} or name == CONNECT_FOUR


@pytest.mark.parametrize("name", [TIC_TAC_TOE, CONNECT_FOUR])
@pytest.mark.parametrize("opponent", ["random", "two_ply"])
def test_an_opponent_answers_by_the_rules(name, opponent):
    begun, rewards = set(), set()
    for before, action, _, final_obs, reward, terminated, _ in played(
        f"{name},opponent={opponent}", 12, 1
    ):
        for i in range(NUM_ENVS):
            game, shape = Game(name), None
            shape, cells = game.board.shape, game.board.size
            game.board = (
                (before[i, :cells] - before[i, cells : 2 * cells]).astype(int).reshape(shape)
            )
            if not game.board.clip(0).any():
                begun.add(int(-game.board.sum()))
            after = game.after(action[i], 1)
            rewards.add(float(reward[i]))
            found = final_obs[i, :cells] - final_obs[i, cells : 2 * cells]
            if after.won(1) or not after.actions():
                assert reward[i] == after.won(1) and terminated[i]
                assert (found == after.board.ravel()).all()
                continue
            actions = after.best_replies(-1) if opponent == "two_ply" else after.actions()
            replies = [after.after(a, -1) for a in actions]
            (reply,) = [one for one in replies if (one.board.ravel() == found).all()]
            assert reward[i] == -reply.won(-1)
            assert terminated[i] == (reply.won(-1) or not reply.actions())
    assert begun == {0, 1}
    assert -1.0 in rewards


@pytest.mark.parametrize("name", [TIC_TAC_TOE, f"{CONNECT_FOUR},opponent=random"])
def test_an_invalid_action_loses(name):
    env = registry.make_graph(name)
    noise = Tensor(np.full((1, env.noise_size), 0.9, np.float32))
    state, action = env.reset(noise)[0], Tensor([0], ms.int32)
    for _ in range(6):
        state, _, _, reward, terminated, _ = env.step(state, action, noise)
        if terminated.asnumpy()[0]:
            break
    assert (reward.asnumpy()[0], terminated.asnumpy()[0]) == (-1.0, True)
