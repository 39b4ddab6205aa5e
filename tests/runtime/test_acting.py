"""`load(run).policy` takes the actions of `msrl eval`, for one observation or many."""

import gymnasium
import mindspore as ms
import numpy as np
import pytest

from mindspore_rl import load, train
from mindspore_rl.cli import main as cli
from mindspore_rl.errors import MsrlError
from mindspore_rl.trained.evaluate import Over, evaluate
from tests.runtime.test_evaluate import ALTERNATES

SLOW = pytest.mark.slow
TINY = {"backend": "inproc", "quiet": True, "stop_return": float("nan")}


def trained(folder, algorithm, env="CartPole-v1", iterations=2, **config):
    keys = {"num_envs": 2, "num_steps": 4, **config}
    steps = iterations * keys["num_envs"] * keys["num_steps"]
    return train(algorithm, env=env, config=keys, total_steps=steps, run_dir=folder, **TINY)


def compare(run):
    """Plays the first 12 steps of evaluation again."""
    steps = []

    def watch(*step):
        steps.append(step)
        if len(steps) == 12:
            raise Over

    evaluate(run.path, 3, 7, False, watch=watch)
    policy = load(run.path).policy
    reward, ended = 0.0, False
    for obs, action, gained, terminated, truncated, _ in steps:
        found = policy(obs, reward=reward, ended=ended)
        assert found.dtype == action.dtype
        np.testing.assert_array_equal(found, action)
        reward, ended = gained, terminated | truncated
        if not policy.remembers:
            np.testing.assert_allclose(policy(obs[1]), action[1], rtol=1e-5)
    return policy


@pytest.mark.parametrize(
    ("algorithm", "env", "config"),
    [
        pytest.param("ppo", "Pendulum-v1", {"normalise_obs": True}, marks=SLOW),
        ("a2c", "CartPole-v1", {}),
        pytest.param("impala", "CartPole-v1", {}, marks=SLOW),
        pytest.param(
            "dqn", "CartPole-v1", {"n_step": 2, "learning_starts": 4, "batch_size": 4}, marks=SLOW
        ),
        pytest.param("mappo", "graph:simple_spread_v3", {"num_minibatches": 2}, marks=SLOW),
        pytest.param("sac", "Pendulum-v1", {"batch_size": 4}, marks=SLOW),
        pytest.param("td3", "Pendulum-v1", {"batch_size": 4}, marks=SLOW),
    ],
)
def test_acts_as_the_loop_that_is_played(algorithm, env, config, tmp_path):
    policy = compare(trained(tmp_path / "run", algorithm, env, **config))
    assert not policy.remembers


def test_what_remembers_is_told_of_ends(tmp_path):
    file = tmp_path / "alternates.py"
    gradient = next(line for line in ALTERNATES.splitlines() if "msrl.gradient(" in line)
    marked = gradient.replace("msrl.gradient(", 'msrl.boundary("gradient", msrl.gradient(') + ")"
    file.write_text(ALTERNATES.replace(gradient, marked))
    run = train(file, policy="GPUOnly", total_steps=1, run_dir=tmp_path / "run", **TINY)
    policy = compare(run)
    assert policy.remembers
    with pytest.raises(MsrlError, match="of 1 episodes, and those under way are 3; call reset"):
        policy(np.zeros(4))
    policy.reset()
    assert [policy(np.zeros(4)) for _ in range(4)] == [1, 0, 1, 0]
    assert policy(np.zeros(4), ended=True) == 1


@pytest.mark.slow
def test_a_decision_transformer_is_told_of_rewards_and_ends(tmp_path):
    data = tmp_path / "data"
    played = trained(tmp_path / "ppo", "ppo")
    assert cli.main(["dataset", "record", str(played.path), str(data), "--episodes", "4"]) == 0
    run = trained(tmp_path / "dt", "decision_transformer", dataset=str(data), batch_size=4)
    assert compare(run).remembers


