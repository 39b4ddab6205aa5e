"""Names of an agent's parameters."""

import mindspore as ms
from mindspore import Parameter, nn, ops

from mindspore_rl.api import Learner
from mindspore_rl.rl.parameters import find_parameters


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
