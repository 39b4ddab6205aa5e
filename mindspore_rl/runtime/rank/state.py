"""State of a rank in checkpoints: saves and restores it.

Everything is keyed by name and global environment index, so that a run can resume under another
policy and with another number of workers.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError, NumericsError, ProgramError
from mindspore_rl.plan.plan import STATE
from mindspore_rl.plan.stages import Stage
from mindspore_rl.runtime import arrivals_log, checkpoint, resuming
from mindspore_rl.runtime.checkpoint import lagged
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.env_shard import Share
from mindspore_rl.runtime.rank.older_parameters import OlderParameters
from mindspore_rl.runtime.rank.replay_checkpoint import ReplaySegments, written


class RankState:
    """Saves and restores the state of one rank's fragment.

    Args:
        share: all environments of the rank.
        older: the actor's older parameters, if the rank keeps them; else they wait in messages.

    Attributes:
        carried: returns the variables that an iteration takes over from the one before.
        restored: carried variables of the checkpoint just loaded.
        iterations: done by each environment's worker, `[num_envs]`.
        native: whether each cell is native, by name; `native_before`: in the checkpoint loaded.
    """

    def __init__(self, share: Share, older: OlderParameters | None = None) -> None:
        self._rank, self._share = share.rank, share
        self._older = older or share.exchange
        self.trainer = share.exchange.trainer
        self.carried: Callable[[], dict[str, Any]] = dict
        self.restored: dict[str, np.ndarray] = {}
        self.iterations = np.zeros(share.rank.plan.num_envs, np.int64)
        self.native: dict[str, bool] = {}
        self.native_before: dict[str, bool] = {}
        self._replays = {
            name: ReplaySegments(share.rank, kept, name) for name, kept in share.replays.items()
        }

    def save(self) -> None:
        """Gathers all ranks' state on rank 0, which begins to write the checkpoint.

        Each rank writes its replay itself. No rank waits for the disk, unless the checkpoint before
        is still being written.
        """
        rank = self._rank
        rank.background.wait()
        keyed = {
            "|".join([name, *(f"{axis},{first}" for axis, first in self._place(*axes))]): value
            for name, (value, *axes) in self._collect().items()
        }
        parts = rank.messenger.gather_arrays(keyed, Stage.CHECKPOINT)
        if rank.number != 0:
            return
        arrays = merge(parts)
        replays = written(arrays)
        for name, value in arrays.items():
            if name.startswith("parameters/") and not np.isfinite(value).all():
                raise NumericsError(
                    f"iteration {rank.iteration}: {name} is not finite; lower the learning rate "
                    "(the last good checkpoint is kept)"
                )
        plan = rank.plan
        about = {
            "algorithm": plan.algorithm["name"],
            "policy": plan.policy,
            "config": plan.config,
            "environment": plan.environment,
            "library": plan.library,
            "action_mask": plan.action_mask,
            "layout": str(plan.layout),
            "num_envs": plan.num_envs,
            "env_steps": rank.env_steps,
            "steps_per_iteration": plan.steps_per_iteration,
            **replays,
        }
        rank.background.begin(partial(self._write, rank.iterations_done, arrays, about))

    def _write(self, iteration: int, arrays: dict[str, Any], about: dict[str, Any]) -> None:
        """Writes a checkpoint after its segments, metrics and log; tells the coordinator."""
        rank, folder = self._rank, self._rank.run_dir / checkpoint.FOLDER
        if checkpoint.await_segments(folder, about, rank.background.ended) and rank.await_metrics():
            arrivals_log.make_durable(rank.run_dir)
            path = checkpoint.save(folder, iteration, arrays, about)
            rank.link.send("checkpoint", rank=0, iteration=iteration, path=str(path))

    def save_ahead(self) -> None:
        """Begins to write what the next checkpoint needs of the replay, if that is much already.

        Files are removed by the iteration in their names. A rank's `env_steps`, of which it is
        computed, may be behind those of the rank that writes the checkpoint, but is never less
        than in the last checkpoint.

        Raises:
            StorageError: what was begun before has failed: the disk is full or faulty.
        """
        self._rank.background.look()
        if self._has_replay:
            for name, segments in self._replays.items():
                segments.write_ahead(self._inserted(name))

    @property
    def _has_replay(self) -> bool:
        plan, components = self._rank.plan, self._rank.fragment.components
        return "replay" in components and plan.checkpoint_replay

    def _place(self, axis: int | None, agent_axis: int | None = None) -> list[tuple[int, int]]:
        """Returns the sharded axes of an array, and the first index of this rank on each."""
        rank = self._rank
        place = [] if axis is None else [(axis, rank.env_indices.start)]
        if agent_axis is not None and rank.agents is not None:
            place.append((agent_axis, rank.agents.share.start))
        return place

    def _collect(self) -> dict[str, tuple]:
        """Returns the arrays that this rank saves, with their axes of environments and agents."""
        rank = self._rank
        state: dict[str, tuple] = {}
        for name, value in self.carried().items():
            if name == STATE:
                state["environment/state"] = (to_host(value), 0)
                continue
            meta = rank.plan.carried[name]
            if meta.split or rank.replica == 0:
                state[f"variables/{name}"] = (to_host(value), meta.axis, meta.agent_axis)
        if rank.served:
            iterations = np.full(len(rank.env_indices), rank.iteration)
            state["counters/iterations"] = (iterations, 0)
        if self._has_replay:
            for name, segments in self._replays.items():
                inserted = self._inserted(name)
                state[checkpoint.inserted_of(name)] = (inserted, 0)
                state |= segments.write(inserted)
        if rank.stepping:
            state["episodes/return"] = (self._share.episodes.returns, 0)
            state["episodes/length"] = (self._share.episodes.lengths, 0)
        if self._share.vector is not None:
            for name, value in (self._share.vector.get_state() or {}).items():
                state[f"environment/{name}"] = (value, 0)
        if "update" in rank.fragment.components and rank.replica == 0:
            for name, parameter in self._parameters():
                state[f"parameters/{name}"] = (parameter.asnumpy().copy(), None)
        if rank.replica == 0:
            for age, version in enumerate(self._older.older(), 1):
                for name, value in version.items():
                    state[lagged(age, name)] = (value, None)
        if rank.replica == 0:
            for name, native in self.native.items():
                state[f"cells/{rank.fragment.name}/{name}"] = (np.array(native), None)
        return state

    def _inserted(self, name: str) -> np.ndarray:
        """Returns the number of records ever inserted for each environment of this rank."""
        rank, kept = self._rank, self._share.replays[name]
        if kept.dtypes:  # a cell writes them, as many in every iteration
            each = rank.iteration * rank.plan.replays[name].per_iteration
            kept.inserted = np.full(kept.num_envs, each)
        return kept.inserted

    def load(self, path: Path) -> None:
        """Loads this rank's part of a checkpoint; carried variables go to `restored`.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another job.
        """
        rank = self._rank
        self._share.exchange.settle()
        arrays, meta = checkpoint.load(path, replay=False)
        resuming.check_job(path, meta, rank.plan)
        rank.iteration, rank.env_steps = resuming.counted_from(meta, rank.plan)
        others = meta["num_envs"] != rank.plan.num_envs
        self.iterations[:] = rank.iteration
        if meta["steps_per_iteration"] == rank.plan.steps_per_iteration and not others:
            self.iterations[:] = arrays.get("counters/iterations", rank.iteration)
        if rank.served:
            rank.iteration = int(self.iterations[rank.env_indices].max())
        prefix = f"cells/{rank.fragment.name}/"
        self.native_before = {
            name.removeprefix(prefix): bool(value)
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
        try:
            self._take_parameters(arrays)
            for name in self._replays:
                self._take_replay(name, path, arrays, meta)
            stateless = not any(name.startswith("environment/") for name in arrays)
            self._take_carried(arrays, anew=stateless or others)
            if not (stateless or others):
                self._take_environments(arrays)
            elif not (others or rank.plan.load_at) and self._share.vector is not None:
                rank.note("environments without state were reset")
        except KeyError as error:
            raise CheckpointError(
                f"checkpoint {path} has no {error}, which {rank.plan.environment} needs: it was "
                "written with another version of that environment"
            ) from error

    def _parameters(self) -> list[tuple[str, Any]]:
        from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415

        return named_parameters(self.trainer, "state")

    def _take_parameters(self, arrays: dict[str, np.ndarray]) -> None:
        if self.trainer is None:
            return
        from mindspore_rl.rl.parameters import set_parameter  # noqa: PLC0415

        for name, parameter in self._parameters():
            set_parameter(parameter, arrays[f"parameters/{name}"])
        versions: list[Mapping[str, np.ndarray]] = [
            {name: arrays[f"parameters/{name}"] for name, _ in self._parameters()}
        ]
        for age in range(1, self._older.lag + 1):  # a checkpoint may hold fewer
            before = versions[-1]
            versions.append({n: arrays.get(lagged(age, n), before[n]) for n in before})
        self._older.take(versions)

    def _take_replay(
        self, name: str, path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> None:
        rank, kept = self._rank, self._share.replays[name]
        if "replay" not in rank.fragment.components:
            return
        in_step = np.full(
            rank.plan.num_envs, rank.iteration * rank.plan.replays[name].per_iteration
        )
        inserted = arrays.get(checkpoint.inserted_of(name), in_step)
        if kept.dtypes and (inserted != in_step).any():
            raise CheckpointError(
                f"checkpoint {path} holds different numbers of records of the environments, as an "
                "asynchronous run keeps them, and a compiled loop writes as many for each: resume "
                "it under another policy, such as SingleLearnerCoarse"
            )
        kept.began[:] = self._replays[name].take(path, meta, inserted)
        kept.inserted = kept.began[rank.env_indices]

    def _take_carried(self, arrays: dict[str, np.ndarray], anew: bool) -> None:
        """Restores the loop's variables; with `anew` without those that are per environment.

        Environments whose state was not saved, or whose number has changed, were reset when the
        program started; the loop's per-environment variables belong to those new episodes.
        """
        rank = self._rank
        share = slice(rank.env_indices.start, rank.env_indices.stop)
        for name, value in self.carried().items():
            if name == STATE:
                self.restored[name] = value if anew else arrays["environment/state"][share]
                continue
            meta = rank.plan.carried[name]
            if anew and meta.axis is not None:
                self.restored[name] = value
                continue
            found = arrays[f"variables/{name}"]
            chosen = [slice(None)] * found.ndim
            if meta.axis is not None:
                chosen[meta.axis] = share
            if meta.agent_axis is not None and rank.agents is not None:
                agents = rank.agents.share
                chosen[meta.agent_axis] = slice(agents.start, agents.stop)
            found = found[tuple(chosen)]
            self.restored[name] = found.astype(to_host(value).dtype)

    def _take_environments(self, arrays: dict[str, np.ndarray]) -> None:
        rank = self._rank
        share = slice(rank.env_indices.start, rank.env_indices.stop)
        if rank.stepping:
            self._share.episodes.returns[:] = arrays["episodes/return"][share]
            self._share.episodes.lengths[:] = arrays["episodes/length"][share]
        if self._share.vector is not None:
            state = {
                name.removeprefix("environment/"): value[share]
                for name, value in arrays.items()
                if name.startswith("environment/")
            }
            for name in self._share.vector.get_state() or {}:
                if name not in state:
                    raise KeyError(f"environment/{name}")
            self._share.vector.set_state(state)

    def compare_parameters(self) -> None:
        """Checks that all ranks have made the same initial parameters.

        Raises:
            ProgramError: this rank's parameters differ from those of the rank that updates them.
        """
        rank = self._rank
        if rank.messenger.alone or not rank.fragment.needs_tensors:
            return
        fragments = rank.plan.fragments
        source = next(f for f in fragments if "update" in f.components).first_rank
        own = {name: parameter.asnumpy() for name, parameter in self._parameters()}
        if rank.number == source:
            for other in (r for f in fragments if f.needs_tensors for r in f.ranks if r != source):
                rank.messenger.send_arrays(other, own)
            return
        expected = rank.messenger.receive_arrays(source, Stage.BOUNDARY)
        if evidence := _difference(own, expected):
            raise ProgramError(
                f"this rank's trainer has other parameters than that of "
                f"{rank.plan.rank_name(source)}: {evidence}. `__init__` of the trainer has to make "
                "the same ones in each process: of its config and spec alone, and of random "
                "numbers whose generators config.seed seeds"
            )


def _difference(own: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str:
    """Describes the first parameter that differs; empty if none does."""
    for name, other in zip_longest(own, expected):
        if name != other:
            return f"{name or 'none'} in the place of {other or 'none'}"
        mine, wanted = own[name], expected[name]
        types = [f"{list(value.shape)} {value.dtype}" for value in (mine, wanted)]
        if types[0] != types[1]:
            return f"{name} is {types[0]}, and {types[1]} there"
        if mine.tobytes() != wanted.tobytes():
            return f"{name} has other initial values"
    return ""


def merge(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Joins the ranks' shares along their axes of environments and of agents.

    Args:
        parts: of each rank, by `name|axis,first|axis,first`, where first is the global index at
            which the share begins on an axis; an array without axes is replicated.
    """
    pieces: dict[str, list[tuple[list[tuple[int, int]], np.ndarray]]] = {}
    for part in parts:
        for key, value in part.items():
            name, *axes = key.split("|")
            place = [(int(axis), int(first)) for axis, first in (a.split(",") for a in axes)]
            pieces.setdefault(name, []).append((place, value))
    return {name: _joined(found) for name, found in pieces.items()}


def _joined(pieces: list[tuple[list[tuple[int, int]], np.ndarray]]) -> np.ndarray:
    place, value = pieces[0]
    if not place:
        return value.copy()  # of what the next iteration may change
    shape = list(value.shape)
    for found, piece in pieces:
        for axis, first in found:
            shape[axis] = max(shape[axis], first + piece.shape[axis])
    whole = np.empty(shape, value.dtype)
    for found, piece in pieces:
        chosen = [slice(None)] * whole.ndim
        for axis, first in found:
            chosen[axis] = slice(first, first + piece.shape[axis])
        whole[tuple(chosen)] = piece
    return whole
