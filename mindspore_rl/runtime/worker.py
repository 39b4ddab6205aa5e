"""One rank of a job: runs the generated source of its fragment.

`FragmentRuntime` is the `w` of generated code. It holds the rank's share of the environments, its
agent, its edges, and everything that happens at an iteration boundary: stop requests, checkpoints,
metrics.
"""

import contextlib
import ctypes
import gc
import importlib.util
import io
import os
import platform
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.communication.inproc import InprocHub
from mindspore_rl.communication.link import Link
from mindspore_rl.communication.mpi import MpiCommunicator
from mindspore_rl.environments.environment import make_graph, make_vector
from mindspore_rl.environments.environment import spec as environment_spec
from mindspore_rl.errors import CheckpointError, MsrlError, NumericsError
from mindspore_rl.lowering.plan import FragmentPlan, Plan, load_plan
from mindspore_rl.lowering.project import STATE
from mindspore_rl.programs import load_trainer
from mindspore_rl.replay.trajectory import TrajectoryBuffer
from mindspore_rl.rl import random
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.edges import Edge
from mindspore_rl.runtime.settings import WorkerSettings, worker_settings
from mindspore_rl.runtime.stamps import Stamps

CONTINUE, CHECKPOINT, STOP = 0, 1, 2
PYTHON = 1
"""The stage of a worker that is in generated Python code, see `Plan.stages`."""
CONTROL_TAG, GATHER_TAG, FIRST_EDGE_TAG = 1, 2, 10


