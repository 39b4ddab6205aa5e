"""The table of primitives: row analysis and native code give the same answers about each."""

import pytest

from mindspore_rl.codegen.cfg import tensors
from mindspore_rl.codegen.ops.all import KERNELS
from mindspore_rl.codegen.ops.batch_rules import BY_ROWS, SUM, rule_of
from mindspore_rl.codegen.ops.decompositions import DECOMPOSITIONS
from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE, reads
from mindspore_rl.codegen.ops.matmul import PRODUCTS
from mindspore_rl.codegen.ops.reductions import SUMS, reduced_axes
from mindspore_rl.codegen.ops.views import OFFSETS, axis_of
from mindspore_rl.compiler.analysis.row_lattice import REPLICATED, Call, Mixed, Sharding, Undecided
from mindspore_rl.compiler.analysis.row_rules import RULES
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES
from tests.codegen.units import node, number

BATCH = 8
SHAPE = (BATCH, 4)
ROWS, MIXED = Sharding("sharded", 0), "mixed"


def _array(shape=SHAPE):
    return Value("argument", "x", type=Type(shape, "float32"))


def _call(op, *axis, shape=SHAPE, **attrs):
    """A call with the axis as the argument that the table says, or without that argument."""
    before = [number(1)] * ((PRIMITIVES[op].axis or 1) - 1)
    return node(op, _array(), *before, *map(number, axis), type=Type(shape, "float32"), **attrs)


def _by_analysis(made, given):
    """The rows of a result by the row rule, of arguments with the shardings given."""
    given = (*given, *[REPLICATED] * (len(made.args) - len(given)))
    try:
        return RULES[PRIMITIVES[made.op].rows](Call(made, given, BATCH))
    except Mixed:
        return MIXED


def _by_native(made):
    """The rows of a result by the rule that tiles a batch; None if it is not tiled."""
    found = rule_of(made)(made, tensors(made), BATCH)
    return found and found[0]


def test_every_name_in_the_table_has_a_function_and_every_function_a_primitive():
    fields = [(p.rows, p.view, p.kernel, p.composed) for p in PRIMITIVES.values()]
    rows, views, kernels, composed = (set(names) - {""} for names in zip(*fields, strict=True))
    assert rows == {*RULES, "constant", "unknown", "native"}
    assert views == {*OFFSETS, "reshape", "parts"}
    assert kernels == set(KERNELS)
    assert composed == set(DECOMPOSITIONS)


def test_a_primitive_has_native_code_of_one_kind_or_none():
    for op, p in PRIMITIVES.items():
        kinds = (p.cpp is not None, *map(bool, (p.view, p.kernel, p.composed, p.update)))
        assert sum(kinds) == p.native, op
        assert p.native or p.rows != "unknown", op
        assert not p.writes or p.kernel or p.update, op


def test_native_loops_over_elements_are_elementwise_for_rows():
    for op in ELEMENTWISE:
        rule = PRIMITIVES[op].rows
        if rule == "constant":
            assert reads(op) == set(), op
        elif rule != "native":
            count = max(reads(op), default=1) + 1
            args, given = [_array() for _ in range(count)], [ROWS] * count
            if op == "BiasAdd":  # its second argument is a vector
                args[1], given[1] = _array(SHAPE[1:]), REPLICATED
            made = node(op, *args, type=Type(SHAPE, "float32"))
            assert _by_analysis(made, given) == ROWS, op
            assert _by_native(made) == [BY_ROWS], op


def test_reductions_mix_the_rows_of_their_axes():
    for op in (op for op, primitive in PRIMITIVES.items() if primitive.rows == "reduces"):
        for axis, shape, wanted in ((0, SHAPE[1:], MIXED), (1, SHAPE[:1], ROWS), (-2, (4,), MIXED)):
            made = _call(op, axis, shape=shape)
            assert _by_analysis(made, [ROWS]) == wanted, op
            if PRIMITIVES[op].kernel in ("sum", "fold"):
                assert reduced_axes(made) == [axis % 2], op
            if op in SUMS:
                assert _by_native(made) == [SUM if wanted == MIXED else BY_ROWS], op


def test_operations_along_an_axis_mix_the_rows_of_that_axis_only():
    for op in (op for op, primitive in PRIMITIVES.items() if primitive.rows == "along"):
        last = _call(op) if PRIMITIVES[op].axis is None else _call(op, -1)
        assert _by_analysis(last, [ROWS]) == ROWS, op
        assert _by_analysis(last, [Sharding("sharded", 1)]) == MIXED, op
        if PRIMITIVES[op].kernel == "softmax":
            assert _by_native(last) == [BY_ROWS]
            assert _by_native(_call(op, 0)) is None


def test_products_keep_the_rows_of_their_first_argument():
    for op in PRODUCTS:
        more = SHAPE[:1] if op.startswith("Batch") else ()
        x, y = _array((*more, *SHAPE)), _array((*more, 4, 4))
        made = node(op, x, y, type=x.type)
        assert _by_analysis(made, [ROWS, ROWS if more else REPLICATED]) == ROWS, op
        assert _by_native(made) == [BY_ROWS], op


def test_both_sides_read_the_same_axis():
    for op, primitive in PRIMITIVES.items():
        if primitive.axis is not None:
            for made in (_call(op, 1), _call(op, axis=1)):
                assert Call(made, (), BATCH).axis() == axis_of(made) == 1, op
            without = Call(_call(op), (), BATCH)
            if primitive.default is None:
                with pytest.raises(Undecided):
                    without.axis()
            else:
                assert without.axis() == axis_of(without.node) == primitive.default, op


@pytest.mark.parametrize("given", [(ROWS, ROWS), (REPLICATED, ROWS)])
def test_weights_of_a_convolution_have_no_rows(given):
    """Each of their rows would make a channel."""
    made = node("Conv2D", _array(), _array(), type=Type(SHAPE, "float32"))
    with pytest.raises(Undecided):
        _by_analysis(made, given)
