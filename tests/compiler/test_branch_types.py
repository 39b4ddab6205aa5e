"""Tests of conditional expressions whose branches have several types."""

from types import SimpleNamespace

import pytest
from mindspore import Tensor, float32, ops

from mindspore_rl.compiler.analysis.branch_types import check_branches
from mindspore_rl.compiler.ir.ir import Expr
from mindspore_rl.errors import ProgramError

INPUTS = {"m": Tensor(0.7, float32), "n": Tensor(2), "k": 3}


def _check(text):
    op = SimpleNamespace(kind="glue", args=[Expr(text)], where="a.py:1: x")
    check_branches(SimpleNamespace(names={"ops": ops}, evaluated=[(op, INPUTS)]))


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("m if m > 0.5 else 1", r"ops\.full_like\(m, 1\) in place of 1"),
        ("2.0 * (1 if m > 0.5 else 2.5)", "1.0 in place of 1"),
        ("m > 0.5 or m", "x != 0.0 in place of x"),
        ("(m, n) if m > 0.5 else (n, m)", "write one type"),
        ("m if m > 0.5 else n", r"ops\.where\(m > 0.5, m, n\)"),
    ],
)
def test_a_type_for_each_branch_is_refused(text, instead):
    with pytest.raises(ProgramError, match=instead):
        _check(text)


@pytest.mark.parametrize(
    "text",
    [
        "1.0 if m > 0.5 else 2.0",
        "m if m > 0.5 else 1.0",
        "m > 0.5 or m < 0.1",
        "(m, n) if m > 0.5 else (2.0 * m, n)",
        "m if k > 2 else 1",  # decided by Python
        "k / 0 if m > 0.5 else m",  # fails where it is evaluated
    ],
)
def test_one_type_is_left_in_peace(text):
    _check(text)
