"""Timeline of all ranks: what each did when, and which peer it waited for.

events of rank 0   STAGE environment | STAGE Python | SEND to 1    | ...
spans              environment       | Python       | communication|
events of rank 1   STAGE edge: RECEIVE from 0 .................... | STAGE cell ...
spans              waiting (until 0 has sent) | communication      | compute
"""

import bisect
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.edges import plan_edges
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.runtime.profile_recorder import (
    COLLECTIVE,
    FOLDER,
    ITERATION,
    RECEIVE,
    SEND,
    STAGE,
)
from mindspore_rl.runtime.rank.messenger import BYTES_TAG, CONTROL_TAG, RECORDS_TAG

COMPUTE, ENVIRONMENT, PYTHON = "compute", "environment", "Python"
COMMUNICATION, WAITING, OTHER = "communication", "waiting", "other"
_KINDS = {
    Stage.ENVIRONMENT: ENVIRONMENT,
    Stage.PYTHON: PYTHON,
    Stage.BOUNDARY: COMMUNICATION,
    Stage.CHECKPOINT: COMMUNICATION,
    Stage.RECORDS: COMMUNICATION,
}


@dataclass(frozen=True)
class Part:
    """A part of the time: what a fragment does in a span.

    Attributes:
        fragment: that spends it.
        kind: `compute`, `environment`, `Python`, `communication`, `waiting` or `other`.
        what: the cell or message, in words.
    """

    fragment: str
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.fragment}: {self.what}"


@dataclass
class Span:
    """A span of time in which a rank does one thing.

    Attributes:
        begin: in ns on rank 0's clock, like `end`.
        causes: spans of other ranks, by rank and index, that had to end before this one could
            begin.
    """

    begin: int
    end: int
    part: Part
    causes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Timeline:
    """Spans of all ranks in some iterations of a job.

    Attributes:
        begin: in ns on rank 0's clock, like `end`.
        iterations: number of iterations.
        spans: of each rank, in order, without gaps.
    """

    plan: Plan
    begin: int
    end: int
    iterations: int
    spans: list[list[Span]]

    @property
    def iteration_ms(self) -> float:
        """The mean milliseconds of an iteration."""
        return (self.end - self.begin) / self.iterations / 1e6


def load(run_dir: Path) -> Timeline:
    """Loads the profile of a run.

    Raises:
        MsrlError: the run has no profile.
    """
    plan = load_plan(run_dir)
    if not (run_dir / FOLDER).is_dir():
        raise MsrlError(f"{run_dir} has no profile: train with --profile")
    events = []
    for rank in range(plan.num_ranks):
        path = run_dir / FOLDER / f"{rank:04d}.npz"
        try:
            with np.load(path) as file:
                found = file["events"]
                for name in ("begin", "end"):
                    found[name] += file["clock_ns"]
        except (OSError, KeyError, ValueError) as error:
            raise MsrlError(
                f"{path} cannot be read ({error}); train with --profile, until more than the first "
                "iterations are done, which are left out"
            ) from error
        events.append(found)
    return Timeline(plan, *_window(plan, events), _Reader(plan, events).spans())


def _window(plan: Plan, events: list[np.ndarray]) -> tuple[int, int, int]:
    """Finds the leader's iterations in which all ranks were recording."""
    begin = max(found["begin"][0] for found in events)
    end = min(found["end"][-1] for found in events)
    marks = events[plan.leader]["begin"][events[plan.leader]["kind"] == ITERATION]
    inside = marks[(marks >= begin) & (marks <= end)][: plan.profile + 1]
    if len(inside) < 2:
        raise MsrlError("the profile has no whole iteration; train for longer")
    return int(inside[0]), int(inside[-1]), len(inside) - 1


_Draft = tuple[Span, list[tuple[int, int]]]
_Doing = tuple[int, Part, dict[int, int]]


