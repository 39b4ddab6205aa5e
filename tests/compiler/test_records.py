"""NamedTuples in programs: which uses are read, and which are refused."""

import pytest

from mindspore_rl.errors import ProgramError
from tests.compiler import inproc
from tests.compiler.programs import analyse_with

TRIPLE = (
    "class Learn(BaseLearner):",
    "from typing import Any, NamedTuple\n"
    "class Pair(NamedTuple):\n    first: Any\n    second: Any = 1.0\n"
    "class Learn(BaseLearner):",
)
REFUSED = {
    "field": ("target = Pair(reward).third", "`third` of a Pair", "its fields are first, second"),
    "missing": ("target = Pair(second=reward).first", "a Pair without 'first'", "first, second"),
    "unknown": ("pair = Pair(reward, thrid=2.0)", "a Pair with 'thrid'", "first, second"),
    "twice": ("pair = Pair(reward, first=2.0)", "a Pair with 'first' twice", "first, second"),
    "too many": ("pair = Pair(reward, 1, 2)", "a Pair with 3 values", "supported"),
    "operand": (
        "pair = Pair(reward)\ntarget = self.net(pair)",
        "a Pair as an operand",
        "pass its fields",
    ),
    "assignment": ("pair = Pair(reward)\npair.first = target", "an attribute", "local variable"),
    "carried": (
        "pair = Pair(reward)\nfor i in range(2):\n    pair = (pair[0], target)",
        "`pair`, which changes its structure",
        "keep their shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tmp_path):
    lines, construct, hint = REFUSED[case]
    if case in ("field", "missing"):
        lines = lines.replace("target = ", "pair = ").replace(").", ")\ntarget = pair.")
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, learn=lines, remove=[TRIPLE])
    assert construct in str(caught.value)
    assert hint in str(caught.value)
    assert lines.splitlines()[-1].strip() in str(caught.value) or case in ("missing", "carried")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("class Odd(Pair):\n    pass\n", "the base class Pair"),
        (
            "class Odd(NamedTuple):\n    first: Any\n"
            "    def __iter__(self):\n        yield 2.0 * self[0]\n",
            "the method __iter__",
        ),
    ],
)
def test_a_record_that_is_more_than_its_fields_is_refused(kind, what, tmp_path):
    place, text = TRIPLE
    more = (place, text.replace(place, kind + place))
    with pytest.raises(ProgramError, match=f"a Odd with {what}"):
        analyse_with(tmp_path, learn="pair = Odd(reward)\ntarget, *_ = pair", remove=[more])


def test_another_record_than_elsewhere_is_refused(tmp_path):
    insert = 'msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))'
    both = "msrl.replay_insert(Pair(obs, reward))\n                msrl.replay_insert(obs, reward)"
    with pytest.raises(ProgramError, match="another record than elsewhere"):
        analyse_with(tmp_path, remove=[TRIPLE, (insert, both)])


def test_a_program_of_records_is_its_plain_loop(tmp_path):
    job = inproc.request(inproc.PROGRAMS / "records.py", "Central", 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []
