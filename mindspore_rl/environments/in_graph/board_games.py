"""Tic-tac-toe and connect four in MindSpore operators.

Without an opponent, two players move in turn: observation, action mask and reward are those of the
player who moves, +1 for a line. With one, the agent plays against it, and who begins is drawn.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindspore_rl.environments import environment


def _tensor(values: Any) -> Tensor:
    return Tensor(np.asarray(values, np.float32))


class LineGame(nn.Cell):
    """Two players put stones on a board; whoever has a line of them first wins.

    An observation has C numbers for the stones of the player who moves, 1 or 0, C for those of the
    other, and the mask of the A actions; cells are in rows, the first row below. An invalid action
    loses. State: the stones of both, and the moves of the player, or with an opponent of the agent.

    Args:
        name: of the environment, without options.
        rows, columns: of the board; C is their product.
        length: stones of a line, in a row, a column or a diagonal.
        drops: True if an action is a column, where the stone falls down; False if it is a cell.
        opponent: "random", or "two_ply": it wins at once if it can, else it prevents that the
            agent wins with its next move, else it is random; None: there is none.
    """

    def __init__(
        self, name: str, rows: int, columns: int, length: int, drops: bool, opponent: str | None
    ) -> None:
        super().__init__(auto_prefix=False)
        asked = "" if opponent is None else f",opponent={opponent}"
        self.spec = environment.graph_spec(name + asked)
        self.opponent, self.length = opponent, length
        cells = rows * columns
        self.size, self.state_size = cells, 2 * cells + 1
        one = np.eye(cells)
        self.num_actions = columns if drops else cells
        self.noise_size = 1 if opponent is None else self.num_actions + 1
        # Cells of an action [A, C]; those that need no stone below; that below each one [C, C].
        places = np.tile(np.eye(columns), (1, rows)) if drops else one
        floor = np.arange(cells) < columns if drops else np.ones(cells)
        below = np.eye(cells, k=columns) if drops else np.zeros((cells, cells))
        self.places, self.actions = _tensor(places), _tensor(places.T)
        self.floor, self.below = _tensor(floor), _tensor(below)
        self.lines = _tensor(_lines(rows, columns, length))
        # States at the start: of the opponent's A first moves, then that without a stone.
        starts = np.zeros((1 if opponent is None else self.num_actions + 1, self.state_size))
        starts[:-1, cells : 2 * cells] = (places * floor)[: len(starts) - 1]
        self.starts = _tensor(starts)

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment; see `GraphEnvironment.reset`. Row b uses noise row b alone."""
        state = self._fresh(noise)
        return state, self._observed(state)

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment; see `GraphEnvironment.step`."""
        own, other = state[:, : self.size], state[:, self.size : -1]
        own, reward, over = self._moved(own, other, action)
        if self.opponent is not None:
            reply = self._reply(other, own, noise[:, : self.num_actions])
            other = other + reply * (1.0 - over).expand_dims(1)
            lost = self._line(other)
            over, reward = ops.maximum(over, lost), reward - lost
        over = self._over(over, own + other)
        stones = (other, own) if self.opponent is None else (own, other)
        moved = ops.concat((*stones, state[:, -1:] + 1.0), 1)
        terminated = over > 0.5
        truncated = ops.logical_and(terminated, ops.logical_not(terminated))
        next_state = ops.where(terminated.expand_dims(1), self._fresh(noise), moved)
        observed = self._observed(next_state), self._observed(moved)
        return next_state, *observed, reward, terminated, truncated

    def after(self, obs: Any, action: Any) -> tuple[Any, Any, Any]:
        """Returns what a move of two players leads to; see `GraphEnvironment`."""
        own, other = obs[:, : self.size], obs[:, self.size : 2 * self.size]
        own, reward, over = self._moved(own, other, action)
        return self._seen(other, own), reward, self._over(over, own + other)

    def _moved(self, own: Any, other: Any, action: Any) -> tuple[Any, Any, Any]:
        """Returns the player's stones after a move, the reward, and 1 where it ends the game.

        A line ends it, and an invalid action.
        """
        stone = ops.gather(self.places, action, 0) * self._free(own + other)
        own, valid = own + stone, stone.sum(-1)
        won = self._line(own)
        return own, won + valid - 1.0, ops.maximum(won, 1.0 - valid)

    def _over(self, over: Any, stones: Any) -> Any:
        """Returns 1 also where all stones [N, C] fill the board."""
        return ops.maximum(over, stones.sum(-1) + (1.0 - self.size))

    def _fresh(self, noise: Any) -> Any:
        start = (noise[:, -1] * (2.0 * self.num_actions)).astype(ms.int32)
        return ops.gather(self.starts, ops.clamp(start, 0, len(self.starts) - 1), 0)

    def _free(self, stones: Any) -> Any:
        """Returns 1 where the next stone may lie, else 0: [..., C] of all stones [..., C]."""
        rests = ops.matmul(stones, self.below) + self.floor
        return (1.0 - stones) * ops.clamp(rests, 0.0, 1.0)

    def _line(self, stones: Any) -> Any:
        """Returns 1 if a player's stones [N, C] have a line, else 0: [N]."""
        longest = ops.amax(ops.matmul(stones, self.lines), -1)
        return (longest > self.length - 0.5).astype(ms.float32)

    def _observed(self, state: Any) -> Any:
        return self._seen(state[:, : self.size], state[:, self.size : -1])

    def _seen(self, own: Any, other: Any) -> Any:
        """Returns the observation of the player whose stones are `own`."""
        mask = ops.matmul(self._free(own + other), self.actions)
        return ops.concat((own, other, mask), 1)

    def _reply(self, own: Any, other: Any, noise: Any) -> Any:
        """Returns the stone of the opponent, whose stones are `own`: [B, C]."""
        free = self._free(own + other)
        score, moves = noise, free.expand_dims(1) * self.places
        if self.opponent == "two_ply":
            after = own.expand_dims(1) + moves
            wins = self._line(after.reshape((-1, self.size))).reshape(noise.shape)
            free_then = self._free(after + other.expand_dims(1))
            answers = free_then.expand_dims(2) * self.places + other.reshape((-1, 1, 1, self.size))
            loses = self._line(answers.reshape((-1, self.size)))
            loses = ops.amax(loses.reshape((*noise.shape, self.num_actions)), -1)
            score = noise + 4.0 * wins - 2.0 * loses
        score = ops.where(moves.sum(-1) > 0.5, score, -10.0)
        return ops.gather(self.places, score.argmax(-1).astype(ms.int32), 0) * free


def _lines(rows: int, columns: int, length: int) -> np.ndarray:
    """Returns the cells of each line: [C, L], 1 or 0."""
    board, found = np.arange(rows * columns).reshape(rows, columns), []
    for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for row in range(rows):
            for column in range(columns):
                last = row + up * (length - 1), column + right * (length - 1)
                if 0 <= last[0] < rows and 0 <= last[1] < columns:
                    steps = range(length)
                    found.append([board[row + up * k, column + right * k] for k in steps])
    return np.stack([np.bincount(line, minlength=rows * columns) for line in found], 1)


class GraphTicTacToe(LineGame):
    """Three in a row on a board of 3 x 3; an action is a cell."""

    def __init__(self, opponent: str | None = None) -> None:
        super().__init__("graph:TicTacToe-v0", 3, 3, 3, False, opponent)


class GraphConnectFour(LineGame):
    """Four in a row on a board of 6 rows and 7 columns; an action is a column."""

    def __init__(self, opponent: str | None = None) -> None:
        super().__init__("graph:ConnectFour-v0", 6, 7, 4, True, opponent)
