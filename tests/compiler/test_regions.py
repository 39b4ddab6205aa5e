"""Regions: which operations become compiled cells, and which stay Python."""

from mindspore_rl.compiler.ir.ir import Branch, Loop, Op, Where
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.regions import find_regions
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.plan.value import Value

HERE = Where("program.py", 1, "")


def _grouped(*ops):
    values = {name: Value((), "float32") for name in "abcd"}
    loop = Loop("iterations#1", "iterations", "iteration", None, ops, HERE)
    body = find_regions(Projection(Fragment("loop", (), (range(8),)), (loop,), values), False)
    return body[0].body


def _op(kind, target, read, text=""):
    return Op(f"{kind}:{target}", kind, (target,), (text or read,), (read,), HERE)


def test_a_run_of_copies_is_no_cell():
    ops = (_op("copy", "b", "a"), _op("index", "c", "b"), _op("glue", "d", "c"))
    assert _grouped(*ops) == ops


def test_copies_at_the_ends_stay_outside_a_cell():
    first, compute, last = (
        _op("copy", "b", "a"),
        _op("glue", "c", "b", "b + 1"),
        _op("copy", "d", "c"),
    )
    before, region, after = _grouped(first, compute, last)
    assert (before, region.items, after) == (first, (compute,), last)
    assert (region.inputs, region.outputs) == (("b",), ("c",))


def test_what_a_cell_changes_under_a_condition_it_is_given():
    far, last = _op("glue", "b", "a", "a > 0"), _op("glue", "c", "a", "a + 1")
    unless = Branch("if#1", "b", ("b",), (last,), (), HERE)
    region, _ = _grouped(far, unless, _op("replay_update", "d", "c"))
    assert (region.inputs, region.outputs) == (("a", "c"), ("c",))
