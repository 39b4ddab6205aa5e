"""Older parameters of the actor, kept by a fragment that has the newest ones too."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np


class OlderParameters:
    """The actor's parameters after each of the last iterations; a second actor has the oldest.

    Args:
        trainer: its actor has the newest parameters.
        second: a second trainer, whose actor acts.
        lag: number of iterations that the second actor's parameters are older.
    """

    def __init__(self, trainer: Any, second: Any, lag: int) -> None:
        from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415  (MindSpore)

        self.actor, self.lag = second.actor, lag
        self.actor.update_parameters_name("older.")  # one cell has the parameters of both
        self._newest = named_parameters(trainer, "actor")
        self._in_use = [parameter for _, parameter in named_parameters(second, "actor")]
        self._versions = deque([self._read()] * (lag + 1), maxlen=lag + 1)  # the oldest first

    def keep(self) -> None:
        """After an iteration: keeps the newest parameters, and takes the next ones into use."""
        self._versions.append(self._read())
        self._use_oldest()

    def older(self) -> list[dict[str, np.ndarray]]:
        """Returns parameters by name: those before the newest, the newest first."""
        return list(self._versions)[-2::-1]

    def take(self, versions: list[Mapping[str, np.ndarray]]) -> None:
        """Replaces all parameters but the newest.

        Args:
            versions: the newest, then `lag` older ones, by name.
        """
        self._versions.extend(
            {name: version[name] for name, _ in self._newest} for version in reversed(versions)
        )
        self._use_oldest()

    def _read(self) -> dict[str, np.ndarray]:
        return {name: np.array(parameter.asnumpy()) for name, parameter in self._newest}

    def _use_oldest(self) -> None:
        from mindspore_rl.rl.parameters import write_parameters  # noqa: PLC0415

        data = b"".join(value.tobytes() for value in self._versions[0].values())
        write_parameters(self._in_use, np.frombuffer(data, np.uint8))
