"""Results of `act` with names, and steps of a dataclass."""

import pytest

from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.by_place import named_result, with_tuples
from mindspore_rl.trained.acting import with_action
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, build_with
from tests.programs.named import Decision, Memory


def test_a_program_of_names_is_its_plain_loop(tmp_path):
    job = inproc.request(inproc.PROGRAMS / "named.py", "MultipleLearners", 2, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


def chosen(obs, *, scale=2.0):
    if scale > 1.0:
        return {
            "action": (obs + 1),  # a comment
            "memory": Memory((obs, obs)),
        }
    return dict_of(obs)


def dict_of(obs):
    return {"action": obs, "memory": Memory(count=1.0, hidden=(obs, obs))}


def differing(obs):
    return {"action": obs} if obs else Decision(obs, obs, obs)


def of_two_forms(obs):
    if obs:
        return {"action": obs}
    return {"chosen": obs}


def test_tuples_of_dictionaries_and_records():
    assert with_tuples(chosen)(1) == (2, ((1, 1), 0.0))
    assert with_tuples(dict_of)(3) == (3, ((3, 3), 1.0))
    assert with_tuples(differing)  # not read: its results stay as they are


def test_the_names_of_a_result_are_found():
    found = named_result(dict_of)
    assert found is not None
    assert found.form == (("action", ()), ("memory", (("hidden", ()), ("count", ()))))
    assert named_result(differing) is None
    with pytest.raises(ProgramError, match="results have other names"):
        named_result(of_two_forms)


def test_a_greedy_action_replaces_the_part_of_this_name():
    assert with_action({"value": 1, "action": 2}, 3) == {"value": 1, "action": 3}
    assert with_action({"chosen": 1, "value": 2}, 3) == {"chosen": 3, "value": 2}
    assert with_action(Decision(1, Memory(2), 4), 3) == Decision(3, Memory(2), 4)
    assert with_action((1, 2), 3) == (3, 2)
    assert with_action(1, 3) == 3


DATA = (
    "class Learn(BaseLearner):",
    "import dataclasses\nfrom typing import Any\n"
    "@dataclasses.dataclass(frozen=True)\nclass Pair:\n    first: Any\n    second: Any = 1.0\n"
    "class Learn(BaseLearner):",
)
REFUSED = {
    "unpacked": ("pair = Pair(reward)\ntarget, scale = pair", "2 names for"),
    "starred": ("pair = Pair(reward)\ntarget = max(*pair)", "`*` of something that is not a tuple"),
    "by its place": ("pair = Pair(reward)\ntarget = pair[0]", "a part by its place of a Pair"),
    "walked": ("pair = Pair(reward)\nfor x in pair:\n    target = x", "a loop over this"),
    "a change": ("pair = Pair(reward)\npair = pair._replace(first=target)", "_replace"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_dataclass_is_no_tuple(case, tmp_path):
    lines, construct = REFUSED[case]
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, learn=lines, remove=[DATA])
    assert construct in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("frozen=True", "", "fields that may change"),
        ("second: Any = 1.0", "second: Any = dataclasses.field(default_factory=list)", "the field"),
        ("second: Any = 1.0", "def __post_init__(self):\n        pass", "the method __post_init__"),
    ],
)
def test_a_dataclass_that_is_more_than_its_fields_is_refused(old, new, what, tmp_path):
    data = (DATA[0], DATA[1].replace(old, new))
    with pytest.raises(ProgramError, match=f"a Pair with {what}"):
        analyse_with(tmp_path, learn="pair = Pair(reward)", remove=[data])


def test_a_dictionary_from_act_is_read(tmp_path):
    program = "class Named(Act):\n    def act(self, obs, noise):\n        return {'action': obs}"
    changed = [
        ("class Learn", f"{program}\n\nclass Learn"),
        ("Act(net), Learn", "Named(net), Learn"),
        ("msrl.agent_act(obs)", "msrl.agent_act(obs)['action']"),
    ]
    build_with(tmp_path, changed)
