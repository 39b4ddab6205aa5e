"""Images: bytes, channels first, from any layout of an environment."""

import importlib

import numpy as np
import pytest

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import check, random_actions
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.images import channels_first, is_image
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import EnvironmentFailure
from mindspore_rl.platform.user_modules import load_module
from tests.environments.by_hand import ends_by_hand
from tests.tiers import quick

OWN = """
import numpy as np
import LIBRARY as library

class Screen(library.Env):
    shape, most, kind = (5, 6, 3), 255, np.uint8
    action_space = library.spaces.Discrete(2)

    def __init__(self):
        self.observation_space = library.spaces.Box(0, self.most, self.shape, np.uint8)

    def seen(self):
        return self.np_random.integers(0, self.most + 1, self.shape).astype(self.kind)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), 1.0, self.steps == 4, False, {}

class Grey(Screen):
    shape = (5, 6)

class First(Screen):
    shape = (3, 5, 6)

class Stack(Screen):
    shape = (4, 5, 6, 3)

class Board(Screen):
    most = 2

class Fractions(Screen):
    kind = np.float64

class Floats(Screen):
    def __init__(self):
        self.observation_space = library.spaces.Box(0, 1, self.shape, np.float32)

class Inside(Screen):
    def __init__(self):
        super().__init__()
        self.observation_space = library.spaces.Dict(eye=self.observation_space)
"""


@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("Screen", (3, 5, 6), (2, 0, 1)),
        ("First", (3, 5, 6), (0, 1, 2)),
        ("Grey", (1, 5, 6), (0, 1)),
        ("Stack", (12, 5, 6), (0, 3, 1, 2)),
    ],
)
def test_every_layout_becomes_channels_first(own, name, shape, axes):
    spec = registry.spec(own(name))
    assert (spec.obs_shape, spec.obs_dtype) == (shape, "uint8")
    assert spec.notes.endswith(f"observations are images, uint8 [C, H, W] = {list(shape)}")
    vector = registry.make_vector(own(name), range(3, 5), 7)
    envs = [getattr(load_module(own.path), name)() for _ in range(2)]

    actions = random_actions(spec, 9, 2)
    ends = ends_by_hand(
        vector, envs, 7, actions, seen=lambda obs: obs.transpose(axes).reshape(shape)
    )
    assert ends == [4, 0]
    assert all(obs.dtype == np.uint8 for obs in (vector.reset(), *vector.step(actions[0])[:2]))


@pytest.mark.parametrize("name", quick(["Screen", "First", "Stack"], 2))
def test_they_conform(own, name):
    assert check(own(name)) == []


def test_a_board_is_no_image(own):
    assert registry.spec(own("Board")).obs_dtype == "float32"
    assert registry.make_vector(own("Board"), range(1), 0).reset().dtype == np.float32


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("Floats", "observations [5, 6, 3] are 90 numbers without neighbours to a network"),
        ("Inside", "['eye'] 90 numbers of an image without its neighbourhoods"),
    ],
)
def test_pixels_that_become_mere_numbers_are_told(own, name, note):
    assert note in registry.spec(own(name)).notes


def test_fractions_are_not_cut_to_bytes(own):
    with pytest.raises(EnvironmentFailure, match=r"environment 0, .* of float64, .*image of uint8"):
        registry.make_vector(own("Fractions"), range(1), 0)


def test_channels_are_along_the_shorter_axis():
    assert channels_first(np.zeros((84, 84, 4), np.uint8)).shape == (4, 84, 84)
    assert channels_first(np.zeros((4, 84, 84), np.uint8)).shape == (4, 84, 84)
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    np.testing.assert_array_equal(channels_first(image), image.transpose(2, 0, 1))


def test_which_spaces_are_images():
    spaces = importlib.import_module("gymnasium").spaces
    assert is_image(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (128,), np.uint8))  # for example Atari's memory
    assert not is_image(spaces.Box(0, 255, (8, 8, 3), np.float32))
    assert not is_image(spaces.Box(0, 1, (8, 8, 3), np.uint8))
    assert not is_image(spaces.Discrete(3))


@pytest.mark.parametrize(
    ("shape", "in_graph", "dtype"),
    [((8, 8), False, "uint8"), ((1, 8, 8), True, "uint8"), ((1, 8, 8), False, "float64")],
)
def test_a_spec_of_other_kinds_is_refused(shape, in_graph, dtype):
    with pytest.raises(ValueError, match='its obs_dtype is .*, expected "float32"'):
        EnvironmentSpec("x", shape, Discrete(2), 0, None, in_graph, obs_dtype=dtype)
