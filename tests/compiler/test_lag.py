"""Actors that run ahead of the learner: equal to a plain loop with parameters as old."""

import dataclasses

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime.checkpoint import lagged, list_checkpoints, load
from tests.compiler import inproc
from tests.compiler.programs import analyse_with
from tests.compiler.test_programs import SCATTERED
from tests.multiprocess import theorem
from tests.tiers import quick

COARSE = "SingleLearnerCoarse"
A2C = {"num_envs": 3, "num_steps": 4}
PPO = {**A2C, "num_minibatches": 2, "update_epochs": 2, "hidden": (8,)}
CASES = [
    ("ppo", COARSE, 2, 1, {**PPO, "normalise_obs": True}),
    ("impala", COARSE, 2, 2, A2C),
    ("ppo", SCATTERED, 1, 2, PPO),
    ("ppo", COARSE, 1, 2, PPO),
    ("a2c", str(inproc.PROGRAMS / "crossed.py"), 1, 1, A2C),
    ("dqn", COARSE, 2, 1, {"num_envs": 2, "num_steps": 4, "n_step": 2, "learning_starts": 8}),
]


def request(algorithm, policy, workers, lag, iterations=3, **config):
    job = inproc.request(registry.find_algorithm(algorithm), policy, workers, **config)
    policy = dataclasses.replace(job.policy, schedule=Schedule(lag=lag))
    return dataclasses.replace(job, policy=policy, num_iterations=iterations)


@pytest.mark.parametrize(
    ("algorithm", "policy", "workers", "lag", "config"),
    quick(CASES),
    ids=lambda part: getattr(part, "name", None),
)
def test_equals_a_reference_with_the_same_lag(algorithm, policy, workers, lag, config, tmp_path):
    job = request(algorithm, policy, workers, lag, **config)
    reference = inproc.run_reference(job, tmp_path)
    assert inproc.run_and_compare(job, reference, tmp_path / "run") == []


def test_a_free_run_has_the_same_lag(tmp_path):
    """Nothing is loaded between iterations: parameters wait at the actors and under way."""
    job = request("ppo", COARSE, 2, 2, iterations=5, **PPO, learning_rate=0.05)
    reference = inproc.run_reference(job, tmp_path)
    plan, _ = prepare(job, tmp_path / "run")
    inproc._run(plan, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 5) == []
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    for prefix in ("parameters/", "lagged/"):
        assert theorem.compare_states(last, reference.checkpoints[-1], prefix) == []


def ended(folder, iterations, workers, lag, resume=""):
    """Runs to the end. Returns: the path and the arrays of the last checkpoint."""
    job = request("a2c", COARSE, workers, lag, iterations, **A2C, hidden=(8,), learning_rate=0.05)
    plan, _ = prepare(dataclasses.replace(job, record=(), resume=str(resume)), folder)
    inproc._run(plan, folder)
    last = list_checkpoints(folder / "checkpoints")[-1]
    return last, load(last)[0]


def test_resumes_bit_equal(tmp_path):
    _, whole = ended(tmp_path / "whole", 5, 2, lag=2)
    part, _ = ended(tmp_path / "part", 3, 2, lag=2)
    _, found = ended(tmp_path / "rest", 5, 2, lag=2, resume=part)
    assert {"lagged/1", "lagged/2"} <= {name.rpartition("/")[0] for name in whole}
    assert whole.keys() == found.keys()
    assert [name for name in whole if not np.array_equal(whole[name], found[name])] == []


def test_a_checkpoint_without_a_lag_has_the_newest_parameters_for_older_ones(tmp_path):
    part, before = ended(tmp_path / "part", 1, 2, lag=0)
    assert not any(name.startswith("lagged") for name in before)
    _, after = ended(tmp_path / "rest", 2, 1, lag=2, resume=part)
    names = [n.removeprefix("lagged/1/") for n in after if n.startswith("lagged/1/")]
    assert names
    for name in names:
        assert not np.array_equal(after[f"parameters/{name}"], before[f"parameters/{name}"])
        for age in (1, 2):
            assert np.array_equal(after[lagged(age, name)], before[f"parameters/{name}"])


@pytest.mark.parametrize(
    ("algorithm", "policy", "reason"),
    [
        ("ppo", "MultipleLearners", "actor+learner acts and gets no parameters from another"),
        ("ppo", "SingleLearnerFine", "learner acts and gets no parameters from another"),
        ("ppo", "Central", "worker uses its parameters for more than msrl.agent_act"),
    ],
)
def test_what_cannot_run_ahead_is_refused(algorithm, policy, reason, capsys):
    assert cli.main(["graph", algorithm, "--policy", policy, "--schedule", "lag=1"]) == 2
    assert f"policy {policy} cannot run {algorithm} with lag=1: {reason}" in capsys.readouterr().err


LEARNS = "            msrl.report(msrl.agent_learn(batch))"
LOSS = (
    '            level = msrl.boundary("transition", msrl.agent_learn(batch)["loss"].reshape((1,)))'
)


@pytest.mark.parametrize(
    ("remove", "reason"),
    [
        (
            [(LEARNS, f"{LEARNS}\n            obs = msrl.env_step(msrl.agent_act(obs))[0]")],
            "an iteration acts after it has learnt",
        ),
        (
            [
                (
                    "        for _ in msrl.it",
                    "        level = ops.zeros((1,))\n        for _ in msrl.it",
                ),
                ("agent_act(obs)", "agent_act(obs + level)"),
                (LEARNS, LOSS),
            ],
            "actor waits for transition from learner in every iteration",
        ),
        (
            [("obs = next_obs\n", "obs = next_obs + self.actor.net.value(next_obs)[:, None]\n")],
            "actor uses its parameters for more than msrl.agent_act",
        ),
    ],
)
def test_programs_that_cannot_run_ahead_are_refused(remove, reason, tmp_path):
    policy = registry.load_policy(registry.find_policy(COARSE))
    policy = dataclasses.replace(policy, schedule=Schedule(lag=1))
    with pytest.raises(PolicyError, match=reason):
        analyse_with(tmp_path, policy, remove=remove)