class FragmentRuntime:
    """What generated code calls, for one replica of one fragment."""

    def __init__(self, plan: Plan, run_dir: Path, rank: int, comm: Communicator | None,
                 link: Link, stamps: Stamps) -> None:
        self.plan, self.run_dir, self.rank = plan, run_dir, rank
        self.comm, self.link, self.stamps = comm, link, stamps
        self.fragment, self.replica = plan.fragment_of(rank)
        self.env_indices = range(*self.fragment.shares[self.replica])
        self.seed = plan.seed
        self.iteration = 0
        self.restored = False
        self.replay = TrajectoryBuffer()
        self.trainer = self.actor = self.learner = self.environment = None
        self.group: Any = None
        self._vector: Any = None
        self._stages = {name: index for index, name in enumerate(plan.stages())}
        self._carried: Callable[[], dict[str, Any]] = dict
        self._stacks: dict[str, np.ndarray] = {}
        self._trimmed = False
        self._episode_buffers: list[Any] = []
        self._episodes: list[tuple[float, int]] = []
        self._returns = np.zeros(len(self.env_indices))
        self._lengths = np.zeros(len(self.env_indices), int)
        self._metrics: dict[str, float] = {}
        self._records: dict[str, np.ndarray] = {}
        self._loaded: dict[str, np.ndarray] = {}
        by_name = {f.name: f for f in plan.fragments}
        self._edges = {m.name: Edge(m, FIRST_EDGE_TAG + i, by_name[m.source], by_name[m.target])
                       for i, m in enumerate(plan.messages)}
        self._noise_size: dict[str, int] = {}
        self._prepare()

    def _prepare(self) -> None:
        plan = self.plan
        if "environment" in self.fragment.components:
            if plan.in_graph:
                self.environment = make_graph(plan.environment)
                self._noise_size["env"] = self.environment.noise_size
            else:
                self._vector = make_vector(plan.environment, self.env_indices, self.seed)
        if self.fragment.needs_tensors:
            spec = environment_spec(plan.environment)
            self.trainer = load_trainer(plan.algorithm, plan.config, spec)
            self.actor, self.learner = self.trainer.actor, self.trainer.learner
            self._noise_size["actor"] = self.actor.noise_size

    # ---- called by generated code ----------------------------------------------------------

    def cell(self, cell_class: type, name: str, to_host: tuple[int, ...]) -> Callable:
        """Builds a region's cell.

        Args:
            to_host: positions of the outputs that Python code reads, to be given as arrays.

        Returns: a function of arrays, numbers and tensors.
        """
        from mindspore_rl.runtime.compiled import CompiledCell  # noqa: PLC0415

        cell = CompiledCell(cell_class(self))
        stage = self._stages[f"cell {name} of {self.fragment.name}"]

        def call(*inputs: Any) -> Any:
            self._stamp(stage)
            result = cell(*inputs)
            if not isinstance(result, tuple):
                result = result.asnumpy() if to_host else result
            elif to_host:
                result = tuple([part.asnumpy() if i in to_host and not isinstance(part, tuple)
                                else part for i, part in enumerate(result)])
            self._stamp(PYTHON)
            return result

        return call

    def iterations(self, carried: Callable[[], dict[str, Any]]) -> Iterator[int]:
        """The training iterations, with everything that happens between them.

        Args:
            carried: gives the variables that an iteration takes from the one before.
        """
        self._carried = carried
        if self.plan.resume:
            self._load(Path(self.plan.resume))
        else:
            self._share_parameters()
            self._save()
        while True:
            self._stamp(self._stages["the iteration boundary"])
            command = self._agree()
            last = command == STOP or self.iteration >= self.plan.num_iterations
            if command == CHECKPOINT or last:
                self._save()
            if last:
                break
            path = self.plan.load_at.get(str(self.iteration))
            if path:
                self._load(Path(path))
            self._stamp(PYTHON)
            yield self.iteration
            self.restored = False
            self.iteration += 1
            self._end_iteration()
        self._stamp(self._stages["finished"])

    def env_reset(self) -> np.ndarray:
        """Returns: obs of this rank's environments."""
        self._stamp(self._stages["the environment"])
        obs = self._vector.reset()
        self._stamp(PYTHON)
        return obs

    def env_step(self, action: Any) -> tuple[np.ndarray, ...]:
        """Steps this rank's environments and keeps account of their episodes."""
        self._stamp(self._stages["the environment"])
        outcome = self._vector.step(array(action))
        self._count_episodes(outcome[2], outcome[3] | outcome[4])
        self._stamp(PYTHON)
        return outcome

    def noise(self, purpose: str, iteration: int, rows: int, owner: str) -> np.ndarray:
        """Uniform numbers `[rows, B, size]` of one call in one iteration."""
        return random.uniform(
            self.seed, random.stream(purpose), np.arange(iteration * rows, (iteration + 1) * rows),
            np.array(self.env_indices), self._noise_size[owner])

    def permutations(self, purpose: str, iteration: int, rounds: int) -> np.ndarray:
        """Positions in the flattened local batch, permuted in time, `[rounds, T, B]` int32."""
        count = len(self.env_indices)
        order = random.permutations(
            self.seed, random.stream(purpose),
            np.arange(iteration * rounds, (iteration + 1) * rounds),
            np.array(self.env_indices), self.plan.num_steps)
        return (order * count + np.arange(count)).astype(np.int32)

    def stack(self, name: str, rows: int, row: int, value: Any) -> np.ndarray:
        """Keeps a value of one turn of a loop; returns those of all turns."""
        value = array(value)
        if name not in self._stacks:
            self._stacks[name] = np.empty((rows, *value.shape), value.dtype)
        self._stacks[name][row] = value
        return self._stacks[name]

    def send(self, name: str, values: tuple) -> None:
        """Sends this replica's part of a message to whom it concerns."""
        assert self.comm is not None
        edge = self._edges[name]
        leaves = [array(leaf) for value in values for leaf in _leaves(value)]
        for source, target in self._pairs(edge):
            if source == self.replica:
                rank = edge.target.first_rank + target
                if edge.message.parameters:
                    data = self._parameters(edge).view(np.uint8)
                else:
                    data = np.empty(edge.size(source, target), np.uint8)
                    edge.pack(source, target, leaves, data)
                self.comm.send(rank, edge.tag, data)

    def receive(self, name: str) -> tuple:
        """Receives this replica's part of a message. Returns: its values, without parameters."""
        edge = self._edges[name]
        stage = self._stages[f"edge {name}"]
        arrays = edge.allocate(self.replica)
        for source, target in self._pairs(edge):
            if target != self.replica:
                continue
            rank = edge.source.first_rank + source
            if edge.message.parameters:
                flat = np.empty_like(self._parameters(edge))
                self._receive(rank, edge.tag, flat.view(np.uint8), stage)
                self._set_parameters(edge, flat)
            else:
                data = np.empty(edge.size(source, target), np.uint8)
                self._receive(rank, edge.tag, data, stage)
                edge.unpack(source, target, data, arrays)
        self._stamp(PYTHON)
        result, start = [], 0
        for value in edge.message.values:
            count = len(value.leaves)
            part = tuple(arrays[start : start + count])
            result.append(part if value.parts else part[0])
            start += count
        return tuple(result)

    def report(self, metrics: dict[str, Any]) -> None:
        """Keeps metrics for the coordinator; stops the job if one is not a number."""
        for key, value in metrics.items():
            number = float(array(value))
            if not np.isfinite(number):
                raise NumericsError(
                    f"iteration {self.iteration}: {key} is {number}; lower the learning rate or "
                    "look at the rewards (the last good checkpoint is kept)")
            self._metrics[key] = number

    def record(self, key: str, value: Any, axis: int | None) -> None:
        """Keeps a mark's values of this iteration for inspection.

        Args:
            key: the boundary's site and the position of the value in its tuple.
            value: of all turns, `[turns, ...]`.
            axis: of the environments; None for a whole value.
        """
        if axis is not None or self.replica == 0:
            self._records[f"{key}|{'' if axis is None else axis}"] = array(value).copy()

    def number(self, value: Any) -> bool:
        """A condition on a whole value."""
        return bool(array(value))

    def take_restored(self, *names: str) -> tuple:
        """Carried variables from the checkpoint just loaded, this rank's environments."""
        return tuple(self._loaded[name] for name in names)

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """Where an in-graph environment leaves rewards and ends, `[*rows, 2, B]`."""
        from mindspore_rl.lowering.cell import buffer  # noqa: PLC0415

        found = buffer((*rows, 2, len(self.env_indices)), "float32", f"episodes_{name}")
        self._episode_buffers.append(found)
        return found

    # ---- the iteration boundary ------------------------------------------------------------

    def _agree(self) -> int:
        """The leader's decision, the same on every rank."""
        command = CONTINUE
        if self.rank == 0:
            while (message := self.link.poll()) is not None:
                command = max(command, {"stop": STOP, "checkpoint": CHECKPOINT}[message["kind"]])
        if self.comm is None:
            return command
        data = np.array([command], np.uint8)
        if self.rank == 0:
            for target in range(1, self.comm.size):
                self.comm.send(target, CONTROL_TAG, data)
        else:
            self._receive(0, CONTROL_TAG, data, self._stages["the iteration boundary"])
        return int(data[0])

    def _end_iteration(self) -> None:
        for buffer in self._episode_buffers:
            for reward, ended in array(buffer).reshape(-1, 2, len(self.env_indices)):
                self._count_episodes(reward, ended > 0)
        if self._records:
            folder = self.run_dir / "records"
            folder.mkdir(exist_ok=True)
            np.savez(folder / f"{self.iteration - 1:06d}-{self.rank:04d}.npz", **self._records)
            self._records = {}
        steps = self.iteration * self.plan.num_steps * self.plan.num_envs
        with contextlib.suppress(OSError):
            self.link.send("iteration", rank=self.rank, iteration=self.iteration, env_steps=steps,
                           episodes=self._episodes, metrics=self._metrics)
        self._episodes, self._metrics = [], {}
        if not self._trimmed:
            self._trimmed = True
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # compilation leaves some 200 MB to the allocator

    def _count_episodes(self, reward: np.ndarray, ended: np.ndarray) -> None:
        self._returns += reward
        self._lengths += 1
        if ended.any():
            for index in np.flatnonzero(ended):
                self._episodes.append((float(self._returns[index]), int(self._lengths[index])))
            self._returns[ended] = 0.0
            self._lengths[ended] = 0

    # ---- checkpoints -----------------------------------------------------------------------

    def _state(self) -> dict[str, tuple[np.ndarray, int | None]]:
        """What this rank must save: arrays with the axis of environments (None: whole)."""
        state: dict[str, tuple[np.ndarray, int | None]] = {}
        for name, value in self._carried().items():
            if name == STATE:
                state["environment/state"] = (array(value), 0)
            else:
                axis = self.plan.carried[name].axis
                if axis is not None or self.replica == 0:
                    state[f"variables/{name}"] = (array(value), axis)
        if "environment" in self.fragment.components:
            state["episodes/return"] = (self._returns, 0)
            state["episodes/length"] = (self._lengths, 0)
        if self._vector is not None:
            for name, value in (self._vector.get_state() or {}).items():
                state[f"environment/{name}"] = (value, 0)
        if "update" in self.fragment.components and self.replica == 0:
            for name, parameter in self._named_parameters("state"):
                state[f"parameters/{name}"] = (parameter.asnumpy().copy(), None)
        return state

    def _save(self) -> None:
        self._stamp(self._stages["a checkpoint"])
        state = self._state()
        parts = self._gather({
            f"{name}|{self.env_indices.start if axis is not None else 0}|"
            f"{'' if axis is None else axis}": value for name, (value, axis) in state.items()})
        if self.rank != 0:
            return
        arrays = _merge(parts)
        for name, value in arrays.items():
            if name.startswith("parameters/") and not np.isfinite(value).all():
                raise NumericsError(f"iteration {self.iteration}: {name} is not finite; the "
                                    "checkpoint before this one is kept")
        path = checkpoint.save(self.run_dir / "checkpoints", self.iteration, arrays, {
            "algorithm": self.plan.algorithm["name"], "policy": self.plan.policy,
            "config": self.plan.config, "environment": self.plan.environment,
            "num_envs": self.plan.num_envs,
            "env_steps": self.iteration * self.plan.num_steps * self.plan.num_envs})
        self.link.send("checkpoint", rank=0, iteration=self.iteration, path=str(path))

    def _gather(self, state: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """All ranks' arrays on rank 0."""
        if self.comm is None:
            return [state]
        stage = self._stages["a checkpoint"]
        if self.rank != 0:
            self._send_bytes(0, _to_bytes(state))
            return []
        parts = [state]
        for source in range(1, self.comm.size):
            parts.append(_from_bytes(self._receive_bytes(source, stage)))
        return parts

    def _load(self, path: Path) -> None:
        try:
            self._restore(path)
        except KeyError as error:
            raise CheckpointError(
                f"checkpoint {path} has no {error}: it was written by another program, or with "
                f"another form of the environment; this job runs {self.plan.algorithm['name']} on "
                f"{self.plan.environment}") from error

    def _restore(self, path: Path) -> None:
        arrays, meta = checkpoint.load(path)
        if meta["num_envs"] != self.plan.num_envs:
            raise CheckpointError(f"checkpoint {path} has num_envs={meta['num_envs']}, this job "
                                  f"{self.plan.num_envs}: they must be equal")
        self.iteration = meta["iteration"]
        self._loaded = {}
        share = slice(self.env_indices.start, self.env_indices.stop)
        for name, value in self._carried().items():
            if name == STATE:
                self._loaded[name] = arrays["environment/state"][share]
                continue
            axis = self.plan.carried[name].axis
            found = arrays[f"variables/{name}"]
            if axis is not None:
                found = found[(slice(None),) * axis + (share,)]
            self._loaded[name] = found.astype(np.asarray(array(value)).dtype)
        self.restored = True
        if "environment" in self.fragment.components:
            self._returns[:] = arrays["episodes/return"][share]
            self._lengths[:] = arrays["episodes/length"][share]
        if self._vector is not None:
            state = {name.removeprefix("environment/"): value[share]
                     for name, value in arrays.items() if name.startswith("environment/")}
            if state:
                self._vector.set_state(state)
            else:
                self._start_environments_anew()
        if self.trainer is not None:
            from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

            for name, parameter in self._named_parameters("state"):
                set_parameter(parameter, arrays[f"parameters/{name}"])

    def _start_environments_anew(self) -> None:
        """An environment whose state cannot be had starts a new episode at a resume."""
        obs = self._vector.reset()
        self._returns[:] = 0.0
        self._lengths[:] = 0
        for name in self._loaded:
            if self._loaded[name].shape == obs.shape:
                self._loaded[name] = obs
        self.link.send("resumed", rank=self.rank, iteration=self.iteration,
                       note="environments without state were reset")

    def _share_parameters(self) -> None:
        """All ranks start from the parameters of one, however an algorithm initialises them."""
        if self.comm is None:
            return
        updater = next(f for f in self.plan.fragments if "update" in f.components)
        source = updater.first_rank
        if self.rank == source:
            data = _to_bytes({n: p.asnumpy() for n, p in self._named_parameters("state")})
            for fragment in self.plan.fragments:
                for rank in fragment.ranks if fragment.needs_tensors else ():
                    if rank != source:
                        self._send_bytes(rank, data)
        elif self.fragment.needs_tensors:
            from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

            stage = self._stages["the iteration boundary"]
            arrays = _from_bytes(self._receive_bytes(source, stage))
            for name, parameter in self._named_parameters("state"):
                set_parameter(parameter, arrays[name])

    def _send_bytes(self, target: int, data: np.ndarray) -> None:
        assert self.comm is not None
        self.comm.send(target, GATHER_TAG, np.array([len(data)], np.int64).view(np.uint8))
        self.comm.send(target, GATHER_TAG, data)

    def _receive_bytes(self, source: int, stage: int) -> np.ndarray:
        size = np.zeros(1, np.int64)
        self._receive(source, GATHER_TAG, size.view(np.uint8), stage)
        data = np.empty(int(size[0]), np.uint8)
        self._receive(source, GATHER_TAG, data, stage)
        return data

    # ---- parameters, waits, stamps ---------------------------------------------------------

    def _named_parameters(self, scope: str) -> list[tuple[str, Any]]:
        from mindspore_rl.runtime.parameters import named_parameters  # noqa: PLC0415

        return named_parameters(self.trainer, scope)

    def _parameters(self, edge: Edge) -> np.ndarray:
        named = self._named_parameters(edge.message.parameters)
        return np.concatenate([np.ravel(p.asnumpy()).astype(np.float32) for _, p in named])

    def _set_parameters(self, edge: Edge, flat: np.ndarray) -> None:
        from mindspore_rl.runtime.parameters import set_parameter  # noqa: PLC0415

        start = 0
        for _, parameter in self._named_parameters(edge.message.parameters):
            size = int(np.prod(parameter.shape, dtype=int))
            set_parameter(parameter, flat[start : start + size].reshape(parameter.shape))
            start += size

    def _pairs(self, edge: Edge) -> list[tuple[int, int]]:
        if edge.message.parameters:
            sources = len(edge.source.shares)
            return [(j % sources, j) for j in range(len(edge.target.shares))]
        return edge.pairs()

    def _receive(self, source: int, tag: int, data: np.ndarray, stage: int) -> None:
        assert self.comm is not None
        self._stamp(stage)
        self.comm.receive(source, tag, data, self._waiting)

    def _waiting(self) -> None:
        """Ends a wait when the coordinator is gone."""
        if self.link.closed:
            raise InterruptedError("the coordinator is gone")

    def _stamp(self, stage: int) -> None:
        self._stage = stage
        self.stamps.write(self.rank, self.iteration, stage)

    @property
    def stage(self) -> str:
        """What this rank is doing, in words."""
        return self.plan.stages()[self._stage]

    def close(self) -> None:
        """Finishes sends and frees the environment."""
        if self.comm is not None:
            self.comm.close()
        if self._vector is not None:
            self._vector.close()


def array(value: Any) -> np.ndarray:
    """A tensor, array or number as an array, without a copy where possible."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _to_bytes(state: dict[str, np.ndarray]) -> np.ndarray:
    stream = io.BytesIO()
    np.savez(stream, **state)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _from_bytes(data: np.ndarray) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data.tobytes()), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _merge(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Joins shares along their axis of environments, in the order of the environments."""
    pieces: dict[str, list[tuple[int, int | None, np.ndarray]]] = {}
    for part in parts:
        for key, value in part.items():
            name, start, axis = key.split("|")
            pieces.setdefault(name, []).append((int(start), int(axis) if axis else None, value))
    merged = {}
    for name, found in pieces.items():
        found.sort(key=lambda piece: piece[0])
        axis = found[0][1]
        values = [value for _, _, value in found]
        merged[name] = values[0] if axis is None else np.concatenate(values, axis)
    return merged


def import_fragment(plan: Plan, run_dir: Path, fragment: FragmentPlan) -> Any:
    """Imports a fragment's generated module."""
    path = run_dir / "fragments" / fragment.file
    name = f"fragment_{abs(hash(str(path)))}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_worker(plan: Plan, run_dir: Path, rank: int, link: Link,
               comm: Communicator | None = None, group: Any = None) -> None:
    """Runs a rank to its end; reports a failure to the coordinator and raises it."""
    stamps = Stamps(run_dir, plan.num_ranks)
    fragment, _ = plan.fragment_of(rank)
    runtime = None
    try:
        if fragment.needs_tensors:
            _set_up_mindspore(plan)
            load_trainer(plan.algorithm, plan.config, environment_spec(plan.environment))
        runtime = FragmentRuntime(plan, run_dir, rank, comm, link, stamps)
        runtime.group = group
        import_fragment(plan, run_dir, fragment).run(runtime)
        runtime.close()
        link.send("finished", rank=rank, iteration=runtime.iteration)
    except BaseException as error:
        with contextlib.suppress(OSError):
            link.send("error", rank=rank, iteration=runtime.iteration if runtime else -1,
                      stage=runtime.stage if runtime else "starting",
                      message=f"{type(error).__name__}: {error}" if not isinstance(error, MsrlError)
                      else str(error),
                      traceback=traceback.format_exc(), mistake=isinstance(error, MsrlError))
        raise
    finally:
        stamps.close()


