"""Learning: probe environments with a known optimum, then CartPole under every policy."""

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from mindspore_rl import load, programs
from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.environments.registry import make_vector, spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.rl.parameters import set_parameter
from mindspore_rl.runtime import checkpoint
from mindspore_rl.trained.evaluate import evaluate
from mindspore_rl.trained.export import export
from tests import commands
from tests.datasets.files import played

pytestmark = [pytest.mark.learning]
AHEAD = "--policy SingleLearnerCoarse --schedule order=asynchronous"


def msrl(folder: Path, *arguments: str) -> str:
    """Runs a command. Returns: its output."""
    done = commands.msrl(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(run_dir: Path, *arguments: str) -> str:
    """Trains to the end. Returns: the line with the outcome."""
    place = ("--run-dir", str(run_dir), "--quiet")
    return msrl(run_dir.parent, "train", *arguments, *place).splitlines()[0]


def score(run_dir: Path, episodes: int, env: str | None = None) -> float:
    """Returns the mean return of greedy actions."""
    return float(np.mean(evaluate(run_dir, episodes, seed=7, sample=False, env=env)))


def median(folder: Path, episodes: int, *arguments: str) -> float:
    """Trains with three seeds. Returns: the second best of their scores."""
    found = []
    for seed in ("1", "2", "3"):
        train(folder / seed, *arguments, "--seed", seed)
        found.append(score(folder / seed, episodes))
    print(found)  # shown if the test fails
    return float(np.median(found))


def critic(run_dir: Path, obs: np.ndarray) -> np.ndarray:
    """Returns the values of observations `[n, ...]` from a run's last checkpoint."""
    plan = load_plan(run_dir)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    trainer = programs.load_trainer(plan.algorithm, plan.config, spec(plan.environment))
    arrays, _ = checkpoint.load(checkpoint.load_newest(run_dir / "checkpoints")[0])
    for name, parameter in trainer.actor.parameters_and_names():
        set_parameter(parameter, arrays[f"parameters/actor.{name}"])
    given = ms.Tensor(obs[None])
    return trainer.actor.network.values(given, given)[0].asnumpy()[0]


QUICK = (
    "num_steps=16", "gamma=0.9", "learning_rate=0.005", "--stop-return", "nan", "--total-steps",
    "40000", "--policy", "MultipleLearners",
)  # fmt: skip


@pytest.mark.slow
def test_bandit_is_solved(tmp_path, cells):
    train(tmp_path / "run", "ppo", "--cells", cells, "--env", "probe:bandit", *QUICK)
    assert score(tmp_path / "run", 40) == 1.0
    with pytest.raises(MsrlError, match=r"CartPole-v1 has the obs_shape \(4,\).*another --env"):
        evaluate(tmp_path / "run", 1, seed=7, sample=False, env="CartPole-v1")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn", "qr_dqn", "discrete_sac"])
def test_the_best_of_the_valid_actions_is_found(tmp_path, algorithm):
    """Two of four actions are valid in each of three steps; an invalid one ends the run."""
    place = ("--env", "probe:choice", "--policy", "MultipleLearners", "--stop-return", "nan")
    train(tmp_path / "run", algorithm, *place, "gamma=0.9", "--total-steps", "20000")
    assert score(tmp_path / "run", 40) == 3.0
    file, _ = export(load(tmp_path / "run"))
    assert file.exists()


@pytest.mark.slow
def test_pixels_are_seen(tmp_path):
    """The side of a square on an image, mostly at places that it has not seen before."""
    place = ("--env", "probe:pixels", "--policy", "MultipleLearners", "--total-steps", "2560")
    network = ("torso=cnn", "hidden=32", "num_steps=16", "--stop-return", "nan")
    train(tmp_path / "run", "ppo", *place, *network)
    assert score(tmp_path / "run", 100) >= 0.95
    policy, env = load(tmp_path / "run").policy, make_vector("probe:pixels", range(50), 8)
    obs = env.reset()
    assert env.step(policy(obs))[2].mean() >= 0.9
    with pytest.raises(MsrlError, match="obs is float32, expected images .* of uint8"):
        policy(np.float32(obs / 255))
    data = tmp_path / "data"
    msrl(tmp_path, "dataset", "record", str(tmp_path / "run"), str(data), "--episodes", "20")
    with Dataset(data) as dataset:
        assert dataset.table.spec.columns[0].dtype == "uint8"


@pytest.mark.slow
@pytest.mark.parametrize("torso", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_what_was_seen_is_remembered(tmp_path, torso):
    """Over an episode of five steps, in segments of eight; without memory the mean return is 0."""
    memory = (f"torso={torso}", "segment_steps=8", "state_size=16", "num_minibatches=2")
    place = tmp_path / "run"
    train(place, "ppo", "--env", "probe:memory", *QUICK, *memory, "--total-steps", "20480")
    assert score(place, 40) == 1.0
    policy, env = load(place).policy, make_vector("probe:memory", range(50), 8)
    obs, reward, ended = env.reset(), 0.0, False
    for step in range(15):
        obs, _, reward, ended, _ = env.step(policy(obs, reward=reward, ended=ended))
        assert (reward == (step % 5 == 4)).all()
    with pytest.raises(MsrlError, match="depends on more than the observation"):
        export(load(place))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected", "atol"),
    [("probe:truncated", 10.0, 0.7), ("probe:constant", 1.0, 0.1)],
)
def test_truncation_is_bootstrapped_and_termination_is_not(
    tmp_path, cells, environment, expected, atol
):
    """Reward 1 a step: truncated after 10 steps, the value is 1 / (1 - gamma); after one, it is 1.

    The environments are never terminated, and terminated at once.
    """
    train(tmp_path / "run", "ppo", "--cells", cells, "--env", environment, *QUICK)
    value = critic(tmp_path / "run", np.ones((4, *spec(environment).obs_shape), np.float32))
    assert np.allclose(value, expected, atol=atol), value


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        ("ppo", "SingleLearnerCoarse"),
        ("ppo", "MultipleLearners"),
        ("ppo", "GPUOnly"),
        ("ppo", "SingleLearnerCoarse --schedule lag=1"),
        ("impala", "SingleLearnerCoarse --schedule lag=1"),
        ("a2c", "GPUOnly"),
        ("--config=a3c", "Central"),
        ("--config=impala", "SingleLearnerCoarse"),
        ("dqn", "SingleLearnerCoarse"),
        ("dqn", "MultipleLearners"),
        ("dqn", "GPUOnly"),
        ("dqn", "Environments"),
        ("qr_dqn", "MultipleLearners"),
        ("discrete_sac", "MultipleLearners"),
        ("muzero", "SingleLearnerCoarse"),
        ("--config=rainbow", "SingleLearnerCoarse"),
        ("--config=munchausen", "SingleLearnerCoarse"),
        ("--config=iqn", "SingleLearnerCoarse"),
    ],
)
def test_cartpole_reaches_475(tmp_path, cells, algorithm, policy):
    """Two of three seeds: sometimes one forgets its policy."""
    place = ("--cells", cells, "--policy", *policy.split(), "--workers", "2")
    place = (*place, "--env", "CartPole-v1")
    means = []
    for seed in ("1", "2", "3"):
        line = train(tmp_path / seed, algorithm, *place, "--seed", seed, "--total-steps", "500000")
        means.append(float(re.search(r"mean return ([\d.]+)", line)[1]))
    assert np.median(means) >= 475.0, means


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_alphazero_is_not_beaten_at_tic_tac_toe(tmp_path):
    """Against an opponent that looks two moves ahead."""
    train(tmp_path / "run", "alphazero", "--policy", "GPUOnly", "--stop-return", "nan")
    game = "graph:TicTacToe-v0,opponent=two_ply"
    returns = evaluate(tmp_path / "run", 200, seed=7, sample=False, env=game)
    assert min(returns) == 0.0
    assert score(tmp_path / "run", 200, game) >= 0.2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("order", ["asynchronous", "synchronous"])
