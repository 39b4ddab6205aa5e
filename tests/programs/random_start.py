"""Initial weights from a generator that the program does not seed."""

import numpy as np
from mindspore import Tensor

from tests.programs.two_phase import Config, TwoPhase


class RandomStart(TwoPhase):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        weight = self.actor.net.policy.weight
        weight.set_data(Tensor(np.random.normal(size=weight.shape), weight.dtype))
