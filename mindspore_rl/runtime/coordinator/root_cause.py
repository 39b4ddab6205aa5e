"""Root cause of a failure: of the errors that ranks report, the one that caused the others."""

from collections.abc import Collection
from typing import Any

from mindspore_rl.plan.plan import Plan

LAST_WORDS_S = 0.3
"""How long a death waits for an error that explains it, and an error for one that came before."""
CAUSE_S = 2.0
"""How long an error that may come of another rank's waits for that: cells end together, and what
each says then depends on who gets a processor first."""


class Causes:
    """Errors of a job, the first one of each rank.

    Args:
        plan: the job.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._told: dict[int, dict[str, Any]] = {}
        self._first_s = 0.0

    def add(self, rank: int, error: dict[str, Any], now: float) -> None:
        """Takes an `error` of `communication/link.py`."""
        self._first_s = self._first_s if self._told else now
        self._told.setdefault(rank, error)

    def __bool__(self) -> bool:
        return bool(self._told)

    def __contains__(self, rank: int) -> bool:
        return rank in self._told

    def found(self, now: float, gone: Collection[int]) -> tuple[int, dict[str, Any]] | None:
        """The error that all others may come of, and its rank; None: a better one may follow.

        An echo says only that another rank has ended: one that died has died before it.

        Args:
            now: the time.
            gone: ranks that have nothing more to say.
        """
        rank = min(self._told, key=self._order)
        error = self._told[rank]
        wait_s = CAUSE_S if error["symptom"] or error["echo"] else LAST_WORDS_S
        if now - self._first_s < wait_s and len({*self._told, *gone}) < self._plan.num_ranks:
            return None
        return rank, error

    def _order(self, rank: int) -> tuple[bool, int, bool]:
        """Echoes last; by iteration, where all ranks keep step, then causes before symptoms."""
        error = self._told[rank]
        in_step = self._plan.arrivals is None
        iteration = max(error["iteration"], 0) if in_step else 0
        return error["echo"], iteration, error["symptom"]
