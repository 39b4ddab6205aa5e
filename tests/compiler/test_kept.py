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


@pytest.mark.parametrize("count", quick([7, 20], 0))
def test_a_batch_of_another_size_is_alike_on_all_ranks(count, tmp_path):
    cut = kept(tmp_path, ", keep=1000", f"msrl.replay_sample({count})")
    draw = next(op for op in cut.program.body[-1].body if getattr(op, "kind", "") == "replay_draw")
    value = cut.program.values[draw.targets[0]]
    assert (value.shape, value.axis) == ((count, 4), None)


REFUSED = {
    'msrl.replay_sample(20, "priority")': r"20 records with 8 (.|\n)* such as 16",
    'msrl.replay_sample(7, "priority")': r"a sample of 7 records(.|\n)*at least 8, one each",
    "msrl.replay_sample()": "say how many",
    "msrl.replay_sample(16, 2)": 'a sample by 2(.|\n)*"uniform", "distinct", "priority"',
    'msrl.replay_sample(48, "distinct")': "6 records an .* there are 4",
    'msrl.replay_sample(16, "distinct", steps=4)': "2 records .* there are 1",
    "msrl.replay_sample(16, steps=-1)": "windows of -1 steps",
    "msrl.replay_sample(16, stride=2)": "argument 'stride'",
    "msrl.replay_sample(16, steps=5)": "windows of 5 records where 4 of each",
    'msrl.replay_sample(16, of="model")': r'not kept as "model"(.|\n)*into="model"',
}
REFUSED_INSERTIONS = {
    ", keep=7": "keep of 7 records",
    ", keep=obs": "only known at run time",
    ", keep=31": "inserts 4 records .* room for 3",
    ", stay=1000": "argument 'stay'",
    "": "not kept(.|\n)*keep=100_000",
    ", keep=1000); msrl.replay_insert(obs, action, reward, keep=800": "another `keep`",
    ', keep=1000, into="a b"': "a replay with the name 'a b'",
    ', keep=1000, into="model"': r'not kept(.|\n)*of="model"',
}
CASES = [(", keep=1000", sample, told) for sample, told in REFUSED.items()]
CASES += [(insert, "msrl.replay_sample(16)", told) for insert, told in REFUSED_INSERTIONS.items()]
CASES += [
    (', into="model"', "msrl.replay_sample()", r'"model" that keeps nothing(.|\n)*sample\(\)')
]


@pytest.mark.parametrize(("insert", "sample", "told"), CASES)
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


def test_a_sample_of_all_together_is_drawn_in_all_turns_or_in_none(tmp_path):
    learn = 'for k in range(2):\n    if k > 0:\n        more = msrl.replay_sample(16, "uniform")'
    with pytest.raises(MsrlError, match=r"py:\d+(.|\n)*in every turn, before the condition"):
        kept(tmp_path, ", keep=1000", "msrl.replay_sample(16)", learn=learn)


def asynchronous(name, **more):
    policy = registry.load_policy(registry.find_policy(name))
    return dataclasses.replace(policy, schedule=Schedule("asynchronous", **more))


def test_an_asynchronous_learner_fills_one_replay(tmp_path):
    policy = asynchronous("SingleLearnerCoarse")
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
    with pytest.raises(MsrlError, match=told):
        kept(tmp_path, ", keep=1000", sample, policy=asynchronous(policy, gather=gather), workers=4)
