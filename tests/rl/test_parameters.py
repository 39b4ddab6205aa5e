"""Names of an agent's parameters."""

import mindspore as ms
import pytest
from mindspore import Parameter, nn, ops

from mindspore_rl.api import Learner
from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.native_cell import unit_of
from mindspore_rl.rl.parameters import find_parameters
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell
from tests.codegen.units import graph_mode


class RMSProp(nn.Cell):
    def __init__(self, parameters):
        super().__init__()
        self.parameters = list(parameters)
        squares = (ops.zeros_like(p) for p in parameters)
        self.squares = [Parameter(x, name=f"square {i}") for i, x in enumerate(squares)]


def test_parameters_in_lists_of_an_own_optimiser_are_found():
    learner = Learner()
    learner.network = nn.Dense(2, 3, dtype=ms.float32)
    learner.optimizer = RMSProp(learner.network.trainable_params())
    find_parameters(learner)
    names = {name for name, _ in learner.parameters_and_names()}
    squares = {"optimizer.squares.0", "optimizer.squares.1"}
    assert names == {"network.weight", "network.bias"} | squares
    assert {p.name for p in learner.optimizer.squares} == squares


class Moments:
    def __init__(self):
        self.mean = Parameter(ms.Tensor(1.0, ms.float32), name="mean")


class Unmarked:
    __init__ = Moments.__init__


class Centred(nn.Cell):
    def __init__(self, moments):
        super().__init__()
        self.moments = moments

    def construct(self, x):
        return x - self.moments.mean


def test_a_parameter_of_an_object_is_no_constant_of_a_compiled_cell():
    """MindSpore's graph has no name for it, and native code kept the value of the compilation."""
    found, given = Centred(Moments()), ms.Tensor(3.0, ms.float32)
    find_parameters(found)
    with graph_mode():
        assert unit_of(CompiledCell(found).graph(given)).weights == ("moments.mean",)
        with pytest.raises(Unsupported, match="holds as a constant"):
            unit_of(CompiledCell(Centred(Unmarked())).graph(given))
