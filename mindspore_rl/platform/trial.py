"""Finds by measurement whether work is faster on one thread or on several."""

import time

EVERY = 64
"""Turns between two trials, after the first ones."""
MOST = 2
"""Trials in a row that change a choice at most."""


class Trial:
    """Chooses one thread or several, for work that has the same results on any number.

    What is faster depends on the machine: how long its cores take to exchange data, and what else
    runs on them. So the other choice is tried in turns 2, 4, 8, ... and in every 64th, and compared
    with the turn before.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._turns = 0
        self._votes = 1  # for several threads if positive
        self._trying = False
        self._began = self._before_s = 0.0

    def begin(self) -> int:
        """Begins a turn. Returns: its number of threads."""
        self._turns += 1
        doubled = self._turns > 1 and self._turns & (self._turns - 1) == 0
        self._trying = doubled or self._turns % EVERY == 0
        self._began = time.perf_counter()
        return self._threads if (self._votes > 0) != self._trying else 1

    def end(self) -> None:
        """Ends the turn."""
        took_s = time.perf_counter() - self._began
        if not self._trying:
            self._before_s = took_s
            return
        several = (self._votes > 0) != (took_s < self._before_s)
        self._votes = max(min(self._votes + (1 if several else -1), MOST), 1 - MOST)
