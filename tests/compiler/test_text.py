"""The graph as text: nothing is lost when it is written and parsed."""

import dataclasses
import pickle

import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.compiler.ir.ir import Branch, Expr, Loop, Op, Program, Region, Where
from mindspore_rl.compiler.ir.text import parse, parse_value, render, render_value
from mindspore_rl.compiler.partition.partition import partition
from mindspore_rl.compiler.partition.replicate import replicate
from mindspore_rl.compiler.show.render import render_partition
from mindspore_rl.jobs import registry, training
from mindspore_rl.plan.value import Value


def test_a_stage_is_printed_and_all_are_written(capsys, tmp_path):
    job = ["a2c", "--policy", "SingleLearnerCoarse", "--device", "cpu"]
    assert cli.main(["graph", *job, "--stage", "regions"]) == 0
    printed = capsys.readouterr().out
    actor, learner = ("# program" + part for part in printed.split("# program")[1:])
    assert parse(actor).algorithm == "actor"
    assert any(isinstance(item, Region) for item in parse(learner).body[-1].body)
    see = training.dumper(str(tmp_path))
    see("regions", parse(actor))
    assert (tmp_path / "09-regions.txt").read_text() == actor.rstrip("\n") + "\n"
    assert cli.main(["graph", *job, "--stage", "nothing"]) == 2


def test_what_programs_seldom_hold():
    where = Where("my files/odd.py", 7, "    x = '# | {'  # a comment | of the user's")
    op = Op(
        "draw:a b->c",
        "replay_draw",
        ("x", "y"),
        ("f(u, [1, 'a | b'])", "*rest", "key=(u, 2)"),
        ("u", "$parameters"),
        where,
        ("$replay",),
        "two words",
        (
            ("per_env", 1),
            ("capacity", 2),
            ("by", "a | {'b'} # c"),
            ("steps", 0),
            ("weighted", True),
        ),
    )
    bare = Op("unset#1", "unset", (), (), (), Where("other.py", 8, ""))
    branch = Branch("if#1", "u > 'ü'", ("u",), (bare,), (), where, first=True)
    either = Branch("if#2", "u", ("u",), (), (dataclasses.replace(op, name="g"),), where)
    loop = Loop("steps#1", "steps", "t", 4, (branch, either), where, chunks=2)
    outer = Loop("it#1", "iterations", "i", None, (loop,), where)
    program = Program(
        "odd",
        (op, outer, Region("learn", (bare,), ("x",), ("y", "z")), Region("act", (bare,), (), ())),
        imports=(("np", "numpy", "numpy"), ("leaf", "a.b", "leaf")),
        locals=(("x", "X"),),
        values={"x": Value((4, 16, 3), "float32", 1, 2, (), 2), "y": Value((), "none")},
        row_dependent={"g": "rows differ: 'x'"},
        unsplittable=("g",),
        teams=(3, 1),
        agents_mixed={"g": "why"},
    )
    assert parse(render(program)) == program


def test_an_expression_is_its_text_and_keeps_its_tree():
    half = Expr("x  *  0.5")
    assert half == "x * 0.5"
    assert half.substitute({"x": Expr("a + b")}) == "(a + b) * 0.5"
    assert half == "x * 0.5"
    assert Expr("0").plus("i").plus(Expr("j").times(4).plus("k")) == "i + j * 4 + k"
    assert Expr("a + b").times(2) == "(a + b) * 2"
    again = pickle.loads(pickle.dumps(half))
    assert again == half
    assert again.names == {"x"}


def test_values():
    pair = Value((), "tuple", parts=(Value((3, 8), "int32", 1), Value((), "bool")))
    assert render_value(pair) == "tuple(int32[3, 8e], bool[])"
    assert render_value(Value((64, 4), "float32", 0, 8)) == "float32[64e/8, 4]"
    nested = Value((), "tuple", parts=(pair, Value((2, 2), "float32", 0, agent_axis=0)))
    assert parse_value(render_value(nested)) == nested


@pytest.mark.parametrize("text", ["", "x = f()", "# program p\nx = f()", "# program p\nx ="])
def test_what_is_no_program(text):
    with pytest.raises(ValueError, match="no text of a program|no line of the user's program"):
        parse(text)


PROGRAM = """\
# program small
first: "float32[8e, 4]"
obs: "float32[8e, 4]"
action: "int32[8e]"
sent: "int32[8e]"
seen: "float32[8e, 4]"

# small.py:1: obs = msrl.boundary("observation", msrl.env_reset())
first = env_reset()  # env_reset#1 | writes $environment
obs = boundary(first)  # boundary#1 | reads first | mark observation | {'site': 'observation#1'}
# small.py:2: for _ in msrl.iterations():
for i in iterations():  # iterations#1
    # small.py:3: action = msrl.boundary("action", msrl.agent_act(obs))
    action = agent_act(obs)  # agent_act#1 | reads obs $parameters
    sent = boundary(action)  # boundary#2 | reads action | mark action | {'site': 'action#1'}
    # small.py:4: obs = msrl.boundary("observation", msrl.env_step(action))
    seen = env_step(sent)  # env_step#1 | reads sent $environment | writes $environment
    obs = boundary(seen)  # boundary#3 | reads seen | mark observation | {'site': 'observation#2'}
"""


def test_a_pass_from_text_to_text():
    policy = registry.load_policy(registry.find_policy("SingleLearnerFine"))
    program = parse(PROGRAM)
    text = render_partition(partition(program, policy, replicate(policy, 2, 8, program.teams)))
    assert "fragment environment (environment) x2: rank 0: environments 0..3" in text
    for cut in (
        "cut observation: environment -> learner, after boundary#1: obs",
        "cut action: learner -> environment, after boundary#2: sent",
        "cut observation: environment -> learner, after boundary#3: obs",
    ):
        assert cut in text