def run_inproc(plan: Plan, run_dir: Path, links: list[Link]) -> None:
    """Runs all ranks as threads of this process, one at a time, uncompiled."""
    hub = InprocHub(plan.num_ranks)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        comm = hub.communicator(rank)
        fragment, _ = plan.fragment_of(rank)
        members = len(fragment.shares)
        with hub.baton:
            try:
                run_worker(plan, run_dir, rank, links[rank], comm,
                           lambda kind, data: comm.all_reduce(fragment.name, members, kind, data))
            except BaseException as error:  # noqa: BLE001  (raised again below)
                errors.append(error)
                hub.failed = True
                hub.baton.notify_all()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True)
               for rank in range(plan.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _set_up_mindspore(plan: Plan) -> None:
    import mindspore as ms  # noqa: PLC0415

    if ms.get_context("device_target") != plan.device:
        ms.set_device(plan.device)
    mode = ms.GRAPH_MODE if plan.compiled else ms.PYNATIVE_MODE
    ms.set_context(mode=mode, jit_syntax_level=ms.STRICT)


def main() -> None:
    """Entry point of a worker process under mpiexec."""
    _end_with_parent()
    settings = worker_settings()
    plan = load_plan(settings.run_dir)
    comm = MpiCommunicator()
    link = Link.connect(*settings.coordinator)
    link.send("hello", rank=comm.rank, pid=os.getpid(), host=platform.node())
    _end_with_coordinator(link)
    try:
        group = _join_group(plan, comm.rank, settings)
        if settings.cores:
            os.sched_setaffinity(0, {settings.cores[comm.rank]})
        run_worker(plan, settings.run_dir, comm.rank, link, comm, group)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a peer may be gone: MPI's own shutdown would wait for it


def _join_group(plan: Plan, rank: int, settings: WorkerSettings) -> str | None:
    """Forms MindSpore's group over the ranks whose cells hold collectives.

    The settings must be there before MindSpore is imported, and the cores pinned after.
    """
    if rank not in plan.group_ranks:
        return None
    host, port = settings.scheduler
    os.environ.update(
        MS_ROLE="MS_WORKER", MS_WORKER_NUM=str(len(plan.group_ranks)), MS_SCHED_HOST=host,
        MS_SCHED_PORT=str(port), MS_NODE_ID=str(plan.group_ranks.index(rank)))
    from mindspore import communication, set_device  # noqa: PLC0415

    set_device(plan.device)
    communication.init()
    own, _ = plan.fragment_of(rank)
    fragments = [f for f in plan.fragments if f.collectives]
    if len(fragments) == 1:
        return communication.GlobalComm.WORLD_COMM_GROUP
    for fragment in fragments:
        members = [plan.group_ranks.index(r) for r in fragment.ranks]
        if fragment is own:
            communication.create_group(fragment.name, members)
    return own.name


def _end_with_parent() -> None:
    """Dies when the launcher does, even when that is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _end_with_coordinator(link: Link) -> None:
    """Ends this process when the coordinator's end of the link closes, whatever it is doing."""
    poller = select.poll()
    poller.register(link.connection, select.POLLRDHUP)

    def watch() -> None:
        poller.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
