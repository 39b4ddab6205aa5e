"""Kept records in programs: valid requests, and refused ones with their messages."""

import dataclasses

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Schedule
from tests.compiler.programs import analyse_with
from tests.tiers import quick

INSERT = 'msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))'
SAMPLE = "msrl.replay_sample()"


def kept(folder, insert, sample, **more):
    """Returns the template's program with another insertion and another sample."""
    insert = INSERT[:-1] + insert + ")"
    return analyse_with(folder, remove=((INSERT, insert), (SAMPLE, sample)), **more)


def test_a_batch_has_as_many_records_of_each_environment(tmp_path):
    cut = kept(tmp_path, ", keep=1000", "msrl.replay_sample(24)")
    draw = next(op for op in cut.program.body[-1].body if getattr(op, "kind", "") == "replay_draw")
    value = cut.program.values[draw.targets[0]]
    assert (value.shape, value.axis, value.per_env) == ((24, 4), 0, 3)
    assert draw.attr["capacity"] == 125


@pytest.mark.parametrize("count", quick([7, 20], 0))
def test_a_batch_of_another_size_is_alike_on_all_ranks(count, tmp_path):
    cut = kept(tmp_path, ", keep=1000", f"msrl.replay_sample({count})")
    draw = next(op for op in cut.program.body[-1].body if getattr(op, "kind", "") == "replay_draw")
    value = cut.program.values[draw.targets[0]]
    assert (value.shape, value.axis) == ((count, 4), None)


def test_windows_have_their_steps_behind_the_batch(tmp_path):
    first = "obs, action, target = obs[:, 0], action[:, 0], reward[:, 0]"
    cut = kept(tmp_path, ", keep=1000", "msrl.replay_sample(24, steps=3)", learn=first)
    draw = next(op for op in cut.program.body[-1].body if getattr(op, "kind", "") == "replay_draw")
    value = cut.program.values[draw.targets[0]]
    assert (value.shape, value.axis, value.per_env) == ((24, 3, 4), 0, 3)


@pytest.mark.parametrize(
    ("insert", "sample", "told"),
    [
        (
            ", keep=1000",
            'msrl.replay_sample(20, "priority")',
            r"20 records with 8 (.|\n)* such as 16",
        ),
        (
            ", keep=1000",
            'msrl.replay_sample(7, "priority")',
            r"a sample of 7 records(.|\n)*at least 8, one each",
        ),
        (", keep=7", "msrl.replay_sample(16)", "keep of 7 records"),
        (", keep=obs", "msrl.replay_sample(16)", "only known at run time"),
        (", keep=1000", "msrl.replay_sample()", "say how many"),
        (", keep=31", "msrl.replay_sample(16)", "inserts 4 records .* room for 3"),
        (", stay=1000", "msrl.replay_sample(16)", "argument 'stay'"),
        ("", "msrl.replay_sample(16)", "not kept(.|\n)*keep=100_000"),
        (
            ", keep=1000",
            "msrl.replay_sample(16, 2)",
            'a sample by 2(.|\n)*"uniform", "distinct", "priority"',
        ),
        (", keep=1000", 'msrl.replay_sample(48, "distinct")', "6 records an .* there are 4"),
        (", keep=1000", 'msrl.replay_sample(16, "distinct", steps=4)', "2 records .* there are 1"),
        (", keep=1000", "msrl.replay_sample(16, steps=-1)", "windows of -1 steps"),
        (", keep=1000", "msrl.replay_sample(16, stride=2)", "argument 'stride'"),
        (", keep=1000", "msrl.replay_sample(16, steps=5)", "windows of 5 records where 4 of each"),
        (
            ", keep=1000); msrl.replay_insert(obs, action, reward, keep=800",
            "msrl.replay_sample(16)",
            "another `keep`",
        ),
        (
            ", keep=1000",
            "msrl.replay_sample(16))\n            if msrl.env_steps() > 9:\n"
            '                more = (msrl.replay_sample(16, "priority")',
            "a sample by priority under a condition",
        ),
        (', into="model"', "msrl.replay_sample()", r'"model" that keeps nothing(.|\n)*sample\(\)'),
        (', keep=1000, into="a b"', "msrl.replay_sample(16)", "a replay with the name 'a b'"),
        (', keep=1000, into="model"', "msrl.replay_sample(16)", r'not kept(.|\n)*of="model"'),
        (
            ", keep=1000",
            'msrl.replay_sample(16, of="model")',
            r'not kept as "model"(.|\n)*into="model"',
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_line(tmp_path, insert, sample, told):
    with pytest.raises(MsrlError, match=rf"program_\w+.py:\d+(.|\n)*{told}"):
        kept(tmp_path, insert, sample)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("msrl.uniform(16)", "with 1 arguments, expected 2"),
        ("msrl.uniform(0, 2)", "a batch of 0 records(.|\\n)*at least 8"),
        ("msrl.uniform(16, 0)", "at least 1"),
        ("msrl.replay_update(action, reward)", "by which nothing is drawn"),
        ('msrl.replay_update(action, reward, of="model")', r'"priority", of="model"\)'),
    ],
)
def test_numbers_for_a_batch_are_looked_at(tmp_path, call, told):
    with pytest.raises(MsrlError, match=rf"program_\w+.py:\d+(.|\n)*{told}"):
        analyse_with(tmp_path, learn=f"target = reward; unused = {call}")


def test_an_asynchronous_learner_fills_one_replay(tmp_path):
    policy = registry.load_policy(registry.find_policy("SingleLearnerCoarse"))
    policy = dataclasses.replace(policy, schedule=Schedule("asynchronous"))
    both = ', keep=1000); msrl.replay_insert(obs, action, keep=800, into="other"'
    with pytest.raises(MsrlError, match=r"into one kept replay(.|\n)*py:\d+(.|\n)*py:\d+"):
        kept(tmp_path, both, "msrl.replay_sample(16)", policy=policy, workers=4)


@pytest.mark.parametrize(
    ("policy", "gather", "sample", "told"),
    [
        ("Central", 1, 'msrl.replay_sample(16, "uniform")', "draw together from the records"),
        ("SingleLearnerCoarse", 2, "msrl.replay_sample(16)", "how many updates a record is worth"),
    ],
)
def test_asynchronous_schedules_that_would_change_the_draws(tmp_path, policy, gather, sample, told):
    policy = registry.load_policy(registry.find_policy(policy))
    policy = dataclasses.replace(policy, schedule=Schedule("asynchronous", gather=gather))
    with pytest.raises(MsrlError, match=told):
        kept(tmp_path, ", keep=1000", sample, policy=policy, workers=4)
