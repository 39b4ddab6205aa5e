"""Root cause of a failure: of the errors that ranks report, the one that caused the others."""

from collections.abc import Collection
from typing import Any

from mindspore_rl.plan.plan import Plan

LAST_WORDS_S = 0.3
"""Delay for a rank's error after its death is seen, and for an earlier error after an error."""
CAUSE_S = 2.0
"""Delay after an error that another rank's error may have caused: cells end together, and the order
of their reports depends on the scheduler."""


class Causes:
    """The errors of a job, the first of each rank."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._told: dict[int, dict[str, Any]] = {}
        self._first_s = 0.0

    def add(self, rank: int, error: dict[str, Any], now: float) -> None:
        """Adds an `error` message, see `communication/link.py`."""
        self._first_s = self._first_s if self._told else now
        self._told.setdefault(rank, error)

    def __bool__(self) -> bool:
        return bool(self._told)

    def __contains__(self, rank: int) -> bool:
        return rank in self._told

    def found(self, now: float, gone: Collection[int]) -> tuple[int, dict[str, Any]] | None:
        """Returns the root cause and its rank; None: an earlier error may still arrive.

        An echo reports only that another rank has ended: a rank that died has died before it.

        Args:
            now: the time.
            gone: ranks whose links have closed.
        """
        rank = min(self._told, key=self._order)
        error = self._told[rank]
        wait_s = CAUSE_S if error["symptom"] or error["echo"] else LAST_WORDS_S
        if now - self._first_s < wait_s and len({*self._told, *gone}) < self._plan.num_ranks:
            return None
        return rank, error

    def _order(self, rank: int) -> tuple[bool, int, bool]:
        """Sort key: echoes last; by iteration if ranks are in step; causes before symptoms."""
        error = self._told[rank]
        in_step = self._plan.arrivals is None
        iteration = max(error["iteration"], 0) if in_step else 0
        return error["echo"], iteration, error["symptom"]
