"""A run's policy takes what the environment gives: the layout flattens as the libraries do."""

import json
from dataclasses import asdict

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import concatenate, create_empty_array

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.images import channels_first
from mindspore_rl.environments.layout import Layout
from mindspore_rl.environments.registry import spec
from mindspore_rl.environments.spaces import Discrete as Actions
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.reading import read
from mindspore_rl.trained.policy import Policy

IMAGE = Box(0, 255, (3, 4, 2), np.uint8)
SPACES = [
    Discrete(5, start=-2),
    MultiDiscrete([[3, 2], [4, 1]]),
    MultiBinary((2, 3)),
    Tuple((Box(-1, 1, (2, 2)), Discrete(3))),
    Dict(z=Box(-1, 1, ()), a=Discrete(3), deep=Dict(i=IMAGE, t=Tuple((MultiDiscrete([2, 3]),)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_flattens_as_the_library_does_one_or_many(space):
    space.seed(1)
    layout = Layout.of(space)
    samples = [space.sample() for _ in range(4)]
    expected = np.stack([flatten(space, one) for one in samples]).astype(np.float32)
    single, alone = layout.flat(samples[0])
    assert alone
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single[0], expected[0])
    batch = concatenate(space, samples, create_empty_array(space, 4))
    found, alone = layout.flat(batch)
    assert not alone
    np.testing.assert_array_equal(found, expected)
    assert read(Layout, json.loads(json.dumps(asdict(layout)))) == layout


def test_images_have_their_channels_first():
    image = IMAGE.sample()
    found, alone = Layout.of(IMAGE).flat(image)
    assert alone
    np.testing.assert_array_equal(found[0], channels_first(image))
    found, alone = Layout.of(IMAGE).flat(np.stack([image, image]))
    assert found.shape == (2, 2, 3, 4)
    assert not alone
    with pytest.raises(MsrlError, match="obs is float32, expected images of uint8"):
        Layout.of(IMAGE).flat(image.astype(np.float32))
    assert Layout.of(Dict({"name": Text(3)})) is None


PLACE = Layout.of(
    Dict({"place": Box(-1, 1, (2,)), "cell": Discrete(4), "pair": Tuple([Box(0, 1, ())])})
)
RIGHT = {"place": np.zeros(2), "cell": 1, "pair": (0.5,)}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cell": None}, r"obs lacks 'cell', expected Dict\(cell: Discrete\(4\), pair: Tuple"),
        ({"goal": 1}, "obs has 'goal' too many, expected Dict"),
        ({"cell": 4}, r"obs\['cell'\] is 4, expected 0 to 3 of Discrete\(4\)"),
        ({"cell": 0.5}, r"obs\['cell'\] is float, expected whole numbers: Discrete\(4\)"),
        ({"place": np.zeros(3)}, r"obs\['place'\] has shape \(3,\), expected \(2,\) of Box\(2,\)"),
        ({"place": ["a", "b"]}, r"obs\['place'\] is list, expected numbers: Box\(2,\)"),
        ({"place": [[1], [1, 2]]}, r"obs\['place'\] is list, expected numbers: Box\(2,\)"),
        ({"pair": (1, 2)}, r"obs\['pair'\] is tuple, expected 1 parts: Tuple\(Box\(\)\)"),
        ({"cell": [1, 2]}, r"obs\['cell'\] is a batch of 2 and obs\['pair'\]\[0\] one observation"),
    ],
)
def test_what_is_not_in_the_space_is_told(change, text):
    wrong = {key: value for key, value in (RIGHT | change).items() if value is not None}
    with pytest.raises(MsrlError, match=text):
        PLACE.flat(wrong)
    with pytest.raises(MsrlError, match="obs is an array float64 .*, expected a mapping: Dict"):
        PLACE.flat(np.zeros(6))


def policy_of(space, size, mask=False):
    """A policy with the spec of an environment, which checks observations as a trained one."""
    policy = Policy.__new__(Policy)
    layout = Layout.of(space).without("action_mask")
    policy._episodes, policy.spec = (
        None,
        EnvironmentSpec(
            "some", (size,), Actions(3), 0, None, False, action_mask=mask, layout=layout
        ),
    )
    return lambda obs, mask=None: policy._checked(obs, mask)


def test_arrays_of_the_network_are_taken_as_before():
    take = policy_of(Dict({"a": Box(0, 1, (2,)), "b": Discrete(2)}), 4)
    found, alone = take({"a": [0.5, 1], "b": 1})
    assert alone
    np.testing.assert_array_equal(take(found[0])[0], found)
    np.testing.assert_array_equal(take(found)[0], found)
    with pytest.raises(MsrlError, match=r"expected a mapping: .*; or an array of shape \(4,\)"):
        take(np.zeros(3))


def test_numbers_that_may_be_a_state_or_states_are_refused():
    take = policy_of(Discrete(4), 4)
    np.testing.assert_array_equal(take(2)[0], [[0, 0, 1, 0]])
    assert take([0, 0, 2, 1])[0].shape == (4, 4)
    assert take(np.eye(4, dtype=np.float32)[1])[1]
    with pytest.raises(MsrlError, match="is both an observation of 4 numbers and a batch of 4"):
        take(np.array([0, 0, 1, 0]))


def test_an_action_mask_is_in_the_observation_or_given():
    take = policy_of(Box(0, 1, (2,)), 5, True)
    expected = [[0.5, 1, 1, 0, 1]]
    np.testing.assert_array_equal(take(np.array([0.5, 1]), [1, 0, 1])[0], expected)
    np.testing.assert_array_equal(take(np.array(expected))[0], expected)
    with pytest.raises(MsrlError, match="obs comes with no action_mask; some has Box"):
        take(np.array([0.5, 1]))
    with pytest.raises(MsrlError, match="expected 3 entries"):
        take(np.array([0.5, 1]), [1, 0])
    take = policy_of(Dict({"action_mask": MultiBinary(3), "own": Box(0, 1, (2,))}), 5, True)
    one = {"own": np.array([0.5, 1]), "action_mask": np.array([1, 0, 1])}
    np.testing.assert_array_equal(take(one)[0], expected)
    both = {key: np.stack([value, value]) for key, value in one.items()}
    np.testing.assert_array_equal(take(both)[0], expected * 2)
    with pytest.raises(MsrlError, match="comes with an action_mask, and the policy takes none"):
        policy_of(Discrete(4), 4)(1, [1, 1, 1])


def test_a_library_s_environment_tells_its_layout():
    assert str(spec("FrozenLake-v1").layout) == "Discrete(16)"
    assert str(spec("Blackjack-v1").layout) == "Tuple(Discrete(32), Discrete(11), Discrete(2))"
    assert gymnasium.make("CartPole-v1").observation_space.shape == spec("CartPole-v1").layout.shape
