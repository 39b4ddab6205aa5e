"""Action masks: the last numbers of an observation tell which actions are valid."""

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from mindspore_rl.environments import registry
from mindspore_rl.environments.environment import EnvironmentSpec, Team
from mindspore_rl.environments.error_context import GuardedVector
from mindspore_rl.environments.gym.vector import GymVector
from mindspore_rl.environments.probe import Choice
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.environments.sync_vector import seed_of
from mindspore_rl.errors import EnvironmentFailure, UnknownEnvironmentError

OWN = """
import numpy as np
import LIBRARY as library
from LIBRARY import spaces

class Info(library.Env):
    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(3)
    masks = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    last = [0, 0, 0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.resets = 0, getattr(self, "resets", 0) + 1
        return self.seen(), self.told()

    def step(self, action):
        assert self.masks[self.steps][action], f"invalid {action}"
        self.steps += 1
        return self.seen(), 1.0, self.steps == 3, False, self.told()

    def seen(self):
        return np.array([self.steps, self.resets], np.float32)

    def told(self):
        return {"action_mask": np.array(self.mask(), np.int8)}

    def mask(self):
        return self.masks[self.steps] if self.steps < 3 else self.last

class Method(Info):
    def told(self):
        return {}

    def action_masks(self):
        return [bool(valid) for valid in self.mask()]

class Part(Info):
    observation_space = spaces.Dict(
        {"obs": Info.observation_space, "action_mask": spaces.MultiBinary(3)})

    def seen(self):
        return {"obs": super().seen(), "action_mask": np.array(self.mask(), np.int8)}

    def told(self):
        return {}

class Choices(Info):
    action_space = spaces.MultiDiscrete([3, 1])

    def step(self, action):
        return super().step(action[0])

class Each(Info):
    action_space = spaces.MultiDiscrete([2, 2])
    masks = [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]]

    def step(self, action):
        valid = [self.mask()[action[0]], self.mask()[2 + action[1]]]
        assert all(valid), f"invalid {action}"
        return super().step(0)

class Apart(Each):
    def told(self):
        return {"action_mask": tuple(np.split(np.array(self.mask(), np.int8), 2))}

class Short(Info):
    masks = [[0, 1]] * 3

class Counts(Info):
    masks = [[0, 1, 2]] * 3

class Nothing(Info):
    masks = [[1, 1, 1], [0, 0, 0], [1, 1, 1]]

class Image(Info):
    observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def seen(self):
        return np.zeros((1, 36, 36), np.uint8)

class Without(Info):
    def told(self):
        return {}

class Continuous(Info):
    action_space = spaces.Box(-1, 1, (3,), np.float32)
"""


@pytest.mark.parametrize("name", ["Info", "Method", "Part", "Choices"])
def test_masks_follow_the_features(own, name):
    found = registry.spec(own(name))
    assert (found.obs_shape, found.action_mask, found.mask_size) == ((5,), True, 3)
    assert "3 actions are masked by " in found.notes
    vector = registry.make_vector(own(name), range(2), 1)
    # Each was reset once: looking for the mask took the first one's own reset.
    np.testing.assert_array_equal(vector.reset(), [[0, 1, 0, 1, 1]] * 2)
    next_obs, final_obs, *_ = vector.step(np.array([1, 2], np.int32))
    np.testing.assert_array_equal(next_obs, [[1, 1, 1, 0, 1]] * 2)
    vector.step(np.array([0, 2], np.int32))
    next_obs, final_obs, _, terminated, _ = vector.step(np.array([1, 0], np.int32))
    assert terminated.all()
    # Where an episode has terminated no action is taken, and an empty mask becomes a full one.
    np.testing.assert_array_equal(final_obs, [[3, 1, 1, 1, 1]] * 2)
    np.testing.assert_array_equal(next_obs, [[0, 2, 0, 1, 1]] * 2)
    with pytest.raises(EnvironmentFailure, match="environment 1.*invalid 0"):
        vector.step(np.array([1, 0], np.int32))


