"""Any environment as tensors in and tensors out, in this process (the reference, shape probes)."""

from typing import Any, cast

import numpy as np
from mindspore import Tensor

from mindspore_rl.environments.environment import make_graph, make_vector


class LocalEnvironment:
    """All environments in this process, whatever their kind, as tensors in and tensors out."""

    def __init__(self, name: str, in_graph: bool, env_indices: range, seed: int) -> None:
        self.in_graph = in_graph
        self.state: Any = None
        built = make_graph(name) if in_graph else make_vector(name, env_indices, seed)
        self._environment = cast(Any, built)
        self.noise_size = self._environment.noise_size if in_graph else 0

    def reset(self, noise: Tensor | None) -> Tensor:
        """Returns: obs `[B, ...]`."""
        if self.in_graph:
            self.state, obs = self._environment.reset(noise)
            return obs
        return Tensor(self._environment.reset())

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Returns: next_obs, final_obs, reward, terminated, truncated."""
        if self.in_graph:
            self.state, *outcome = self._environment.step(self.state, action, noise)
            return tuple(outcome)
        return tuple(Tensor(part) for part in self._environment.step(action.asnumpy()))

    def get_state(self) -> dict[str, np.ndarray] | None:
        """The state by environment, for a checkpoint."""
        if self.in_graph:
            return {"state": self.state.asnumpy().copy()}
        return self._environment.get_state()

    def close(self) -> None:
        """Frees what a Python environment holds."""
        if not self.in_graph:
            self._environment.close()