class _Reader:
    """Converts events to spans."""

    def __init__(self, plan: Plan, events: list[np.ndarray]) -> None:
        self._plan, self._events, self._stages = plan, events, Stages(plan)
        self._tags = {e.tag: f"message {e.message.mark}" for e in plan_edges(plan).values()}
        self._tags[CONTROL_TAG] = self._stages.words[Stage.BOUNDARY]
        self._tags[BYTES_TAG] = self._stages.words[Stage.CHECKPOINT]
        self._tags[RECORDS_TAG] = self._stages.words[Stage.RECORDS]
        self._marks = {self._stages.edge(m.name): f"message {m.mark}" for m in plan.messages}
        # Send times of messages, and times at which replicas entered collectives.
        self._sent: dict[tuple[int, int, int, int], int] = {}
        self._came: dict[tuple[str, int, int], dict[int, int]] = defaultdict(dict)
        for rank, found in enumerate(events):
            fragment, _ = plan.fragment_of(rank)
            for kind, begin, end, what, peer, number, _ in found.tolist():
                if kind == SEND:
                    self._sent[rank, peer, what, number] = end
                elif kind == COLLECTIVE:
                    self._came[fragment.name, what, number][rank] = begin

    def spans(self) -> list[list[Span]]:
        """Returns the spans of each rank."""
        found = [self._of_rank(rank) for rank in range(self._plan.num_ranks)]
        ends = [[span.end for span, _ in spans] for spans in found]
        for rank, spans in enumerate(found):
            for span, causes in spans:
                places = ((r, bisect.bisect_right(ends[r], t) - 1) for r, t in causes if r != rank)
                span.causes = tuple((r, place) for r, place in places if place >= 0)
        return [[span for span, _ in spans] for spans in found]

    def _of_rank(self, rank: int) -> list[_Draft]:
        """Returns spans without gaps, each with the ranks and times that it had to wait for."""
        fragment = self._plan.fragment_of(rank)[0].name
        found: list[_Draft] = []
        stage, at = int(Stage.PYTHON), int(self._events[rank]["begin"][0])
        for kind, begin, end, what, peer, number, _ in self._events[rank].tolist():
            drafts: list[_Doing] = [(begin, self._at_stage(fragment, stage), {})]
            if kind == STAGE:
                stage = what
            elif kind == SEND:
                drafts.append((end, Part(fragment, COMMUNICATION, self._tags[what]), {}))
            elif kind == RECEIVE:
                sent = self._sent.get((peer, rank, what, number))
                causes = {} if sent is None else {peer: sent}
                drafts += self._met(fragment, end, self._tags[what], peer, causes)
            elif kind == COLLECTIVE:
                came = self._came[fragment, what, number]
                last = max(came, key=lambda one: came[one])
                drafts += self._met(fragment, end, "a collective", last, came)
            for until, part, causes in drafts:
                if until > at or (causes and part.kind == COMMUNICATION):
                    found.append((Span(at, max(until, at), part), list(causes.items())))
                    at = max(until, at)
        return found

    def _met(
        self, fragment: str, end: int, what: str, last: int, causes: dict[int, int]
    ) -> list[_Doing]:
        """Splits time with others into the wait, named by the last rank to arrive, and the rest."""
        name = self._plan.fragment_of(last)[0].name
        waiting = Part(fragment, WAITING, f"waits for {name}: {what}")
        until = min(causes.get(last, end), end)
        return [(until, waiting, causes), (end, Part(fragment, COMMUNICATION, what), causes)]

    def _at_stage(self, fragment: str, stage: int) -> Part:
        words = self._stages.words[stage]
        if stage in _KINDS:
            return Part(fragment, _KINDS[Stage(stage)], words)
        if words.startswith("cell "):
            return Part(fragment, COMPUTE, words.removesuffix(f" of {fragment}"))
        if stage in self._marks:
            return Part(fragment, COMMUNICATION, self._marks[stage])
        return Part(fragment, OTHER, words)
