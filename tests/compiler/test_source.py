"""The generated modules: their text, and that they are valid Python."""

import ast
import re

import pytest

from mindspore_rl.compiler.frontend.builder import GENERATED_ENDINGS
from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.errors import ProgramError
from tests.compiler import inproc
from tests.compiler.programs import program_with


def test_a_share_that_its_sender_uses_is_not_summed_again(tmp_path):
    job = inproc.request(inproc.PROGRAMS / "kl_stop.py", "Central", 3)
    plan, _ = prepare(job, tmp_path)
    (message,) = [m for m in plan.messages if m.mark == "gradient"]
    (worker,) = [f for f in plan.fragments if f.name == "worker"]
    assert worker.collectives and not any(message.partial)


def test_users_names_do_not_meet_those_of_generated_code(tmp_path):
    job = inproc.request(inproc.PROGRAMS / "a2c.py", "MultipleLearners", 1)
    plan, _ = prepare(job, tmp_path)
    source = (tmp_path / "fragments" / plan.fragments[0].file).read_text()
    assert " as w_" in source or "import w as" in source
    assert "\n        w = " not in source
    assert "\n        nn = " not in source


def test_users_names_do_not_meet_those_of_cells_and_functions(tmp_path):
    names = ("Act", "Learn", "Update2", "serve", "sender", "run", "reward_team", "obs_0")
    lines = [
        f"{name} = target * {number}.0\ntarget = target + {name}"
        for number, name in enumerate(names)
    ]
    job = inproc.request(program_with(tmp_path, learn="\n".join(lines)), "MultipleLearners", 1)
    plan, _ = prepare(job, tmp_path)
    tree = ast.parse((tmp_path / "fragments" / plan.fragments[0].file).read_text())
    set_there = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    assert "obs_0" in set_there
    assert not set_there & set(names[:-1])


def test_a_teams_reward_has_a_name_that_users_cannot_have(tmp_path):
    plan, _ = prepare(inproc.request(inproc.PROGRAMS / "teams.py", "GPUOnly", 1), tmp_path)
    source = (tmp_path / "fragments" / plan.fragments[0].file).read_text()
    (told,) = re.findall(r"(\w+) = \w+\.mean\(1\)", source)
    assert told.endswith(GENERATED_ENDINGS)


AGAIN = """
action = msrl.agent_act(next_obs)
next_obs, _, second, _, _ = msrl.boundary(
    "observation", msrl.env_step(msrl.boundary("action", action)))
reward = reward + second
"""


def test_two_steps_of_environments_in_one_loop_of_a_cell_are_refused(tmp_path):
    """Their rewards would be counted in an order other than the program's."""
    program = program_with(tmp_path, loop=AGAIN)
    prepare(inproc.request(program, "MultipleLearners", 1), tmp_path / "python")
    job = inproc.request(program, "GPUOnly", 1, env="graph:CartPole-v1")
    with pytest.raises(ProgramError, match=r"msrl.env_step twice(.|\n)*range\(2\)"):
        prepare(job, tmp_path / "graph")


def test_what_only_a_condition_reads_exists_before_the_loop_that_sets_it(tmp_path):
    job = inproc.request(inproc.PROGRAMS / "kl_stop.py", "MultipleLearners", 1)
    plan, _ = prepare(job, tmp_path)
    source = (tmp_path / "fragments" / plan.fragments[0].file).read_text()
    start, loop = source.index("far = ms.Tensor(False"), source.index("while epoch <")
    assert start < loop < source.index("if far:")
