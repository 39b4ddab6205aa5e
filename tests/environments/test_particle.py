"""The particle worlds in MindSpore operators against mpe2."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from mindspore_rl.environments import registry

NAMES = ["graph:simple_spread_v3", "graph:simple_spread_v3,N=5", "graph:simple_tag_v3"]
NUM_ENVS, NUM_STEPS = 12, 25
FIELDS = ("final_obs", "reward", "terminated", "truncated")


@pytest.fixture(params=[ms.PYNATIVE_MODE, pytest.param(ms.GRAPH_MODE, marks=pytest.mark.slow)])
def mode(request):
    before = ms.get_context("mode"), ms.get_context("jit_syntax_level")
    ms.set_context(mode=request.param, jit_syntax_level=ms.STRICT)
    yield request.param
    ms.set_context(mode=before[0], jit_syntax_level=before[1])


class Step(nn.Cell):
    def __init__(self, env):
        super().__init__(auto_prefix=False)
        self.env = env

    def construct(self, state, action, noise):
        return self.env.step(state, action, noise)


class Reset(nn.Cell):
    def __init__(self, env):
        super().__init__(auto_prefix=False)
        self.env = env

    def construct(self, noise):
        return self.env.reset(noise)


def crowded_and_wide(state):
    """A third of the worlds so small that all touch, a third so large that agents are outside."""
    state = state.copy()
    state[: NUM_ENVS // 3, :-1] *= 0.2
    state[-NUM_ENVS // 3 :, :-1] *= 4.0
    return state


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_that_of_mpe2(mode, name):
    env = registry.make_graph(name)
    other = registry.make_vector(registry.python_name(name), range(NUM_ENVS), 0)
    assert other.spec.obs_shape == env.spec.obs_shape
    assert other.spec.teams == env.spec.teams
    rng = np.random.default_rng(3)
    noise = Tensor(rng.random((NUM_ENVS, env.noise_size), np.float32))
    step, reset = Step(env), Reset(env)
    state = crowded_and_wide(reset(noise)[0].asnumpy())
    rewards = []
    for t in range(NUM_STEPS):
        action = rng.integers(0, 5, (NUM_ENVS, *env.spec.agent_shape)).astype(np.int32)
        saved = {"physics": env.python_state(state), "elapsed": state[:, -1].astype(np.int64)}
        other.set_state(other.get_state() | saved)
        _, *expected = other.step(action)
        state, next_obs, *got = (
            tensor.asnumpy() for tensor in step(Tensor(state), Tensor(action), noise)
        )
        for field, one, two in zip(FIELDS, got, expected, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-5, err_msg=f"{field} {t}")
        rewards.append(got[1])
        assert got[3].all() == (t == NUM_STEPS - 1)
    np.testing.assert_array_equal(next_obs, reset(noise)[1].asnumpy())
    rewards = np.stack(rewards)
    if "spread" in name:  # agents differ only where some of them touch
        assert (np.ptp(rewards, axis=2) > 0).any() and (np.ptp(rewards, axis=2) == 0).any()
    else:  # caught, free inside, a little outside, far outside
        assert (rewards[:, :, 0] >= 10).any() and (rewards[:, :, 3] < -10).any()
        assert (rewards[:, :, 3] == 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_worlds_start_as_in_mpe2(mode, name):
    env = registry.make_graph(name)
    other = registry.make_vector(registry.python_name(name), range(400), 0)
    noise = np.random.default_rng(0).random((400, env.noise_size), np.float32)
    noise[0], noise[1] = 0.0, 1.0
    starts = env.python_state(Reset(env)(Tensor(noise))[0].asnumpy())
    theirs = other.get_state()["physics"]
    assert starts.shape == theirs.shape
    span = np.ceil(np.abs(theirs).max(axis=0) * 10) / 10  # 1, or 0.9 for simple_tag's landmarks
    np.testing.assert_allclose(starts[1], span, atol=1e-6)
    np.testing.assert_allclose(starts[0], -span, atol=1e-6)
    np.testing.assert_allclose(starts[2:].std(axis=0), theirs.std(axis=0), atol=0.08)
    np.testing.assert_allclose(starts[2:].mean(axis=0), theirs.mean(axis=0), atol=0.15)
