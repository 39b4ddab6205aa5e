"""Critical path of an iteration, and what speeding up each part would win."""

import bisect
from collections import defaultdict

from mindspore_rl.performance.timeline import WAITING, Part, Timeline


def critical_path(timeline: Timeline) -> dict[Part, int]:
    """The chain of doings, each of which had to wait for the one before, from end to begin.

    Returns: how many ns of it are spent on what; in all the whole time.
    """
    found: dict[Part, int] = defaultdict(int)
    ends = [[span.end for span in spans] for spans in timeline.spans]
    rank = max(range(len(ends)), key=lambda r: ends[r][-1])
    now, seen = min(ends[rank][-1], timeline.end), set()
    while now > timeline.begin:
        place = bisect.bisect_left(ends[rank], now)
        if place == len(ends[rank]):  # it was done with its iterations
            place, now = place - 1, ends[rank][-1]
        span = timeline.spans[rank][place]
        found[span.part] += now - max(min(span.begin, now), timeline.begin)
        now = min(span.begin, now)
        others = [(timeline.spans[r][i].end, r) for r, i in span.causes]
        last, other = max(others, default=(0, rank))
        if last >= now and (other, now) not in seen:  # it waited
            seen.add((rank, now))
            rank = other
        elif place == 0:
            break
    return dict(found)


def length(timeline: Timeline, free: Part | None = None) -> int:
    """How long, in ns, all would have taken if some part of it had taken no time.

    Everybody does what he did, in the same order and for as long as he did it; waits are over when
    what they were for is done.
    """
    return _Replay(timeline, free).length()


class _Replay:
    """The same once more, without some part of it."""

    def __init__(self, timeline: Timeline, free: Part | None) -> None:
        self._spans, self._free = timeline.spans, free
        self._clocks = [spans[0].begin for spans in self._spans]
        self._done: list[list[int]] = [[] for _ in self._spans]

    def length(self) -> int:
        """In ns."""
        left = set(range(len(self._spans)))
        begun = min(self._clocks)
        while left:
            if not sum([self._go_on(rank) for rank in left]):
                # Clocks that differ a little can make each seem to wait for another.
                self._step(min(left, key=lambda rank: self._clocks[rank]))
            left = {r for r in left if len(self._done[r]) < len(self._spans[r])}
        return max(self._clocks) - begun

    def _go_on(self, rank: int) -> int:
        """Goes on to where a rank waits for what is not done. Returns: spans that were done."""
        before = len(self._done[rank])
        for span in self._spans[rank][before:]:
            if any(place >= len(self._done[other]) for other, place in span.causes):
                break
            self._step(rank)
        return len(self._done[rank]) - before

    def _step(self, rank: int) -> None:
        span = self._spans[rank][len(self._done[rank])]
        waits = span.part.kind == WAITING and span.causes
        duration = 0 if waits or span.part == self._free else span.end - span.begin
        ready = [self._done[r][i] for r, i in span.causes if i < len(self._done[r])]
        self._clocks[rank] = max([self._clocks[rank], *ready]) + duration
        self._done[rank].append(self._clocks[rank])
