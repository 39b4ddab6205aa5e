"""Marks that calls imply: the graph is the same with and without them in the source."""

import ast
import re
from dataclasses import replace

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler.frontend.build import build, read
from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.ir.text import render
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Cut
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, program_with
from tests.tiers import quick

GIVES = {
    "env_reset": "observation",
    "env_step": "observation",
    "replay_sample": "batch",
    "gradient": "gradient",
}
TAKES = {"env_step": "action", "replay_insert": "transition", "replay_update": "priority"}
MARKS = {*GIVES.values(), *TAKES.values()}
JOBS = [
    ("ppo", "CartPole-v1", {"normalise_obs": True, "normalise_reward": True, "torso": "gru"}),
    ("a2c", "CartPole-v1", {}),
    ("impala", "CartPole-v1", {}),
    ("mappo", "graph:simple_tag_v3", {}),
    ("dqn", "CartPole-v1", {"priority": 0.6}),
    ("sac", "Pendulum-v1", {}),
    ("td3", "Pendulum-v1", {}),
    ("tests/programs/kl_stop.py", "CartPole-v1", {}),
    ("tests/programs/two_phase.py", "CartPole-v1", {}),
    ("tests/programs/two_rollouts.py", "CartPole-v1", {}),
    ("tests/programs/teams.py", "graph:simple_tag_v3", {}),
    ("tests/programs/kept.py", "CartPole-v1", {}),
]


class _Bare(ast.NodeTransformer):
    """Removes the marks that calls imply."""

    def visit_Call(self, node):
        self.generic_visit(node)
        if ast.unparse(node.func) == "msrl.boundary" and node.args[0].value in MARKS:
            return node.args[1]
        return node


class _Marked(ast.NodeTransformer):
    """Adds to each call the mark that it implies."""

    def visit_Call(self, node):
        self.generic_visit(node)
        name = ast.unparse(node.func).removeprefix("msrl.")
        if name in TAKES:
            values = ast.Starred(_boundary(TAKES[name], ast.Tuple(node.args)))
            if name == "env_step":  # a single value, not a tuple
                values = _boundary(TAKES[name], node.args[0])
            node.args = [values]
        elif name == "update" and ast.unparse(node.args[0]).endswith("statistics.merge"):
            values = _boundary("gradient", ast.Tuple(node.args[1:]))
            node.args = [node.args[0], ast.Starred(values)]
        return _boundary(GIVES[name], node) if name in GIVES else node


def _boundary(mark, value):
    return ast.Call(ast.parse("msrl.boundary").body[0].value, [ast.Constant(mark), value], [])


def trainer_of(folder, file, env, config, *forms):
    tree = ast.parse(file.read_text())
    for form in forms:
        tree = form().visit(tree)
    copy = folder / f"{file.stem}_{'_'.join(form.__name__ for form in forms)}.py"
    copy.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    cls = programs.trainer_class(copy)
    return cls(cls.Config(env=env, **config), spec(env))


def graph(trainer):
    """The program's text without source lines, with variables numbered in order."""
    program = build(trainer, "program")
    made = dict.fromkeys(name for op, _ in walk(program.body) for name in op.targets)
    number = {name: f"v{place}" for place, name in enumerate(made)}
    lines = render(program).splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith(("#", "from", "local")))
    words = r"'[^']*'|\w+"  # what stands in quotes names no variable
    return re.sub(words, lambda word: number.get(word[0], word[0]), text).splitlines()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[0].rpartition("/")[2])
def test_the_graph_is_that_of_the_program_that_sets_them(job, tmp_path):
    file = registry.find_algorithm(job[0])
    bare = trainer_of(tmp_path, file, *job[1:], _Bare)
    marked = trainer_of(tmp_path, file, *job[1:], _Bare, _Marked)
    assert not read(marked).marks
    assert read(bare).marks
    assert graph(bare) == graph(marked)


BARE = [
    (f'msrl.boundary("{mark}", {value})', value)
    for mark, value in (
        ("gradient", "gradient"),
        ("observation", "msrl.env_reset()"),
        ("action", "action"),
        ("transition", "(obs, action, reward)"),
        ("batch", "msrl.replay_sample()"),
    )
]
BARE[2:2] = [
    ('msrl.boundary(\n                    "observation", msrl.env_step(', "(msrl.env_step(")
]


@pytest.mark.parametrize("policy", quick(["SingleLearnerFine", "Central"], 1))
def test_messages_are_those_of_the_program_that_sets_the_marks(policy, tmp_path):
    bare, marked = (analyse_with(tmp_path, policy, remove=text) for text in (BARE, ()))
    said = [[replace(m, variables=(), uses=()) for m in cut.messages] for cut in (bare, marked)]
    assert said[0] == said[1]
    assert bare.reduced == marked.reduced
    assert any(message.name.startswith("boundary:") for message in bare.messages) or bare.reduced


def test_both_record_the_marks_that_neither_sets(tmp_path):
    file = program_with(tmp_path, remove=BARE)
    job = inproc.request(file, "Central", 2, num_steps=4)
    reference = inproc.run_reference(job, tmp_path / "reference")
    assert {"boundary:action#1", "boundary:gradient#1"} <= {site for _, site in reference.records}
    assert inproc.run_and_compare(job, reference, tmp_path / "run") == []


STEP, TAKEN = ("env_step#1", "observation"), ("env_step#1", "action")
MOVED = {
    "of one part": ({"loop": "reward = msrl.boundary('observation', reward)"}, STEP, (0, 1, 3, 4)),
    "of what is made of one": (
        {"loop": "next_obs = msrl.boundary('observation', 0.5 * next_obs)"},
        STEP,
        (1, 2, 3, 4),
    ),
    "in its place": ({"remove": BARE[1:]}, ("gradient#1", "gradient"), ()),
    "of what an argument is made of": (
        {"loop": "action = 1 - msrl.boundary('transition', 1 - action)"},
        ("replay_insert#1", "transition"),
        (),
    ),
    "of another name": ({"loop": "action = msrl.boundary('mine', action)"}, TAKEN, (0,)),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_mark_that_is_set_moves_the_implied_one(case, tmp_path):
    parts, which, places = MOVED[case]
    file = program_with(tmp_path, **{"remove": BARE, **parts})
    cls = programs.trainer_class(file)
    found = read(cls(cls.Config(num_steps=4), spec("CartPole-v1"))).marks
    assert found.get(which, ()) == places


def test_a_mark_that_no_call_implies_is_asked_for(tmp_path):
    policy = registry.load_policy(registry.find_policy("MultipleLearners"))
    policy = replace(policy, cuts=(*policy.cuts, Cut("advantage", "gradient", "update")))
    with pytest.raises(PolicyError, match=r"the mark 'advantage' .* msrl.boundary\('advantage'"):
        analyse_with(tmp_path, policy)
