"""How many threads step the environments of a rank: as many as they declare, or as is faster.

A step that computes without Python's lock still takes and returns it, which can cost more than the
other cores gain: on two cores, a step of eight HalfCheetahs took 0.39 ms on one thread and 0.65 ms
on two. The results of a step do not depend on the choice.
"""

import statistics
import time
from typing import Any

from mindspore_rl.errors import EnvironmentFailure

TURNS = 12
"""Steps on each number of threads; the first ones also start the threads."""


class Trial:
    """Measures steps on one thread and on several in turn, then keeps to the faster.

    Args:
        threads: the several.
    """

    def __init__(self, threads: int) -> None:
        self._times: dict[int, list[float]] = {1: [], threads: []}
        self._began = 0.0
        self._chosen: int | None = None

    def begin(self) -> int:
        """Begins a step. Returns: its number of threads."""
        if self._chosen is not None:
            return self._chosen
        self._began = time.perf_counter()
        return min(self._times, key=lambda threads: len(self._times[threads]))

    def end(self, threads: int) -> None:
        """Ends a step that ran on so many threads."""
        if self._chosen is not None:
            return
        self._times[threads].append(time.perf_counter() - self._began)
        if all(len(times) == TURNS for times in self._times.values()):
            self._chosen = min(self._times, key=lambda n: statistics.median(self._times[n]))


def declared(name: str, env: Any) -> int:
    """Returns the number of threads that may step environments, by their `metadata`.

    Returns: 0: one; 1: as many as the rank has cores if that is faster; n: at least n.
    """
    found = (getattr(env, "metadata", None) or {}).get("concurrent", False)
    if not isinstance(found, (bool, int)) or found < 0:
        raise EnvironmentFailure(
            f"environment {name!r} has metadata['concurrent'] = {found!r}, expected True (stepped "
            "on as many threads as the rank has cores, if that is faster) or a number of threads "
            "at least"
        )
    return int(found)
