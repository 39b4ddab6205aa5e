"""AlphaZero's searches follow the rules of the game."""

import dataclasses

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs.registry import find_algorithm

GAME = "graph:TicTacToe-v0"


def made(env=GAME, **options):
    cls = programs.trainer_class(find_algorithm("alphazero"))
    config = dataclasses.replace(cls.Config(), env=env, hidden=(8, 8), **options)
    return programs.make_trainer(cls, config, spec(env))


def seen(board):
    """The observation of the player x, of a board as text, its first row first."""
    cells = board.replace(" ", "")
    return [float(cell == mark) for mark in "xo." for cell in cells]


def test_it_wins_where_it_can_and_else_prevents_a_defeat(run):
    """With a network that has learnt nothing."""
    actor = made(simulations=40, max_depth=3, value_scale=1.0).actor
    obs = np.array([seen("xx. oo. ..."), seen("x.. oo. x..")], np.float32)
    action, policy = run(actor.searched, obs, np.zeros((2, 9), np.float32))
    assert action.tolist() == policy.argmax(-1).tolist() == [2, 5]


def test_nothing_is_gained_after_the_end(run):
    planner = made().actor.planner
    over = np.array([[*seen("xx. oo. ..."), 0.0]] * 2, np.float32)
    over, reward, _, value = planner.imagine(Tensor(over), Tensor(np.array([2, 8], np.int32)))
    assert over.asnumpy()[:, -1].tolist() == [1.0, 0.0]
    assert reward.asnumpy().tolist() == [1.0, 0.0]
    assert (value.asnumpy() == 0.0).tolist() == [True, False]
    _, reward, _, value = planner.imagine(over, Tensor(np.array([8, 5], np.int32)))
    assert (reward.asnumpy()[0], value.asnumpy()[0]) == (0.0, 0.0)


@pytest.mark.parametrize("env", ["graph:CartPole-v1", f"{GAME},opponent=random"])
def test_it_refuses_what_is_no_game_of_two_players(env):
    with pytest.raises(ConfigError, match="or train muzero, which learns a model"):
        made(env)
