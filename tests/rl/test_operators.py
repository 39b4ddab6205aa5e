"""Tests of operators that stand in cells for what Python does with its numbers."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_rl.rl import operators
from mindspore_rl.rl.operators import both, either


@pytest.mark.parametrize("other", [True, False, 0.5, 2])
@pytest.mark.parametrize("value", [True, False, np.float32(0.3), np.float32(0.0), np.int32(3)])
def test_and_or_with_a_number_give_what_python_gives(value, other):
    for function, expected in [(either, value or other), (both, value and other)]:
        assert function(Tensor(value), other).asnumpy() == np.float32(expected)
        assert function(value, other) == expected


def test_and_or_of_several_numbers_are_refused():
    with pytest.raises(ValueError, match="array of several numbers"):
        either(Tensor(np.ones(2, np.float32)), True)


def test_a_gradient_ends_at_the_statistics_of_another():
    net, x = nn.Dense(3, 1), Tensor(np.arange(12.0).reshape(4, 3), ms.float32)
    loss = operators.gradient_function(lambda x: (ops.square(net(x)), 2.0 * net(x)), net, None)
    _, means, rows = loss(x)
    for told in (*means, *(row.sum() for row in rows)):
        number = Tensor(told.asnumpy())
        found, wanted = (
            operators.gradient_function(lambda x, n=n: ops.square(net(x)) * n, net, None)(x)[0]
            for n in (told, number)
        )
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
