"""A vector of environments that can be stepped in chunks."""

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec, VectorEnvironment
from mindspore_rl.environments.registry import make_vector


class ChunkedVector:
    """The environments of a share, as one vector per chunk.

    Attributes:
        parts: the vectors of the chunks.
    """

    def __init__(self, name: str, chunks: list[range], seed: int) -> None:
        """Builds the vectors.

        Args:
            name: see `make_vector`.
            chunks: global indices of each chunk; together they are consecutive environments.
            seed: the run's seed.
        """
        self.parts: list[VectorEnvironment] = [make_vector(name, chunk, seed) for chunk in chunks]
        self.spec: EnvironmentSpec = self.parts[0].spec
        first = min(chunk.start for chunk in chunks)
        self._rows = [slice(chunk.start - first, None, chunk.step) for chunk in chunks]

    def reset(self) -> np.ndarray:
        """See `VectorEnvironment`."""
        return self._joined([part.reset() for part in self.parts])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `VectorEnvironment`."""
        pairs = zip(self.parts, self._rows, strict=True)
        outcomes = [part.step(action[rows]) for part, rows in pairs]
        return tuple(self._joined(list(values)) for values in zip(*outcomes, strict=True))

    def get_state(self) -> dict[str, np.ndarray] | None:
        """See `VectorEnvironment`."""
        states = [part.get_state() for part in self.parts]
        found = [state for state in states if state is not None]
        if len(found) < len(states):
            return None
        return {name: self._joined([state[name] for state in found]) for name in found[0]}

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """See `VectorEnvironment`."""
        return self._joined(
            [
                part.set_state({name: value[rows] for name, value in state.items()})
                for part, rows in zip(self.parts, self._rows, strict=True)
            ]
        )

    def close(self) -> None:
        """See `VectorEnvironment`."""
        for part in self.parts:
            part.close()

    def _joined(self, values: list[np.ndarray]) -> np.ndarray:
        whole = np.empty((sum(map(len, values)), *values[0].shape[1:]), values[0].dtype)
        for rows, value in zip(self._rows, values, strict=True):
            whole[rows] = value
        return whole