@pytest.mark.parametrize("name", ["Each", "Apart"])
def test_a_mask_of_each_choice_is_one_of_their_combinations(own, name):
    vector = registry.make_vector(own(name), range(1), 1)
    np.testing.assert_array_equal(vector.reset()[:, 2:], [[1, 1, 0, 0]])
    next_obs, *_ = vector.step(np.array([1], np.int32))
    np.testing.assert_array_equal(next_obs[:, 2:], [[0, 1, 0, 1]])
    with pytest.raises(EnvironmentFailure, match=r"invalid \[1 0\]"):
        vector.step(np.array([2], np.int32))


def test_looking_for_a_mask_makes_no_environment_more(monkeypatch):
    made, resets = [], []
    maker = lambda: made.append(FrozenLakeEnv(is_slippery=False)) or made[-1]  # noqa: E731
    reset = FrozenLakeEnv.reset
    seeds = lambda env, **given: resets.append(given["seed"]) or reset(env, **given)  # noqa: E731
    monkeypatch.setattr(FrozenLakeEnv, "reset", seeds)
    vector = GymVector("FrozenLake-v1", range(3, 5), 7, maker)
    vector.reset()
    assert resets == [seed_of(7, i, 0) for i in (3, 4)]
    assert len(made) == 2


def test_a_mask_is_left_out(own):
    for name, shape in (("Info", (2,)), ("Method", (2,)), ("Part", (5,))):
        found = registry.spec(own(f"{name},action_mask=false"))
        assert (found.obs_shape, found.action_mask) == (shape, False)
    for name in ("Without", "Continuous"):
        assert not registry.spec(own(name)).action_mask
        with pytest.raises(UnknownEnvironmentError, match="has no action mask, expected info"):
            registry.spec(own(f"{name},action_mask=true"))
    with pytest.raises(UnknownEnvironmentError, match="action_mask is 3, expected true or false"):
        registry.spec(own("Info,action_mask=3"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Short", r"info\['action_mask'\] is .*, expected 3 entries, one for each action"),
        ("Counts", r"expected entries of 0 \(invalid\) and 1 \(valid\)"),
        ("Nothing", "has no valid action, in an episode that goes on"),
        ("Image", "has images and an action mask.*leave the mask out"),
    ],
)
def test_a_wrong_mask_is_named(own, name, text):
    with pytest.raises(EnvironmentFailure, match=text):
        registry.make_vector(own(name), range(2), 1).step(np.array([1, 1], np.int32))


def test_an_invalid_action_ends_the_probe():
    env = registry.make_vector("probe:choice", range(3), 0)
    masks = env.reset()[:, 1:]
    action = masks.argmax(1)
    action[1] = masks[1].argmin()
    with pytest.raises(EnvironmentFailure, match="environment 1: action . is invalid"):
        env.step(action)


class Broken(Choice):
    def _mask(self):
        return super()._mask() * (self._elapsed < 2)[:, None]


def test_a_batch_of_environments_is_checked():
    env = GuardedVector(Broken(range(2), 0), range(2), lambda action: None)
    obs = env.step(env.reset()[:, 1:].argmax(1).astype(np.int32))[0]
    with pytest.raises(EnvironmentFailure, match=r"mask is \[0.*environment 0; the last action"):
        env.step(obs[:, 1:].argmax(1).astype(np.int32))


@pytest.mark.parametrize(
    ("shape", "space", "others"),
    [
        ((3,), Discrete(3), {}),
        ((5,), Box((3,), (0.0,) * 3, (1.0,) * 3), {}),
        ((2, 5), Discrete(3), {}),
        ((1, 9, 9), Discrete(3), {"obs_dtype": "uint8"}),
        ((2, 3), Discrete(3), {"teams": (Team("agent", 2),)}),
    ],
)
def test_a_spec_without_room_for_a_mask_is_refused(shape, space, others):
    with pytest.raises(ValueError, match="its action_mask is True, expected False, or True of"):
        EnvironmentSpec("x", shape, space, 9, None, False, action_mask=True, **others)
