"""Loops in chunks: the reference's numbers, the documented order, and refusals with reasons."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.runtime.rank.messenger import Messenger
from mindspore_rl.runtime.rank.pipelined_loop import in_turn, run_parts
from tests.compiler import inproc
from tests.compiler.test_programs import SCATTERED
from tests.tiers import quick

CASES = [
    # algorithm, policy, workers, chunks, environment: 8 of it, shares 3, 3, 2 on three workers
    ("ppo", "SingleLearnerFine", 3, 2, "CartPole-v1"),
    ("ppo", "SingleLearnerFine", 2, 3, "Pendulum-v1"),
    ("ppo", "Environments", 2, 2, "CartPole-v1"),
    ("two_rollouts", SCATTERED, 1, 2, "CartPole-v1"),
    ("recurrent", "SingleLearnerFine", 1, 2, "CartPole-v1"),
]
ACTORS = replace(
    SCATTERED, fragments=(replace(SCATTERED.fragments[0], replicas=1), *SCATTERED.fragments[1:])
)
"""Several replicas that act, and one with the environments."""


def _job(name, policy, workers, chunks, environment, act_for=0, **config):
    own = inproc.PROGRAMS / f"{name}.py"
    file = own if own.exists() else registry.find_algorithm(name)
    if name == "ppo":
        config = {"num_steps": 16, "update_epochs": 2, **config}
    schedule = {"chunks": chunks, "act_for": act_for}
    return inproc.request(file, policy, workers, schedule, env=environment, **config)


@pytest.mark.parametrize(
    "case",
    quick([(case,) for case in CASES], 4),
    ids=lambda c: f"{c[0]}-{getattr(c[1], 'name', c[1])}-{c[3]}",
)
def test_equals_the_reference(case, tmp_path):
    job = _job(*case)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "workers", "act_for", "environment"),
    quick(
        [
            ("recurrent", 3, 1, "CartPole-v1"),
            ("recurrent", 3, 2, "CartPole-v1"),  # parts of 6 and of 2 environments
            ("ppo", 3, 2, "CartPole-v1"),
            ("dqn", 2, 1, "CartPole-v1"),
            ("ppo", 2, 1, "graph:CartPole-v1"),
        ],
        1,
    ),
)
def test_acting_for_whoever_is_ready_changes_no_value(
    name, workers, act_for, environment, tmp_path, monkeypatch
):
    draw, first, orders = random.Random(4), Messenger.first_of, set()

    def first_of(self, expected, stage):
        order = draw.sample(range(len(expected)), len(expected))
        found = order[first(self, [expected[i] for i in order], stage)]
        orders.add((len(expected), found))
        return found

    monkeypatch.setattr(Messenger, "first_of", first_of)
    config = {"learning_starts": 0, "updates": 2} if name == "dqn" else {}
    job = _job(name, "SingleLearnerFine", workers, 1, environment, act_for, **config)
    assert inproc.differences(job, tmp_path) == []
    assert len(orders) > 2, "parts were ready in different orders"


def test_what_a_chunk_waits_for_was_asked_before_the_others_went_on():
    """Chunk 1 acts between the request of chunk 0 and the wait for its answer."""
    events = []

    def loop(chunk, rows):
        for turn in range(2):
            events.append(f"act {chunk}.{turn}")
            yield
            events.append(f"receive {chunk}.{turn}")
        return (rows * 10,)

    rows = [slice(1, None, 2), slice(0, None, 2)]
    (joined,) = run_parts(loop, [0, 1], rows, ((np.arange(5), 0),), (0,), in_turn)
    assert joined.tolist() == [0, 10, 20, 30, 40]
    assert events == [
        *("act 0.0", "act 1.0"),
        *("receive 0.0", "act 0.1", "receive 1.0", "act 1.1"),
        *("receive 0.1", "receive 1.1"),
    ]


@pytest.mark.parametrize(
    ("case", "reason"),
    quick(
        [
            (("ppo", "SingleLearnerCoarse", 2, 1, "CartPole-v1", 1), "take SingleLearnerFine"),
            (("ppo", "SingleLearnerFine", 2, 1, "CartPole-v1", 3), "2 replicas of environment"),
            (("ppo", ACTORS, 2, 1, "CartPole-v1", 1), "here 3 of a act"),
            (("ppo", "SingleLearnerFine", 2, 2, "CartPole-v1", 1), "leave one of them out"),
            (
                ("ppo", "SingleLearnerCoarse", 2, 2, "CartPole-v1"),
                "wait for each other in no inner loop",
            ),
            (("ppo", "Central", 2, 2, "CartPole-v1"), "takes all environments together"),
            (
                ("ppo", "SingleLearnerFine", 3, 3, "CartPole-v1"),
                "environment has 2 environments, expec",
            ),
            (
                ("ppo", "SingleLearnerFine", 2, 2, "graph:CartPole-v1"),
                "an environment in the graph",
            ),
        ],
        *range(7),
    ),
)
def test_refused(case, reason, tmp_path):
    with pytest.raises(PolicyError, match=reason):
        prepare(_job(*case), tmp_path)
