"""In-graph environments: against gym, step by step, and compiled in a loop."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import random_actions
from mindspore_rl.environments.in_graph.native_step import NativeEnvironment
from tests.tiers import quick

NAMES = ["graph:CartPole-v1", "graph:Pendulum-v1"]
FIELDS = ("next_obs", "final_obs", "reward", "terminated", "truncated")
NUM_ENVS, NUM_STEPS, UNROLL = 8, 208, 8


@pytest.fixture
def graph_mode():
    before = ms.get_context("mode"), ms.get_context("jit_syntax_level")
    ms.set_context(mode=ms.GRAPH_MODE, jit_syntax_level=ms.STRICT)
    yield
    ms.set_context(mode=before[0], jit_syntax_level=before[1])


class Rollout(nn.Cell):
    """Steps an environment in a compiled loop, 8 steps per iteration, and returns all results.

    Flags are numbers: a buffer of bools cannot be written on the CPU.
    """

    def __init__(self, env, num_steps):
        super().__init__(auto_prefix=False)
        self.env = env
        self.num_steps = num_steps
        shape = (num_steps, NUM_ENVS)
        obs_shape = (*shape, *env.spec.obs_shape)
        self.states = self.buffer("states", (*shape, env.state_size), ms.float32)
        self.next_obs = self.buffer("next_obs", obs_shape, ms.float32)
        self.final_obs = self.buffer("final_obs", obs_shape, ms.float32)
        self.reward = self.buffer("reward", shape, ms.float32)
        self.terminated = self.buffer("terminated", shape, ms.float32)
        self.truncated = self.buffer("truncated", shape, ms.float32)

    def buffer(self, name, shape, dtype):
        return ms.Parameter(ops.zeros(shape, dtype), name=name, requires_grad=False)

    def construct(self, state, action, noise):
        t = ops.zeros((1,), ms.int32)
        while t < self.num_steps:
            for k in range(UNROLL):
                at = t[0] + k
                state, next_obs, final_obs, reward, terminated, truncated = self.env.step(
                    state, action[at], noise[at]
                )
                self.states[at] = state
                self.next_obs[at] = next_obs
                self.final_obs[at] = final_obs
                self.reward[at] = reward
                self.terminated[at] = ops.cast(terminated, ms.float32)
                self.truncated[at] = ops.cast(truncated, ms.float32)
            t = t + UNROLL
        return state

    def results(self):
        buffers = (self.states, *(getattr(self, field) for field in FIELDS))
        *numbers, terminated, truncated = [np.array(buffer.asnumpy()) for buffer in buffers]
        return [*numbers, terminated > 0, truncated > 0]


def inputs(env):
    rng = np.random.default_rng(5)
    noise = rng.random((NUM_STEPS + 1, NUM_ENVS, env.noise_size), np.float32)
    return noise[-1], random_actions(env.spec, NUM_STEPS, NUM_ENVS), noise[:-1]


@pytest.mark.parametrize(("name", "compiler"), quick(itertools.product(NAMES, ("g++", "")), 2))
def test_compiled_steps_are_those_of_gym(graph_mode, monkeypatch, name, compiler):
    monkeypatch.setenv("CXX", compiler)
    env = registry.make_graph(name)
    assert isinstance(env, NativeEnvironment) == bool(compiler)
    first_noise, actions, noise = inputs(env)
    state, _ = env.reset(Tensor(first_noise))
    state = Tensor(state.asnumpy())
    rollout = Rollout(env, NUM_STEPS)
    rollout(state, Tensor(actions), Tensor(noise))
    states, *got = rollout.results()
    states = np.concatenate([state.asnumpy()[None], states])

    # From each state anew: the tasks are unstable, and rounding grows in every trajectory.
    gym_env = registry.make_vector(name.removeprefix("graph:"), range(NUM_ENVS), 0)
    saved = gym_env.get_state()
    for t in range(NUM_STEPS):
        elapsed = states[t][:, -1].astype(np.int64)
        gym_env.set_state(saved | {"physics": env.python_state(states[t]), "elapsed": elapsed})
        expected = gym_env.step(actions[t])
        for field, one, other in list(zip(FIELDS, got, expected, strict=True))[1:]:
            assert one[t].dtype == other.dtype
            np.testing.assert_allclose(one[t], other, rtol=0, atol=1e-5, err_msg=f"{field} {t}")
    next_obs, final_obs, _, terminated, truncated = got
    ended = terminated | truncated
    assert ended.sum() >= NUM_ENVS
    np.testing.assert_array_equal(next_obs[~ended], final_obs[~ended])
    fresh = next_obs[ended]
    np.testing.assert_allclose(states[1:][ended][:, -1], 0)
    if name == "graph:CartPole-v1":
        assert (np.abs(fresh) <= 0.05).all()
        np.testing.assert_allclose(fresh, 0.1 * noise[ended][:, :4] - 0.05, atol=1e-7)
    else:
        angle = 2 * np.pi * noise[ended][:, 0] - np.pi
        speed = 2 * noise[ended][:, 1] - 1
        wanted = np.stack([np.cos(angle), np.sin(angle), speed], axis=1)
        np.testing.assert_allclose(fresh, wanted, atol=1e-6)


def test_cartpole_is_truncated_after_500_steps():
    env = registry.make_graph("graph:CartPole-v1")
    state = Tensor(
        np.array([[0, 0, 0, 0, 498], [0, 0, 0, 0, 499], [2.39, 3, 0, 0, 499]], np.float32)
    )
    noise = Tensor(np.zeros((3, 5), np.float32))
    action = Tensor(np.array([0, 1, 0], np.int32))
    state, _, _, reward, terminated, truncated = env.step(state, action, noise)
    np.testing.assert_array_equal(terminated.asnumpy(), [False, False, True])
    np.testing.assert_array_equal(truncated.asnumpy(), [False, True, True])
    np.testing.assert_array_equal(state.asnumpy()[:, -1], [499, 0, 0])
    np.testing.assert_array_equal(reward.asnumpy(), [1, 1, 1])
