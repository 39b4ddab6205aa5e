"""Actors that run ahead of the learner: equal to a plain loop with parameters as old."""

import dataclasses

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime.checkpoint import lagged, load
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, program_with
from tests.multiprocess import theorem
from tests.tiers import quick

COARSE, FINE = "SingleLearnerCoarse", "SingleLearnerFine"
A2C = {"num_envs": 3, "num_steps": 4, "hidden": (8,)}
PPO = {**A2C, "num_minibatches": 2, "update_epochs": 2}
SPREAD = "pettingzoo:mpe2.simple_spread_v3"
IN_GRAPH = {"env": "graph:CartPole-v1"}


def request(algorithm, policy, workers, lag, iterations=3, **config):
    file = registry.find_algorithm(algorithm)
    job = inproc.request(file, policy, workers, {"lag": lag}, **config)
    return dataclasses.replace(job, num_iterations=iterations)


@pytest.mark.parametrize(
    ("algorithm", "policy", "workers", "config"),
    quick(
        [
            ("a2c", COARSE, 2, {**A2C, "env": "envpool:CartPole-v1"}),
            ("mappo", COARSE, 2, {**PPO, "update_epochs": 1, "env": SPREAD}),
            ("a2c", FINE, 1, A2C),
            ("ppo", COARSE, 2, PPO),
            ("a2c", "Central", 2, A2C),
            ("a2c", "GPUOnly", 1, {**A2C, **IN_GRAPH}),
        ],
        0,
    ),
)
def test_a_free_run_has_the_same_lag(algorithm, policy, workers, config, tmp_path):
    """Nothing is loaded between iterations: older parameters are those of the run itself."""
    job = request(algorithm, policy, workers, 2, iterations=5, **config, learning_rate=0.05)
    reference = inproc.run_reference(job, tmp_path)
    free_run(job, reference, tmp_path / "run")


def free_run(job, reference, folder):
    _, last = inproc.run(job, folder)
    assert theorem.compare(folder, reference, job.num_iterations) == []
    for prefix in ("parameters/", "lagged/"):
        assert theorem.compare_states(last, reference.checkpoints[-1], prefix) == []


def ended(folder, iterations, workers, lag, resume="", policy=COARSE):
    """Runs to the end. Returns: the path and the arrays of the last checkpoint."""
    job = request("a2c", policy, workers, lag, iterations, **A2C, learning_rate=0.05)
    _, last = inproc.run(dataclasses.replace(job, record=(), resume=str(resume)), folder)
    return last, load(last)[0]


@pytest.mark.parametrize("policy", quick([FINE, COARSE], 0))
def test_resumes_bit_equal(policy, tmp_path):
    _, whole = ended(tmp_path / "whole", 5, 2, 2, "", policy)
    part, _ = ended(tmp_path / "part", 3, 2, 2, "", policy)
    _, found = ended(tmp_path / "rest", 5, 2, 2, part, policy)
    assert {"lagged/1", "lagged/2"} <= {name.rpartition("/")[0] for name in whole}
    assert whole.keys() == found.keys()
    assert [name for name in whole if not np.array_equal(whole[name], found[name])] == []


@pytest.mark.parametrize(("before", "after"), quick([(COARSE, FINE), (FINE, COARSE)], 0))
def test_resumes_where_older_parameters_are_kept_otherwise(before, after, tmp_path):
    """They wait in messages under one policy, and the fragment keeps them under the other."""
    whole, _ = ended(tmp_path / "whole", 5, 2, 2, "", before)
    part, _ = ended(tmp_path / "part", 3, 2, 2, "", before)
    rest, _ = ended(tmp_path / "rest", 5, 2, 2, part, after)
    for prefix in ("parameters/", "lagged/"):
        assert theorem.compare_states(rest, whole, prefix) == []


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


def test_a_program_that_uses_parameters_for_more_than_acting_keeps_older_ones(tmp_path):
    more = "obs = next_obs + self.actor.net.value(next_obs)[:, None]\n"
    file = program_with(tmp_path, [("obs = next_obs\n", more)])
    config = {"num_envs": 2, "num_steps": 3, "learning_rate": 0.05}
    job = inproc.request(file, COARSE, 2, {"lag": 1}, **config)
    job = dataclasses.replace(job, num_iterations=3)
    reference = inproc.run_reference(job, tmp_path)
    free_run(job, reference, tmp_path / "run")


@pytest.mark.parametrize(
    ("policy", "how"),
    [
        (COARSE, "while the learner learns"),
        ("MultipleLearners", "of which actor+learner keeps a copy"),
    ],
)
def test_the_graph_says_who_has_older_parameters(policy, how, capsys):
    assert cli.main(["graph", "a2c", "--policy", policy, "--schedule", "lag=1"]) == 0
    told = "actors of iteration i act with the parameters after iteration i - 2, "
    assert f"lag=1: {told}{how}\n" in capsys.readouterr().out


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
            [("msrl.agent_act(obs)", 'ops.zeros_like(obs[:, 0]).astype("int32")')],
            "it never calls msrl.agent_act",
        ),
    ],
)
def test_programs_that_cannot_run_ahead_are_refused(remove, reason, tmp_path):
    policy = registry.load_policy(registry.find_policy(COARSE))
    policy = dataclasses.replace(policy, schedule=Schedule(lag=1))
    with pytest.raises(PolicyError, match=reason):
        analyse_with(tmp_path, policy, remove=remove)
