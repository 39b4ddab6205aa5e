"""Python that a compiled cell cannot contain: parameters are looked up while acting.

The analysis does not reach it with its few environments.
"""

from tests.programs.a2c import A2C
from tests.programs.small_agents import Act


class LooksUpParameters(Act):
    def act(self, obs, noise):
        if obs.shape[0] > 6:
            for _ in self.net.parameters_and_names():
                obs = obs + 0.0
        return super().act(obs, noise)


class Uncompilable(A2C):
    def __init__(self, config, spec):
        super().__init__(config, spec)
        self.actor = LooksUpParameters(self.actor.net)