def test_ape_x_reaches_475(tmp_path, order):
    """Two of three seeds, by greedy actions: in training its environments never stop exploring."""
    place = ("--schedule", f"order={order}", "--workers", "2", "--stop-return", "nan")
    assert median(tmp_path, 20, "--config=apex", *place) >= 475.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_r2d2_remembers_what_dqn_forgets(tmp_path):
    """Two of three seeds; without memory the best mean return is 0."""
    assert median(tmp_path, 100, "--config=r2d2_memory") >= 0.95
    train(tmp_path / "dqn", "dqn", "--env", "probe:memory", "--total-steps", "20000")
    assert score(tmp_path / "dqn", 100) <= 0.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hindsight_flips_bits_that_dqn_cannot(tmp_path):
    """15 bits (figure 1 of Andrychowicz et al. 2017): -15 is the lowest return, -6.5 the best."""
    train(tmp_path / "hindsight", "--config=her_bits")
    assert score(tmp_path / "hindsight", 100) >= -9.0
    train(tmp_path / "without", "--config=her_bits", "her=0")
    assert score(tmp_path / "without", 100) <= -14.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "words", ["sac", "td3", "--config=tqc", "--config=ddpg", f"sac --workers 2 {AHEAD}"]
)
def test_a_pendulum_is_swung_up(tmp_path, words):
    """Within 20,000 steps, two of three seeds."""
    assert median(tmp_path, 100, *words.split(), "--stop-return", "nan") >= -200.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mappo_spreads_out(tmp_path, cells, seed):
    """In PettingZoo's own environment, where random actions get -25.7.

    algorithms/mappo.md has the result of an established implementation.
    """
    place = ("--cells", cells, "--policy", "GPUOnly")
    train(tmp_path / "run", "mappo", *place, "--seed", str(seed))
    assert score(tmp_path / "run", 300, "pettingzoo:mpe2.simple_spread_v3") >= -14.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_vdn_spreads_out(tmp_path):
    """As above, in a third of the steps."""
    train(tmp_path / "run", "vdn", "--policy", "GPUOnly", "--seed", "1", "--stop-return", "nan")
    assert score(tmp_path / "run", 300, "pettingzoo:mpe2.simple_spread_v3") >= -18.5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_decision_transformer_gets_what_it_is_asked_for(tmp_path):
    """As much as the best of its data, most of which is poor; more than behaviour cloning."""
    data = tmp_path / "data"
    for steps in (1000, 4000, 20_000, 60_000):
        stop = ("--stop-return", "nan", "--total-steps", str(steps))
        train(tmp_path / f"{steps}", "ppo", *stop)
        record = (f"{steps}", "data", "--episodes", "100", *["--append"] * data.exists())
        msrl(tmp_path, "dataset", "record", *record)
    with Dataset(data) as dataset:
        returns = np.sort(dataset.returns())
    with Dataset(played(tmp_path / "random", "CartPole-v1", 100, 500)) as dataset:
        random = dataset.returns().mean()
    best = returns[-(len(returns) // 10) :].mean()
    assert returns.mean() - random <= 0.5 * (best - random)

    place = ("--policy", "MultipleLearners", "--workers", "2", "dataset=data")
    train(tmp_path / "transformer", "decision_transformer", *place)
    train(tmp_path / "cloning", "decision_transformer", *place, "condition=false")

    def mean(run: str, target: float) -> float:
        given = (f"target_return={target}",)
        return np.mean(evaluate(tmp_path / run, 100, 7, False, assignments=given))

    found, cloned = mean("transformer", 500.0), mean("cloning", 500.0)
    assert found - random >= 0.95 * (best - random)
    assert found > cloned
    assert mean("transformer", 250.0) == pytest.approx(250.0, rel=0.2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_good_actions_of_poor_data_are_found(tmp_path):
    """On Pendulum: 200 episodes of random actions and 30 of a good policy, which BC averages."""
    data = tmp_path / "data"
    for steps, episodes in {400: 200, 20_000: 30}.items():
        train(tmp_path / f"{steps}", "sac", "--total-steps", str(steps), "--stop-return", "nan")
        record = (f"{steps}", "data", "--episodes", str(episodes), *["--append"] * data.exists())
        msrl(tmp_path, "dataset", "record", *record)

    def mean(name: str, algorithm: str) -> float:
        train(tmp_path / name, algorithm, "--env", "Pendulum-v1", "dataset=data")
        return score(tmp_path / name, 100)

    assert mean("cloned", "bc") <= -700.0
    found = [mean(name, name) for name in ("iql", "cql")]
    assert min(*found, mean("td3_bc", "--config=td3_bc")) >= -400.0
