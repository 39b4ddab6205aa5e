"""Reaching definitions that no golden text shows."""

from mindspore_rl.compiler.ir.dataflow import definitions
from mindspore_rl.compiler.ir.ir import Loop, Op, Where

HERE = Where("program.py", 1, "")


def _op(name, targets="", reads="", **rest):
    return Op(name, "glue", tuple(targets.split()), (), tuple(reads.split()), HERE, **rest)


def _loop(*body):
    return Loop("loop", "range", "i", 3, body, HERE)


def test_a_loop_is_taken_so_that_it_hides_what_was_before():
    uses = definitions((_op("before", "x"), _loop(_op("inside", "x")), _op("after", "y", "x")))
    assert uses["after"] == {"x": {"inside"}}


def test_a_definition_of_an_inner_loop_reaches_the_next_turn_of_the_outer():
    inner = Loop("inner", "range", "j", 2, (_op("set", "x"),), HERE)
    uses = definitions((_op("before", "x"), _loop(_op("reader", "y", "x"), inner)))
    assert uses["reader"] == {"x": {"before", "set"}}
