"""Finds by measurement whether work is faster on one thread or on several."""

import math
import time
from collections import deque

EVERY = 64
"""Turns between two trials, after the first ones."""
LAST = 5
"""Turns of each choice of which the median counts."""


class Trial:
    """Chooses one thread or several, for work that has the same results on any number.

    The faster choice depends on the machine: how long its cores take to exchange data, and what
    else runs on them. So the other choice is tried in turns 2, 4, 8, ... and in every 64th, and the
    medians of the last turns of both are compared.
    """

    def __init__(self, threads: int) -> None:
        self._turns, self._began = 0, 0.0
        self._chosen, self._other, self._now = threads, 1, threads
        self._took_s = {count: deque[float]([], LAST) for count in (threads, 1)}
        self._median_s = {threads: math.inf, 1: math.inf}

    def begin(self) -> int:
        """Begins a turn. Returns: its number of threads."""
        self._turns += 1
        doubled = self._turns > 1 and self._turns & (self._turns - 1) == 0
        self._now = self._other if doubled or self._turns % EVERY == 0 else self._chosen
        self._began = time.perf_counter()
        return self._now

    def end(self) -> None:
        """Ends the turn."""
        took_s = self._took_s[self._now]
        took_s.append(time.perf_counter() - self._began)
        self._median_s[self._now] = sorted(took_s)[len(took_s) // 2]
        if self._median_s[self._other] < self._median_s[self._chosen]:
            self._chosen, self._other = self._other, self._chosen
