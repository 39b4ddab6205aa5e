"""A rank's part of a checkpoint: what it saves, and what it takes from one.

Everything is keyed by name and global environment index, so that a run continues under another
policy and another number of workers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindspore_rl.errors import CheckpointError, NumericsError
from mindspore_rl.plan.plan import STATE
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.rank.arrays import to_host

if TYPE_CHECKING:
    from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime


class RankState:
    """Saves and restores the state of one rank's fragment."""

    def __init__(self, runtime: "FragmentRuntime") -> None:
        self._runtime = runtime
        self.carried: Callable[[], dict[str, Any]] = dict
        self.restored: dict[str, np.ndarray] = {}
        self.iterations = np.zeros(runtime.plan.num_envs, np.int64)
        self.kinds_before: dict[str, bool] = {}

    def save(self, stage: int) -> None:
        """Gathers all ranks' state on rank 0, which writes it."""
        runtime = self._runtime
        keyed = {
            "|".join([name, *(f"{axis},{first}" for axis, first in self._place(*axes))]): value
            for name, (value, *axes) in self._collect().items()
        }
        parts = runtime.messenger.gather_arrays(keyed, stage)
        if runtime.rank != 0:
            return
        arrays = merge(parts)
        for name, value in arrays.items():
            if name.startswith("parameters/") and not np.isfinite(value).all():
                raise NumericsError(
                    f"iteration {runtime.iteration}: {name} is not finite; the "
                    "checkpoint before this one is kept"
                )
        plan = runtime.plan
        path = checkpoint.save(
            runtime.run_dir / checkpoint.FOLDER,
            runtime.env_steps // plan.steps_per_iteration,
            arrays,
            {
                "algorithm": plan.algorithm["name"],
                "policy": plan.policy,
                "config": plan.config,
                "environment": plan.environment,
                "num_envs": plan.num_envs,
                "env_steps": runtime.env_steps,
                "steps_per_iteration": plan.steps_per_iteration,
            },
        )
        runtime.link.send("checkpoint", rank=0, iteration=runtime.iteration, path=str(path))

    def _place(self, axis: int | None, agent_axis: int | None = None) -> list[tuple[int, int]]:
        """Axes of an array of which this rank has a share, and where its share begins."""
        runtime = self._runtime
        place = [] if axis is None else [(axis, runtime.env_indices.start)]
        if agent_axis is not None and runtime.agents is not None:
            place.append((agent_axis, runtime.agents.share.start))
        return place

    def _collect(self) -> dict[str, tuple]:
        """What this rank must save: arrays with the axes of environments and of agents, if any."""
        runtime = self._runtime
        state: dict[str, tuple] = {}
        for name, value in self.carried().items():
            if name == STATE:
                state["environment/state"] = (to_host(value), 0)
                continue
            meta = runtime.plan.carried[name]
            if meta.split or runtime.replica == 0:
                state[f"variables/{name}"] = (to_host(value), meta.axis, meta.agent_axis)
        if self._on_its_own:
            iterations = np.full(len(runtime.env_indices), runtime.iteration)
            state["counters/iterations"] = (iterations, 0)
        if "environment" in runtime.fragment.components:
            state["episodes/return"] = (runtime.episodes.returns, 0)
            state["episodes/length"] = (runtime.episodes.lengths, 0)
        if runtime.vector is not None:
            for name, value in (runtime.vector.get_state() or {}).items():
                state[f"environment/{name}"] = (value, 0)
        if "update" in runtime.fragment.components and runtime.replica == 0:
            for name, parameter in runtime.named_parameters("state"):
                state[f"parameters/{name}"] = (parameter.asnumpy().copy(), None)
        if runtime.replica == 0:
            for name, native in runtime.kinds.items():
                state[f"cells/{runtime.fragment.name}/{name}"] = (np.array(native), None)
        return state

    def load(self, path: Path) -> None:
        """Takes this rank's part of a checkpoint; carried variables wait in `restored`.

        Raises:
            CheckpointError: it is damaged, or of another job.
        """
        runtime = self._runtime
        arrays, meta = checkpoint.load(path)
        if meta["num_envs"] != runtime.plan.num_envs:
            raise CheckpointError(
                f"checkpoint {path} has num_envs={meta['num_envs']}, this job "
                f"{runtime.plan.num_envs}: they must be equal"
            )
        runtime.iteration = meta["iteration"]
        steps = runtime.iteration * runtime.plan.steps_per_iteration
        runtime.env_steps = meta.get("env_steps", steps)
        self.iterations[:] = arrays.get("counters/iterations", meta["iteration"])
        if self._on_its_own:
            runtime.iteration = int(self.iterations[runtime.env_indices].max())
        prefix = f"cells/{runtime.fragment.name}/"
        self.kinds_before = {
            name.removeprefix(prefix): bool(value)
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
        try:
            self._take_parameters(arrays)
            stateless = not any(name.startswith("environment/") for name in arrays)
            self._take_carried(arrays, stateless)
            if not stateless:
                self._take_environments(arrays)
            elif runtime.vector is not None:
                runtime.note("environments without state were reset")
        except KeyError as error:
            raise CheckpointError(
                f"checkpoint {path} has no {error}: it was written by another program, or with "
                f"another form of the environment; this job runs "
                f"{runtime.plan.algorithm['name']} on {runtime.plan.environment}"
            ) from error

    @property
    def _on_its_own(self) -> bool:
        """Whether this rank counts iterations that are not those of others."""
        arrivals = self._runtime.plan.arrivals
        return arrivals is not None and arrivals.sender == self._runtime.fragment.name

    def _take_parameters(self, arrays: dict[str, np.ndarray]) -> None:
        if self._runtime.trainer is None:
            return
        from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

        for name, parameter in self._runtime.named_parameters("state"):
            value = arrays[f"parameters/{name}"]
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"{name} has shape {value.shape} in the checkpoint and {parameter.shape} "
                    "in this job: leave the sizes of the networks as they were"
                )
            set_parameter(parameter, value)

    def _take_carried(self, arrays: dict[str, np.ndarray], stateless: bool) -> None:
        """Takes the loop's variables, of stateless environments only what is not theirs.

        Environments whose state cannot be had were reset when the program started, and what the
        loop carries of each belongs to those new episodes.
        """
        runtime = self._runtime
        share = slice(runtime.env_indices.start, runtime.env_indices.stop)
        for name, value in self.carried().items():
            if name == STATE:
                self.restored[name] = value if stateless else arrays["environment/state"][share]
                continue
            meta = runtime.plan.carried[name]
            if stateless and meta.axis is not None:
                self.restored[name] = value
                continue
            found = arrays[f"variables/{name}"]
            chosen = [slice(None)] * found.ndim
            if meta.axis is not None:
                chosen[meta.axis] = share
            if meta.agent_axis is not None and runtime.agents is not None:
                agents = runtime.agents.share
                chosen[meta.agent_axis] = slice(agents.start, agents.stop)
            found = found[tuple(chosen)]
            self.restored[name] = found.astype(to_host(value).dtype)

    def _take_environments(self, arrays: dict[str, np.ndarray]) -> None:
        runtime = self._runtime
        share = slice(runtime.env_indices.start, runtime.env_indices.stop)
        if "environment" in runtime.fragment.components:
            runtime.episodes.returns[:] = arrays["episodes/return"][share]
            runtime.episodes.lengths[:] = arrays["episodes/length"][share]
        if runtime.vector is not None:
            state = {
                name.removeprefix("environment/"): value[share]
                for name, value in arrays.items()
                if name.startswith("environment/")
            }
            for name in runtime.vector.get_state() or {}:
                if name not in state:
                    raise KeyError(f"environment/{name}")
            runtime.vector.set_state(state)

    def share_parameters(self, stage: int) -> None:
        """All ranks start from the parameters of one, however an algorithm initialises them."""
        runtime = self._runtime
        if runtime.messenger.alone or not runtime.fragment.needs_tensors:
            return
        fragments = runtime.plan.fragments
        source = next(f for f in fragments if "update" in f.components).first_rank
        if runtime.rank == source:
            state = {
                f"parameters/{name}": parameter.asnumpy()
                for name, parameter in runtime.named_parameters("state")
            }
            for rank in (r for f in fragments if f.needs_tensors for r in f.ranks if r != source):
                runtime.messenger.send_arrays(rank, state)
        else:
            self._take_parameters(runtime.messenger.receive_arrays(source, stage))


def merge(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Puts shares side by side, along their axes of environments and of agents.

    Args:
        parts: of each rank, by `name|axis,first|axis,first`, where first is the global index at
            which the share begins on an axis; an array without any is whole.
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
        return value
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
