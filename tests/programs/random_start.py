"""PPO's stranger: initial weights that are drawn anew in every process."""

import numpy as np
from mindspore import Tensor

from tests.programs.two_phase import Config, TwoPhase


class RandomStart(TwoPhase):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        weight = self.actor.net.policy.weight
        weight.set_data(Tensor(np.random.default_rng().normal(size=weight.shape), weight.dtype))
