"""Valid and invalid policies: each mistake gives one message, with the line of the user's file."""

import dataclasses

import pytest

from mindspore_rl.compiler.partition.replicate import replicate
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule, Schedule
from tests.compiler.programs import analyse_with
from tests.tiers import quick

RULES = (
    FragmentRule("e", ("environment",), WORKERS, "env"),
    FragmentRule("a", ("actor",), WORKERS, "env"),
    FragmentRule("l", ("replay", "gradient", "update"), WORKERS, "env"),
)


def policy(**given) -> DistributionPolicy:
    return DistributionPolicy(**{"name": "P", "summary": "", "fragments": RULES, **given})


@pytest.mark.parametrize("group", [("e", "a", "l"), ("l", "a", "e"), ("a", "l", "e")])
def test_a_group_has_no_order(group):
    (fused,) = replicate(policy(colocate=(group,)), 2, 8, ())
    assert fused.name == "e+a+l"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((("e", "a"), ("a", "l")), r"a in several groups; .* one: \('e', 'a', 'l'\)"),
        ((("a", "l"), ("e", "a")), r"a in several groups; .* one: \('a', 'l', 'e'\)"),
        ((("e", "a"), ("a", "e")), r"a in several groups; .* one: \('e', 'a'\)"),
        ((("e", "a"), ("a", "l"), ("l", "e")), "a in several groups"),
        ((("a", "a"),), r"the group \('a', 'a'\), expected at least two fragments"),
        ((("a",),), r"the group \('a',\), expected at least two fragments"),
        (((),), r"the group \(\), expected at least two fragments"),
        ("ea", "colocate='ea', expected a tuple, .* one part too: "),
        (("e", "a"), r"colocate=\('e', 'a'\), expected a tuple, .* one part too: "),
        (("ea",), "expected a tuple"),
        (([],), "expected a tuple"),
        (None, "colocate=None, expected a tuple"),
        ((("e", 5),), "colocate names 5; fragments are e, a, l"),
        ((("e", "lerner"),), "colocate names lerner; fragments are e, a, l"),
    ],
    ids=str,
)
def test_groups_that_are_none(groups, message):
    with pytest.raises(PolicyError, match=f"policy P.* colocate.*{message}|policy P.*{message}"):
        policy(colocate=groups)


def changed(rule: int, **given) -> tuple[FragmentRule, ...]:
    rules = list(RULES)
    rules[rule] = dataclasses.replace(rules[rule], **given)
    return tuple(rules)


CUT = Cut("transition", "actor", "replay")
UPDATES_SEND = r'updates send parameters: write Cut\("parameters", "update", "actor"\)'


def test_the_former_name_of_an_axis_is_understood():
    rule = FragmentRule("e", ("environment",), WORKERS, split=("agent", "env"))
    assert rule == FragmentRule("e", ("environment",), WORKERS, sharded=("agent", "env"))
    assert dataclasses.replace(rule, sharded="env").axes == ("env",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fragments": changed(1, components="actor")}, "fragment a has components='actor', exp"),
        ({"fragments": changed(1, components=["actor"])}, r"components=\['actor'\], expected a tu"),
        ({"fragments": changed(0, compiled="environment")}, "e has compiled='environment', exp"),
        ({"fragments": changed(0, sharded=5)}, "e has sharded=5, expected a tuple"),
        ({"fragments": changed(0, sharded=["env"])}, r"e has sharded=\['env'\], expected a tuple"),
        ({"fragments": changed(0, replicas=True)}, "e has replicas=True, expected a number"),
        ({"fragments": changed(0, replicas=0)}, "replicas=0, expected a number of at least 1"),
        ({"fragments": changed(0, replicas="worker")}, "replicas='worker'.*WORKERS"),
        ({"fragments": changed(0, replicas=1.5)}, r"replicas=1\.5"),
        (
            {"fragments": changed(0, compiled=("env",))},
            "compiled=.'env',. .*expected .*'environment'",
        ),
        ({"fragments": changed(0, compiled=("actor",))}, "e has compiled=.'actor',."),
        ({"fragments": changed(1, compiled=("environment",))}, "a has compiled="),
        ({"fragments": changed(0, sharded="envs")}, "sharded='envs'"),
        ({"fragments": changed(0, sharded="agent")}, "agents share their environment"),
        ({"fragments": RULES[0]}, "P has fragments=FragmentRule.*, expected a tuple"),
        ({"fragments": list(RULES)}, r"P has fragments=\[.*, expected a tuple"),
        ({"fragments": (*RULES, "l")}, r"P has fragments=.*, expected a tuple"),
        ({"cuts": CUT}, r"P has cuts=Cut\(.*, expected a tuple, .*: \(Cut\(\"transition\""),
        ({"cuts": [CUT]}, r"P has cuts=\[Cut\(.*, expected a tuple"),
        ({"cuts": ("transition",)}, r"P has cuts=\('transition',\), expected a tuple"),
        ({"cuts": None}, "P has cuts=None, expected a tuple"),
        ({"cuts": (Cut("x", "actor", "actor"),)}, "'actor' and 'actor', expected two components"),
        ({"cuts": (Cut("x", "actor", "learner"),)}, "'learner'; components are environment"),
        ({"schedule": "arrival"}, r"P has schedule='arrival', expected Schedule\("),
        ({"cuts": (Cut("x", "actor", ["replay"]),)}, r"and \['replay'\]; components are"),
        ({"cuts": (Cut("x", "actor", "replay", "no"),)}, "optional='no', expected True or False"),
        ({"fragments": (*RULES, FragmentRule("b", ()))}, "fragment b holds no component"),
        ({"cuts": (Cut("parameters", "actor", "update"),)}, UPDATES_SEND),
        ({"cuts": (Cut("parameters", "gradient", "actor"),)}, UPDATES_SEND),
    ],
)
def test_fields_of_another_kind(given, message):
    with pytest.raises(PolicyError, match=message) as caught:
        policy(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lag": "1"}, "lag is '1', expected int"),
        ({"lag": 1.5}, "lag is 1.5, expected int"),
        ({"chunks": None}, "chunks is None, expected int"),
        ({"staleness": True}, "staleness is True, expected int . None"),
        ({"order": "asynchronous", "drop_stale": "false"}, "drop_stale is 'false', expected bool"),
    ],
)
def test_keys_of_a_schedule_of_another_kind(given, message):
    with pytest.raises(PolicyError, match=f"schedule: {message}"):
        Schedule(**given)


@pytest.mark.parametrize("name", quick(["SingleLearnerCoarse", "SingleLearnerFine", "Central"], 1))
def test_cuts_the_wrong_way_round(name, tmp_path):
    right = registry.load_policy(registry.find_policy(name))
    assert right.schedule == Schedule()
    for number, cut in enumerate(right.cuts):
        if cut.mark != "parameters":
            cuts = list(right.cuts)
            cuts[number] = Cut(cut.mark, cut.target, cut.source)
            says = rf"'{cut.mark}'.* wrong way round: .* goes from {cut.source} to {cut.target}"
            with pytest.raises(PolicyError, match=says):
                analyse_with(tmp_path, dataclasses.replace(right, cuts=tuple(cuts)))


def test_the_line_of_the_file_is_told(tmp_path, refused):
    source = registry.find_policy("MultipleLearners").read_text()
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "DistributionPolicy(" in text)
    file = tmp_path / "mine.py"
    file.write_text(source.replace('(("actor", "learner"),)', '("actor", "learner")'))
    error = refused("graph", "ppo", "--policy", file)
    assert f"{file}:{line}: policy MultipleLearners has colocate=('actor', 'learner')" in error