def test_samples_differ_and_wrong_observations_are_told(tmp_path):
    policy = trained(tmp_path / "run", "a2c").policy
    obs = np.zeros((50, 4))
    assert len(set(policy(obs).tolist())) == 1
    assert not np.array_equal(policy(obs, sample=True), policy(obs, sample=True))
    for wrong in (np.zeros(3), np.zeros((2, 2, 4)), np.zeros((0, 4))):
        with pytest.raises(MsrlError, match=r"expected \(4,\) of CartPole-v1, or .* \(B, 4\)"):
            policy(wrong)
    with pytest.raises(MsrlError, match="obs is str, expected numbers"):
        policy("left")


CHOOSES = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box

class Chooses(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (3,)), Box(-1, 5, (2, 3), np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        assert isinstance(action, np.ndarray) and self.action_space.contains(action), action
        self.steps += 1
        obs = self.np_random.normal(size=3).astype(np.float32)
        return obs, float(action.sum()), False, self.steps == 9, {}

def make():
    return gymnasium.wrappers.NormalizeReward(Chooses())
"""


@pytest.mark.parametrize(
    "space", ["-1, 5, (2, 3), np.int32", pytest.param("-0.1, 0.1, (2, 3), np.float64", marks=SLOW)]
)
def test_actions_are_those_of_the_space_everywhere(space, tmp_path, capsys):
    """In training, evaluation, `policy` and exported files: bounds, shape and type.

    Evaluation also warns of a wrapper's statistics, which it does not have.
    """
    (tmp_path / "own.py").write_text(CHOOSES.replace("-1, 5, (2, 3), np.int32", space))
    run = trained(tmp_path / "run", "ppo", f"{tmp_path}/own.py:make")
    run.evaluate(2)
    assert "own.py:make: NormalizeReward: running statistics of its own" in capsys.readouterr().err
    weights = run.policy._trained[0].actor.network.policy.trainable_params()[-2]
    weights.set_data(ms.Tensor(100 * np.abs(weights.asnumpy()).astype(np.float32)))
    env, obs = run.make_env(), np.random.default_rng(1).normal(0, 9, (20, 3)).astype(np.float32)
    actions = run.policy(obs)
    assert all(map(env.action_space.contains, actions))
    assert {*np.unique(actions)} > {env.action_space.low.min(), env.action_space.high.max()}
    env.reset(seed=1)
    env.step(run.policy(obs[0]))
    onnxruntime = pytest.importorskip("onnxruntime")
    file = onnxruntime.InferenceSession(run.export(batch=20))
    found = file.run(None, {file.get_inputs()[0].name: obs})[0]
    assert all(map(env.action_space.contains, found))
    np.testing.assert_allclose(found, actions, atol=1e-3)


PLACES = """
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete

class Places(gymnasium.Env):
    observation_space = Dict(room=Discrete(3), speed=Box(-9, 9, (2,)))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}

class Renamed(Places):
    observation_space = Dict(room=Box(-9, 9, (2,)), speed=Discrete(3))
"""


def test_a_policy_takes_what_its_environment_gives(tmp_path):
    (tmp_path / "places.py").write_text(PLACES)
    run = load(trained(tmp_path / "run", "a2c", f"{tmp_path}/places.py:Places").path)
    space = run.make_env().unwrapped.observation_space
    space.seed(1)
    rows = [space.sample() for _ in range(20)]
    flat = np.stack([gymnasium.spaces.flatten(space, row) for row in rows])
    batch = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    np.testing.assert_array_equal(run.policy(batch), run.policy(flat))
    assert run.policy(rows[0]).shape == ()
    with pytest.raises(MsrlError, match="lacks 'room'.*or an array of shape"):
        run.policy({"speed": batch["speed"]})
    with pytest.raises(MsrlError, match=r"Renamed observes Dict\(room: Box.* another order"):
        run.evaluate(1, env=f"{tmp_path}/places.py:Renamed")
    with pytest.raises(MsrlError, match="layout of observations is Dict.*room: Disc"):
        train(resume=run, env=f"{tmp_path}/places.py:Renamed", total_steps=99, quiet=True)
