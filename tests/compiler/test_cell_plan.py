"""The needs of a cell, found in the items of its region."""

from typing import Any

import pytest

from mindspore_rl.compiler.ir.ir import num_turns, turn_index, walk
from mindspore_rl.compiler.ir.text import parse
from mindspore_rl.compiler.lowering.cell_plan import UNROLL, plan_cell
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.target import Target

REGION = """# program p
obs: "float32[8e, 4]"
noise: "float32[8, 8e, 1]"
noise_row: "float32[8e, 1]"
action: "bool[8e]"
last: "float32[8e, 3a]"

# p.py:1: ...
with region(obs, noise):  # act | gives action_stack last
    for step in steps(8):  # steps#1
        noise_row = index(noise, step)  # index#1 | reads noise step
        action = agent_act(obs, noise_row)  # agent_act#1 | reads obs noise_row $parameters
        action_stack = stack(step, action)  # stack:a | reads step action | {'rows': 8}
        for turn in range(2):  # range#1
            noise_row = index(noise, step)  # index#2 | reads noise step
            last = glue(trainer.move(noise_row))  # glue#1 | reads noise_row
"""


def _plan(text: str = REGION, native: bool = False) -> Any:
    program = parse(text)
    projection = Projection(None, program.body, program.values)  # type: ignore[arg-type]
    return plan_cell(program.body[0], projection, Target(8, 8, 64, False, native))  # type: ignore[arg-type]


def test_a_rollout_is_unrolled_and_its_rows_are_written_together():
    plan = _plan()
    assert plan.unrolled == {"steps#1"}
    assert list(plan.sliced) == ["index#1"]  # the inner loop is not unrolled
    assert plan.buffers["action_stack"].leading == (8 // UNROLL, UNROLL)


@pytest.mark.parametrize(
    ("loop", "native"), [("steps(8)", True), ("steps(6)", False), ("range(8)", False)]
)
def test_other_loops_write_row_by_row(loop, native):
    plan = _plan(REGION.replace("steps(8)", loop), native)
    assert not plan.unrolled
    assert not plan.sliced
    assert plan.buffers["action_stack"].leading == (8,)


def test_a_table_that_the_loop_sets_is_not_sliced_before_it():
    made = "noise = glue(noise * 2.0)  # glue#2 | reads noise\n        action = agent_act"
    assert not _plan(REGION.replace("action = agent_act", made)).sliced


def test_what_is_used_after_a_loop_exists_before_it():
    assert _plan().starts == {"steps#1": ("last",), "range#1": ()}


def test_objects_and_parts_are_those_of_operations():
    plan = _plan(native=True)
    assert plan.owners == ("trainer", "actor")
    assert plan.parts == {"steps#1": "turns_1", "range#1": "turns_2"}
    assert plan.counts_agents  # `last` starts as zeros for every agent
    assert _plan(REGION.replace("trainer.move(noise_row)", "f(trainer)")).owners == plan.owners


def test_turns_of_nested_loops():
    loops = next(loops for op, loops in walk(parse(REGION).body[0].items) if op.name == "glue#1")
    assert num_turns(loops) == 16
    assert num_turns(()) == 1
    assert turn_index(loops) == "step * 2 + turn"
    assert turn_index(()) == "0"
