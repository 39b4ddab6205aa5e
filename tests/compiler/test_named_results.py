"""Records of programs: NamedTuples, dataclasses, results of `act` with names; keywords."""

import pytest

from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.by_place import named_result, with_tuples
from mindspore_rl.trained.acting import with_action
from tests.compiler.programs import analyse_with, build_with
from tests.programs.named import Decision, Memory


def chosen(obs, *, scale=2.0):
    if scale > 1.0:
        return {
            "action": (obs + 1),  # a comment
            "memory": Memory((obs, obs)),
        }
    return dict_of(obs)


def dict_of(obs):
    result = dict(action=obs, memory=Memory(count=1.0, hidden=(obs, obs)))  # noqa: C408
    return result  # noqa: RET504


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


TUPLE = "class Pair(NamedTuple):\n    first: Any\n    second: Any = 1.0\n"
DATA = f"@dataclasses.dataclass(frozen=True)\n{TUPLE.replace('(NamedTuple)', '')}"
LEARN = "class Learn(BaseLearner):"


def with_record(text):
    imports = "import dataclasses\nfrom typing import Any, NamedTuple\n"
    return LEARN, f"{imports}{text}{LEARN}"


FIELDS = "its fields are first, second"
REFUSED = {
    "pair = Pair(reward)\ntarget = pair.third": (TUPLE, "`third` of a Pair", FIELDS),
    "pair = Pair(second=reward)": (TUPLE, "a Pair without 'first'", FIELDS),
    "pair = Pair(reward, thrid=2.0)": (TUPLE, "a Pair with 'thrid'", FIELDS),
    "pair = Pair(reward, first=2.0)": (TUPLE, "a Pair with 'first' twice", FIELDS),
    "pair = Pair(reward, 1, 2)": (TUPLE, "a Pair with 3 values", "supported"),
    "pair = Pair(reward)\ntarget = self.net(pair)": (TUPLE, "a Pair as an operand", "its fields"),
    "pair = Pair(reward)\npair.first = target": (TUPLE, "an attribute", "local variable"),
    "pair = Pair(reward)\nfor i in range(2):\n    pair = (pair[0], target)": (
        TUPLE,
        "`pair`, which changes its structure",
        "keep their shape",
    ),
    "pair = Pair(reward)\ntarget, scale = pair": (DATA, "2 names for"),
    "pair = Pair(reward)\ntarget = max(*pair)": (DATA, "`*` of something that is not a tuple"),
    "pair = Pair(reward)\ntarget = pair[0]": (DATA, "a part by its place of a Pair"),
    "pair = Pair(reward)\nfor x in pair:\n    target = x": (DATA, "a loop over this"),
    "pair = Pair(reward)\npair = pair._replace(first=target)": (DATA, "_replace"),
}


@pytest.mark.parametrize("lines", REFUSED)
def test_what_a_record_does_not_do_is_refused(lines, tmp_path):
    record, *told = REFUSED[lines]
    with pytest.raises(ProgramError) as caught:
        build_with(tmp_path, [with_record(record)], learn=lines)
    assert [part for part in told if part not in str(caught.value)] == []


DEFAULT = "second: Any = 1.0"
ITERATED = "    def __iter__(self):\n        yield 2.0 * self[0]\n"


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (f"{TUPLE.replace('Pair', 'Base')}class Pair(Base):\n    pass\n", "the base class Base"),
        (f"{TUPLE}{ITERATED}", "the method __iter__"),
        (DATA.replace("frozen=True", ""), "fields that may change"),
        (DATA.replace("1.0", "dataclasses.field(default_factory=list)"), "the field"),
        (f"{DATA}    def __post_init__(self):\n        pass\n", "the method __post_init__"),
    ],
)
def test_a_record_that_is_more_than_its_fields_is_refused(record, what, tmp_path):
    with pytest.raises(ProgramError, match=f"a Pair with {what}"):
        build_with(tmp_path, [with_record(record)], learn="pair = Pair(reward)\ntarget, *_ = pair")


def test_another_record_than_elsewhere_is_refused(tmp_path):
    insert = 'msrl.replay_insert(*msrl.boundary("transition", (obs, action, reward)))'
    both = "msrl.replay_insert(Pair(obs, reward))\n                msrl.replay_insert(obs, reward)"
    with pytest.raises(ProgramError, match="another record than elsewhere"):
        analyse_with(tmp_path, remove=[with_record(TUPLE), (insert, both)])


CALL = "action = msrl.agent_act(obs)"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (CALL, "action = msrl.agent_act(obs, left=1.0)", "unexpected keyword"),
        (CALL, "action = msrl.agent_act(obs, obs=obs)", "multiple values"),
        (CALL, "action = msrl.agent_act(obs, **obs)", "`**` or `|` of something that is"),
        ("action, target)", "action, target, row=True)", "unexpected keyword argument 'row'"),
    ],
)
def test_a_wrong_keyword_is_refused(old, new, told, tmp_path):
    with pytest.raises(ProgramError) as caught:
        analyse_with(tmp_path, remove=[(old, new)])
    assert told in str(caught.value)
    assert new.splitlines()[-1].strip() in str(caught.value)


def test_a_dictionary_from_act_is_read(tmp_path):
    program = "class Named(Act):\n    def act(self, obs, noise):\n        return {'action': obs}"
    changed = [
        ("class Learn", f"{program}\n\nclass Learn"),
        ("Act(net), Learn", "Named(net), Learn"),
        ("msrl.agent_act(obs)", "msrl.agent_act(obs)['action']"),
    ]
    build_with(tmp_path, changed)
