"""Messages about environments that fail."""

import numpy as np
import pytest

from mindspore_rl.environments.crash_log import LastActions, last_action
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.error_context import GuardedVector
from mindspore_rl.environments.registry import make_vector
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import EnvironmentFailure, NumericsError

SPEC = EnvironmentSpec("mine", (3,), Discrete(2), 100, None, in_graph=False)
INDICES = range(4, 8)
ACTIONS = np.array([10, 11, 12, 13], np.int32)


class Mine:
    """Returns the given results from its third step on."""

    spec = SPEC

    def __init__(self, change):
        self.change, self.steps = change, 0

    def reset(self):
        return np.zeros((4, 3), np.float32)

    def step(self, action):
        self.steps += 1
        obs = np.zeros((4, 3), np.float32)
        ends = np.zeros(4, bool)
        outcome = [obs, obs.copy(), np.ones(4, np.float32), ends, ends.copy()]
        return tuple(outcome) if self.steps < 3 else self.change(outcome)

    def get_state(self):
        raise OSError("no state today")


def put(position, index, value):
    def change(outcome):
        outcome[position][index] = value
        return tuple(outcome)

    return change


def fails(change, text, where):
    env = GuardedVector(Mine(change), INDICES, lambda action: None)
    env.reset()
    for _ in range(2):
        env.step(ACTIONS)
    with pytest.raises(EnvironmentFailure) as caught:
        env.step(ACTIONS)
    assert str(caught.value) == f"mine, after 2 steps: {text}; {where}"
    return caught.value


RANGE = (
    "expected finite numbers up to 1.8e+19, whose squares are finite float32: scale or clip it in "
    "the environment"
)
BATCH = "environments 4..7 are one batch; the last action was [10, 11, 12, 13]"


def one(number):
    return f"it was environment {number}; the last action was {ACTIONS[number - 4]}"


@pytest.mark.parametrize(
    ("change", "text", "where"),
    [
        (put(0, (1, 2), np.nan), f"step: next_obs[2] is nan, {RANGE}", one(5)),
        (put(2, 3, np.inf), f"step: reward is inf, {RANGE}", one(7)),
        (put(1, (2, 0), -3e38), f"step: final_obs[0] is -3e+38, {RANGE}", one(6)),
        (put(2, slice(2, 4), 1e30), f"step: reward is 1e+30, {RANGE}", one(6)),
        (lambda outcome: 1 / 0, "step raised ZeroDivisionError: division by zero", BATCH),
    ],
)
def test_what_is_wrong_is_told(change, text, where):
    fails(change, text, where)


def test_the_cause_is_kept_for_the_traceback():
    cause = fails(
        lambda outcome: 1 / 0, "step raised ZeroDivisionError: division by zero", BATCH
    ).__cause__
    assert isinstance(cause, ZeroDivisionError)


def test_what_is_large_but_can_be_trained_on_is_let_through():
    env = GuardedVector(Mine(put(2, 0, 1.8e19)), INDICES, lambda action: None)
    env.reset()
    for _ in range(3):
        outcome = env.step(ACTIONS)
    assert np.isfinite(np.square(outcome[2])).all()


def test_an_action_that_is_no_number_is_not_the_environments_fault():
    env = GuardedVector(Mine(None), INDICES, lambda action: None)
    env.reset()
    action = np.array([[0.0], [1.0], [np.nan], [2.0]], np.float32)
    with pytest.raises(NumericsError, match=r"for environment 6 is \[nan\]: the policy has diver"):
        env.step(action)


def test_a_single_environment_is_named_and_a_first_action_not_made_up():
    env = GuardedVector(Mine(None), range(7, 8), lambda action: None)
    with pytest.raises(EnvironmentFailure, match="it was environment 7$"):
        env.get_state()
    with pytest.raises(EnvironmentFailure, match=r"obs is float32 \(4, 3\), expected .* \(1, 3\)"):
        env.reset()


def test_last_actions_outlive_their_process(tmp_path):
    assert last_action(tmp_path, 2, INDICES) == ""
    last = LastActions(tmp_path, 2, SPEC, 4)
    last.write(ACTIONS)
    assert last_action(tmp_path, 2, INDICES) == BATCH
    last.at_work[0] = 2
    assert last_action(tmp_path, 2, INDICES) == "it was environment 6; the last action was 12"


def test_gym_says_which_environment_is_running(tmp_path):
    vector = make_vector("CartPole-v1", INDICES, 0)
    last = LastActions(tmp_path, 0, vector.spec, 4)
    vector.at_work = last.at_work
    env = GuardedVector(vector, INDICES, last.write)
    env.reset()
    seen = []

    def step(action):
        seen.append(last_action(tmp_path, 0, INDICES))
        raise RuntimeError("it broke")

    vector._steps[1] = step
    with pytest.raises(EnvironmentFailure, match=r"environment 5.*it broke.*last action was 1"):
        env.step(np.array([0, 1, 0, 0], np.int32))
    assert seen == ["it was environment 5; the last action was 1"]


def test_the_numbers_of_episodes_that_ended_are_one_dict_each():
    mine = Mine(put(3, 2, True))
    env = GuardedVector(mine, INDICES, lambda action: None)
    for _ in range(2):
        env.step(ACTIONS)
    assert env.episode_info == []
    mine.episode_info = [{"success": np.bool_(True), "map": "a"}]
    env.step(ACTIONS)
    assert env.episode_info == [{"success": 1.0}]
    mine.episode_info = [{}, {}]
    with pytest.raises(EnvironmentFailure, match=r"info is \[{}, {}\], expected .* the 1 ep"):
        env.step(ACTIONS)
