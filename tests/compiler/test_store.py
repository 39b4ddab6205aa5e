"""A replay on ranks of its own is sent rows and priorities, never parameters."""

import dataclasses

import pytest

from mindspore_rl.errors import PolicyError
from mindspore_rl.policy import Cut, DistributionPolicy, FragmentRule, Schedule
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, program_with

STORE = DistributionPolicy(
    "Store",
    "actors, a sharded replay and a learner",
    (
        FragmentRule("actor", ("environment", "actor"), 2, "env"),
        FragmentRule("store", ("replay",), 2, "env"),
        FragmentRule("learner", ("gradient", "update")),
    ),
    (
        Cut("transition", "actor", "replay"),
        Cut("batch", "replay", "gradient"),
        Cut("priority", "gradient", "replay"),
        Cut("parameters", "update", "actor"),
    ),
)
PARTS = [
    ("(obs, action, reward)))", "(obs, action, reward)), keep=1000)"),
    ('"batch", msrl.replay_sample()', '"batch", msrl.replay_sample(16, "priority")'),
    ("obs, action, reward = batch", "obs, action, reward, ids, odds = batch"),
]


LAST = 'return {"loss": means[0]}'


def changed(priorities):
    """Replacements that make the template's program draw by priority, and set new ones."""
    return [*PARTS, (LAST, f"msrl.replay_update(ids, {priorities})\n        {LAST}")]


@pytest.mark.parametrize(
    ("priorities", "got"),
    [
        (
            "ops.abs(self.net.value(obs) - target)",
            {("transition", "actor"), ("priority", "learner")},
        ),
        ("ops.abs(reward) + 0.1", {("transition", "actor")}),
    ],
    ids=["of the network", "of the records"],
)
def test_a_replay_of_its_own_gets_no_parameters(priorities, got, tmp_path):
    cut = analyse_with(tmp_path, STORE, remove=changed(priorities))
    assert {(m.mark, m.source) for m in cut.messages if m.target == "store"} == got


LATE = """
if msrl.env_steps() >= 32:
    more, _, paid, ids, odds = msrl.replay_sample(16, "priority")
    msrl.replay_update(ids, ops.abs(self.net.value(more) - paid) + 0.1)
    target = target + 0.1 * paid * odds
"""


@pytest.mark.parametrize(("late", "lag"), [(False, 1), (True, 0)])
def test_its_priorities_are_those_of_the_plain_loop(late, lag, tmp_path):
    parts = changed("ops.abs(self.net.value(obs) - target)")
    if late:
        parts = [PARTS[0], ("msrl.replay_sample()", "msrl.replay_sample(16)")]
    file = program_with(tmp_path, parts, learn=LATE if late else "pass")
    job = inproc.request(file, STORE, 2, {"lag": lag}, num_steps=4)
    job = dataclasses.replace(job, num_iterations=2 + 2 * lag)
    assert inproc.differences(job, tmp_path) == []


def test_it_takes_no_rows_as_they_come(tmp_path):
    policy = dataclasses.replace(STORE, schedule=Schedule("asynchronous"))
    told = "are actor, store, learner: let one of them hold replay, gradient and update"
    with pytest.raises(PolicyError, match=told):
        analyse_with(tmp_path, policy, remove=changed("ops.abs(reward) + 0.1"))
