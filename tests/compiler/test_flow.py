"""Reaching definitions in programs written by hand."""

from mindspore_rl.compiler.ir.dataflow import INITIAL, definitions, exposed, first_reads
from mindspore_rl.compiler.ir.ir import Branch, Loop, Op, Where
from mindspore_rl.compiler.ir.operations import ENVIRONMENT, PARAMETERS

HERE = Where("program.py", 1, "")


def _op(name, targets="", reads="", **rest):
    return Op(name, "glue", tuple(targets.split()), (), tuple(reads.split()), HERE, **rest)


def _loop(*body):
    return Loop("loop", "range", "i", 3, body, HERE)


def _branch(body, orelse=(), reads=("c",)):
    return Branch("if", "c", reads, body, orelse, HERE)


def test_the_last_definition_reaches():
    uses = definitions((_op("first", "x"), _op("second", "x"), _op("reader", "y", "x")))
    assert uses["reader"] == {"x": {"second"}}


def test_what_nobody_defines_is_initial():
    assert definitions((_op("reader", "y", "x"),))["reader"] == {"x": {INITIAL}}


def test_a_loop_carries_its_last_turn_to_its_first_line():
    uses = definitions((_op("before", "x"), _loop(_op("reader", "y", "x"), _op("next", "x", "y"))))
    assert uses["reader"] == {"x": {"before", "next"}}


def test_a_loop_is_taken_so_that_it_hides_what_was_before():
    uses = definitions((_op("before", "x"), _loop(_op("inside", "x")), _op("after", "y", "x")))
    assert uses["after"] == {"x": {"inside"}}


def test_a_definition_of_an_inner_loop_reaches_the_next_turn_of_the_outer():
    inner = Loop("inner", "range", "j", 2, (_op("set", "x"),), HERE)
    uses = definitions((_op("before", "x"), _loop(_op("reader", "y", "x"), inner)))
    assert uses["reader"] == {"x": {"before", "set"}}


def test_both_sides_of_a_branch_reach():
    sides = _branch((_op("left", "x"),), (_op("right", "x"),))
    uses = definitions((_op("before", "x"), _op("test", "c"), sides, _op("after", "y", "x")))
    assert uses["after"] == {"x": {"left", "right"}}
    assert uses["if"] == {"c": {"test"}}


def test_a_branch_without_else_may_leave_what_was_before():
    uses = definitions((_op("before", "x"), _branch((_op("in", "x"),)), _op("after", "y", "x")))
    assert uses["after"] == {"x": {"before", "in"}}


def test_effects_are_variables():
    step = _op("step", "obs", ENVIRONMENT, writes=(ENVIRONMENT,))
    act = _op("act", "a", PARAMETERS)
    update = _op("update", "", PARAMETERS, writes=(PARAMETERS,))
    uses = definitions((_op("reset", writes=(ENVIRONMENT,)), _loop(act, step, update)))
    assert uses["step"] == {ENVIRONMENT: {"reset", "step"}}
    assert uses["act"] == {PARAMETERS: {INITIAL, "update"}}


def test_what_is_read_before_it_is_surely_set():
    items = (
        _loop(_op("first", "z", "y i"), _op("second", "y")),
        _branch((_op("in", "x"),)),
        _op("reader", "w", "x z"),
    )
    assert first_reads(items, ("z", "v")) == {"y": "first", "c": "if", "x": "reader", "v": ""}
    assert exposed(items, ("i",)) == ("y", "c", "x", "i")
