"""Critical path of an iteration, and what speeding up each part would win."""

import bisect
from collections import defaultdict

from mindspore_rl.performance.timeline import WAITING, Part, Timeline


def critical_path(timeline: Timeline) -> dict[Part, int]:
    """Finds the chain of spans, from end to begin, each of which had to wait for the one before.

    Returns: ns of the chain by part; in total the time of the timeline.
    """
    found: dict[Part, int] = defaultdict(int)
    ends = [[span.end for span in spans] for spans in timeline.spans]
    rank = max(range(len(ends)), key=lambda r: ends[r][-1])
    now, seen = min(ends[rank][-1], timeline.end), set()
    while now > timeline.begin:
        place = bisect.bisect_left(ends[rank], now)
        if place == len(ends[rank]):  # the rank had finished its iterations
            place, now = place - 1, ends[rank][-1]
        span = timeline.spans[rank][place]
        others = [(timeline.spans[r][i].end, r) for r, i in span.causes]
        last, other = max(others, default=(0, rank))
        # A woken rank goes on while the other is still in the call that has woken it.
        woken = span.part.kind == WAITING and last >= now and (other, now) not in seen
        begin = now if woken else min(span.begin, now)
        found[span.part] += now - max(begin, timeline.begin)
        now = begin
        if last >= now and (other, now) not in seen:  # the rank waited
            seen.add((rank, now))
            rank = other
        elif place == 0:
            break
    return dict(found)


def length(timeline: Timeline, free: Part | None = None) -> int:
    """Returns how many ns the iterations would take if one part took no time.

    All ranks do the same work in the same order and time; a wait ends when the work that it waits
    for is done.
    """
    return _Replay(timeline, free).length()


class _Replay:
    """Replays a timeline, with one part taking no time."""

    def __init__(self, timeline: Timeline, free: Part | None) -> None:
        self._spans, self._free = timeline.spans, free
        self._clocks = [spans[0].begin for spans in self._spans]
        self._done: list[list[int]] = [[] for _ in self._spans]

    def length(self) -> int:
        """Returns the replayed time in ns."""
        left = set(range(len(self._spans)))
        begun = min(self._clocks)
        while left:
            if not sum([self._go_on(rank) for rank in left]):
                # Small differences between clocks can make ranks seem to wait for each other.
                self._step(min(left, key=lambda rank: self._clocks[rank]))
            left = {r for r in left if len(self._done[r]) < len(self._spans[r])}
        return max(self._clocks) - begun

    def _go_on(self, rank: int) -> int:
        """Advances a rank to its next unfinished wait. Returns: number of spans done."""
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
        went_on = span.end if waits else span.begin  # perhaps before the end of its cause
        ready = [
            self._done[r][i] + min(went_on - self._spans[r][i].end, 0)
            for r, i in span.causes
            if i < len(self._done[r])
        ]
        self._clocks[rank] = max([self._clocks[rank], *ready]) + duration
        self._done[rank].append(self._clocks[rank])
