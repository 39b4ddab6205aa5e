"""Environments of one generated loop: all of a rank's, or a chunk of them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mindspore_rl.environments.chunked_vector import ChunkedVector
from mindspore_rl.environments.crash_log import LastActions
from mindspore_rl.environments.error_context import GuardedVector
from mindspore_rl.environments.registry import make_vector
from mindspore_rl.environments.sync_vector import LoopVector
from mindspore_rl.plan.edges import Edge, chunk_of, plan_edges
from mindspore_rl.plan.plan import ReplayPlan
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.replay.trajectory import TrajectoryBuffer
from mindspore_rl.runtime.rank.episodes import EpisodeCounter
from mindspore_rl.runtime.rank.exchange import Exchange
from mindspore_rl.runtime.rank.rank import Rank


@dataclass(frozen=True)
class Share:
    """A rank's environments, or a chunk of them, with their replay, episodes and messages.

    Attributes:
        vector: steps them; None if they are in-graph, or if this rank has none.
        named: the kept replays that have a name.
        exchange: this rank's side of the cut edges.
    """

    rank: Rank
    env_indices: range
    vector: Any
    episodes: EpisodeCounter
    replay: TrajectoryBuffer
    kept: KeptReplay
    exchange: Exchange
    named: dict[str, KeptReplay]

    @property
    def replays(self) -> dict[str, KeptReplay]:
        """The kept replays of the job by name, perhaps empty."""
        every = {"": self.kept} | self.named
        return {name: every[name] for name in self.rank.plan.replays}

    def chunks(self) -> list["Share"]:
        """Returns the plan's chunks, which share this object's counters and buffers."""
        plan, found = self.rank.plan, []
        whole = self.rank.fragment.shares[self.rank.replica]
        for number in range(plan.chunks):
            vector = self.vector.parts[number] if self.vector is not None else None
            chunk = chunk_of(whole, number, plan.chunks)
            found.append(self._part(chunk, plan_edges(plan, number), vector))
        return found

    def parts(self) -> list["Share"]:
        """Returns the plan's parts, likewise; the environments are those of other fragments."""
        plan, found = self.rank.plan, []
        for part in plan.parts:
            fragment = replace(self.rank.fragment, shares=(part,))
            found.append(self._part(range(*part), plan_edges(plan, part=fragment)))
        return found

    def _part(self, env_indices: range, edges: dict[str, Edge], vector: Any = None) -> "Share":
        rows = self.places(env_indices)
        return replace(
            self,
            env_indices=env_indices,
            vector=vector,
            episodes=self.episodes.part(rows),
            replay=self.replay.part(rows, len(self.env_indices)),
            kept=self.kept.part(rows),
            exchange=Exchange(self.rank, edges, self.exchange.trainer),
            named={name: kept.part(rows) for name, kept in self.named.items()},
        )

    def places(self, chunk: range) -> slice:
        """Returns the positions of a chunk's or part's environments among these."""
        return _places(chunk, self.env_indices)


def whole_share(rank: Rank, trainer: Any, threads: int) -> Share:
    """Makes the share of all environments of a rank.

    Args:
        rank: that steps them.
        trainer: its parameters are exchanged; None on a rank without tensors.
        threads: number of threads that may step environments.
    """
    plan, steps = rank.plan, rank.stepping and not rank.plan.in_graph

    def kept(name: str) -> KeptReplay:
        held = plan.replays.get(name, ReplayPlan())
        how = held.capacity, held.by_priority, plan.num_envs, plan.replay_dir
        return KeptReplay(len(rank.env_indices), *how)

    return Share(
        rank,
        rank.env_indices,
        _vector(rank, threads) if steps else None,
        EpisodeCounter(len(rank.env_indices)),
        TrajectoryBuffer(),
        kept(""),
        Exchange(rank, plan_edges(plan), trainer),
        {name: kept(name) for name in plan.replays if name},
    )


def _vector(rank: Rank, threads: int) -> Any:
    """Makes environments whose errors and hangs name the environment and its last action."""
    plan, own = rank.plan, rank.env_indices
    if plan.chunks == 1:
        vector = make_vector(plan.environment, own, plan.seed)
        last = LastActions(rank.run_dir, rank.number, vector.spec, len(own))
        if isinstance(vector, LoopVector):
            vector.at_work, vector.threads = last.at_work, threads
        return GuardedVector(vector, own, last.write)
    share = rank.fragment.shares[rank.replica]
    chunks = [chunk_of(share, number, plan.chunks) for number in range(plan.chunks)]
    whole = ChunkedVector(plan.environment, chunks, plan.seed)
    last = LastActions(rank.run_dir, rank.number, whole.spec, len(own))
    whole.parts = [
        GuardedVector(part, chunk, partial(last.write, rows=_places(chunk, own)))
        for part, chunk in zip(whole.parts, chunks, strict=True)
    ]
    return whole


def _places(chunk: range, among: range) -> slice:
    first = chunk.start - among.start
    return slice(first, first + len(chunk) * chunk.step, chunk.step)
