"""Tests of operators that stand in cells for what Python does with its numbers."""

import numpy as np
import pytest
from mindspore import Tensor

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
