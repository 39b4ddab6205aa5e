"""The `w` of generated code: one replica of a fragment at run time.

It holds the rank's share of the environments, its agent, its edges, and everything that happens at
an iteration boundary: stop requests, checkpoints, metrics.
"""

import contextlib
import copy
import ctypes
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.communication.group import HostGroup
from mindspore_rl.communication.link import Link
from mindspore_rl.environments.by_name import make_graph, make_vector
from mindspore_rl.environments.by_name import spec as environment_spec
from mindspore_rl.environments.chunked_vector import ChunkedVector
from mindspore_rl.environments.guarded import GuardedVector
from mindspore_rl.environments.last_actions import LastActions
from mindspore_rl.environments.loop_vector import LoopVector
from mindspore_rl.errors import NumericsError
from mindspore_rl.plan.edges import chunk_of, plan_edges
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.plan.traffic import CONTROL, STATE, Counts
from mindspore_rl.programs import load_trainer
from mindspore_rl.replay.trajectory import TrajectoryBuffer
from mindspore_rl.rl import random
from mindspore_rl.runtime.rank import arrays
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.arrival import Server, Turns, Worker
from mindspore_rl.runtime.rank.chunks import run_in_turn
from mindspore_rl.runtime.rank.episodes import EpisodeCounter
from mindspore_rl.runtime.rank.exchange import Exchange
from mindspore_rl.runtime.rank.graph_environment import GraphEnvironments
from mindspore_rl.runtime.rank.messenger import (
    BYTES_TAG,
    CHECKPOINT,
    CONTINUE,
    CONTROL_TAG,
    STOP,
    Messenger,
)
from mindspore_rl.runtime.rank.state import RankState
from mindspore_rl.runtime.stamps import Stamps
from mindspore_rl.storage import writing

PYTHON = 1
"""The stage of a worker that is in generated Python code, see `Plan.stages`."""
TABLE_SIZE = 2**14
"""Random numbers drawn at once, where an iteration needs fewer."""
TRIM_AFTER = (1, 3, 10)
"""Iterations after which memory goes back to the system; compilation leaves 200 MB behind."""


class FragmentRuntime:
    """What generated code calls, for one replica of one fragment."""

    def __init__(
        self,
        plan: Plan,
        run_dir: Path,
        rank: int,
        comm: Communicator | None,
        link: Link,
        stamps: Stamps,
        threads: int = 1,
    ) -> None:
        self.plan, self.run_dir, self.rank = plan, run_dir, rank
        self.link, self.stamps = link, stamps
        self.messenger = Messenger(comm, self._stamp, self._waiting)
        self.fragment, self.replica = plan.fragment_of(rank)
        self.env_indices = range(*self.fragment.shares[self.replica])
        self.agents = _agents(self.fragment, self.replica)
        self.seed = plan.seed
        self.iteration = 0
        self.env_steps = 0
        self._stage = 0
        self.state = RankState(self)
        self.episodes = EpisodeCounter(len(self.env_indices))
        self.replay = TrajectoryBuffer()
        self.trainer: Any = None
        self.actor: Any = None
        self.learner: Any = None
        self.environment: Any = None
        self.group: Any = None
        self.threads = threads
        self.vector: Any = None
        self._stages = {name: index for index, name in enumerate(plan.stages())}
        self._stacks: dict[str, np.ndarray] = {}
        self._tables: dict[str, tuple[int, np.ndarray]] = {}
        self.iterations_here = 0
        self._graph = GraphEnvironments(self)
        self._reductions: list[Any] = []
        self._cells: dict[str, Callable] = {}
        self.kinds: dict[str, bool] = {}  # whether a cell is native, by name
        self._chunks: list[FragmentRuntime] = []
        self._metrics: dict[str, float] = {}
        self._records: dict[str, np.ndarray] = {}
        self.exchange = Exchange(self, plan_edges(plan))
        self._noise_size: dict[str, int] = {}
        self._server: Server | None = None
        self._worker: Worker | None = None
        if plan.arrivals is not None and plan.arrivals.sender == self.fragment.name:
            parameters = next(m.name for m in plan.messages if m.parameters)
            self._worker = Worker(self, parameters)
        self._prepare()

    def _prepare(self) -> None:
        plan = self.plan
        if "environment" in self.fragment.components:
            if plan.in_graph:
                self.environment = make_graph(plan.environment)
                self._noise_size["env"] = self.environment.noise_size
            else:
                self.vector = self._vector()
        if self.fragment.needs_tensors:
            spec = environment_spec(plan.environment)
            self.trainer = load_trainer(plan.algorithm, plan.config, spec)
            self.actor, self.learner = self.trainer.actor, self.trainer.learner
            self._noise_size["actor"] = self._noise_size["agents"] = self.actor.noise_size

    def _vector(self) -> Any:
        """Environments whose failures, hangs included, tell which it was and its last action."""
        plan = self.plan
        if plan.chunks == 1:
            vector = make_vector(plan.environment, self.env_indices, self.seed)
            last = LastActions(self.run_dir, self.rank, vector.spec, len(self.env_indices))
            if isinstance(vector, LoopVector):
                vector.at_work, vector.threads = last.at_work, self.threads
            return GuardedVector(vector, self.env_indices, last.write)
        share = self.fragment.shares[self.replica]
        chunks = [chunk_of(share, number, plan.chunks) for number in range(plan.chunks)]
        whole = ChunkedVector(plan.environment, chunks, self.seed)
        last = LastActions(self.run_dir, self.rank, whole.spec, len(self.env_indices))
        whole.parts = [
            GuardedVector(part, chunk, partial(last.write, rows=self._places(chunk)))
            for part, chunk in zip(whole.parts, chunks, strict=True)
        ]
        return whole

    @property
    def restored(self) -> bool:
        """Whether a checkpoint was loaded before this iteration."""
        return bool(self.state.restored)

    # ---- called by generated code ----------------------------------------------------------

    def cell(self, cell_class: type, name: str, to_host: tuple[int, ...]) -> Callable:
        """Builds a region's cell.

        Args:
            cell_class: the generated class.
            name: the region's.
            to_host: positions of the outputs that Python code reads, to be given as arrays.

        Returns: a function of arrays, numbers and tensors; the same each time.
        """
        if name in self._cells:
            return self._cells[name]
        from mindspore_rl.runtime.rank.cell import reductions_of  # noqa: PLC0415

        built = cell_class(self)
        buffers = self._graph.buffers()
        self._reductions += reductions_of(built)
        stage = self._stages[f"cell {name} of {self.fragment.name}"]
        cell = self._lowered(built, name, stage)

        def call(*inputs: Any) -> Any:
            self._stamp(stage)
            try:
                result = cell(*inputs)
            except RuntimeError:
                if isinstance(self.group, HostGroup) and self.group.error is not None:
                    raise self.group.error from None  # what happened inside a collective
                raise
            self._graph.collect(buffers)
            if not isinstance(result, tuple):
                result = arrays.to_host(result) if to_host else result
            elif to_host:
                result = tuple(
                    [
                        arrays.to_host(part)
                        if i in to_host and not isinstance(part, tuple)
                        else part
                        for i, part in enumerate(result)
                    ]
                )
            self._stamp(PYTHON)
            return result

        self._cells[name] = call
        return call

    def _lowered(self, built: Any, name: str, stage: int) -> Callable:
        """A cell as the plan wants it."""
        if self.plan.cells != "native":
            from mindspore_rl.runtime.rank.compiled import CompiledCell  # noqa: PLC0415

            return CompiledCell(built)
        from mindspore_rl.runtime.rank.cell import turns_of  # noqa: PLC0415
        from mindspore_rl.runtime.rank.lowered import LoweredCell  # noqa: PLC0415

        def chosen(native: bool, why: str) -> None:
            self.kinds[name] = native
            if self.replica != 0:
                return
            if why:
                self.note(f"cell {name} runs in MindSpore: {why}")
            if native != self.state.kinds_before.get(name, native):
                other = "MindSpore's" if native else "native"
                self.note(f"cell {name} was {other} before: equal up to rounding from here on")

        def keep(text: str) -> None:
            path = self.run_dir / "fragments" / f"{Path(self.fragment.file).stem}.{name}.cpp"
            if self.replica == 0:
                with writing(path):
                    path.write_text(text)

        agree = partial(self.messenger.agree, self.fragment.ranks, stage)
        owners = [part for part in (self.actor, self.learner) if part is not None]
        return LoweredCell(built, owners, turns_of(built), agree, chosen, keep, self.threads)

    def in_turn(self, loop: Callable, inputs: tuple, axes: tuple) -> tuple:
        """Runs a loop for each chunk of the environments, see `run_in_turn`."""
        if not self._chunks:
            self._chunks = [self._chunk(number) for number in range(self.plan.chunks)]
        rows = [self._places(chunk.env_indices) for chunk in self._chunks]
        return run_in_turn(loop, self._chunks, rows, inputs, axes)

    def _chunk(self, number: int) -> "FragmentRuntime":
        """This rank's runtime as the loop of one chunk sees it."""
        chunk = copy.copy(self)
        share = self.fragment.shares[self.replica]
        chunk.env_indices = chunk_of(share, number, self.plan.chunks)
        rows = self._places(chunk.env_indices)
        chunk._stamp = self._stamp  # type: ignore[method-assign]  # one rank, one stamp
        chunk.exchange = Exchange(chunk, plan_edges(self.plan, number))
        chunk._stacks, chunk._cells, chunk._tables = {}, {}, {}
        chunk.replay = self.replay.part(rows, len(self.env_indices))
        chunk.episodes = self.episodes.part(rows)
        if self.vector is not None:
            chunk.vector = self.vector.parts[number]
        return chunk

    def _places(self, chunk: range) -> slice:
        return slice(chunk.start - self.env_indices.start, None, chunk.step)

    def iterations(self, carried: Callable[[], dict[str, Any]]) -> Iterator[int]:
        """The training iterations, with everything that happens between them.

        Args:
            carried: gives the variables that an iteration takes from the one before.
        """
        self.state.carried = carried
        self._begin()
        while True:
            self._stamp(self._stages["the iteration boundary"])
            command = self._worker.agree() if self._worker else self._agree()
            if command != CONTINUE:
                self.save()
            if command == STOP:
                break
            if command == CHECKPOINT:
                continue
            path = self.plan.load_at.get(str(self.iteration))
            if path:
                self.state.load(Path(path))
            self._stamp(PYTHON)
            yield self.iteration
            self._graph.look(closely=False)
            self.state.restored = {}
            self.iteration += 1
            self._end_iteration()
        self._stamp(self._stages["finished"])

    def arrivals(self, turns: Turns) -> Iterator[int]:
        """The workers that this fragment serves, each time that a message of one is here.

        Args:
            turns: serves one worker's iteration.
        """
        self._begin()
        self._server = Server(self, self.state.iterations, turns)
        yield from self._server
        self._stamp(self._stages["finished"])

    def fire(self, worker: int) -> None:
        """Serves the message of a worker that is here."""
        assert self._server is not None
        self._server.fire(worker)
        self._stamp(PYTHON)

    def env_reset(self) -> np.ndarray:
        """Returns: obs of this rank's environments."""
        self._stamp(self._stages["the environment"])
        obs = self.vector.reset()
        self._stamp(PYTHON)
        return obs

    def env_step(self, action: Any) -> tuple[np.ndarray, ...]:
        """Steps this rank's environments and keeps account of their episodes."""
        self._stamp(self._stages["the environment"])
        outcome = self.vector.step(to_host(action))
        self.episodes.count(outcome[2], outcome[3] | outcome[4])
        self._stamp(PYTHON)
        return outcome

    def noise(self, purpose: str, iteration: int, rows: int, owner: str) -> np.ndarray:
        """Uniform numbers `[rows, B, size]` (`agents`: `[rows, B, A, size]`) of one call."""
        return self._drawn(
            purpose,
            iteration,
            rows,
            lambda steps: random.uniform(
                self.seed,
                random.stream(purpose),
                steps,
                np.array(self.env_indices),
                self._noise_size[owner],
                self.agents if owner == "agents" else None,
            ),
        )

    def permutations(self, purpose: str, iteration: Any, rounds: int) -> np.ndarray:
        """Positions in the flattened local batch, permuted in time, `[rounds, T, B]` int32."""
        # Under a condition, a variable that counts how often the loop was begun.
        iteration, count = int(to_host(iteration)), len(self.env_indices)

        def draw(steps: np.ndarray) -> np.ndarray:
            order = random.permutations(
                self.seed,
                random.stream(purpose),
                steps,
                np.array(self.env_indices),
                self.plan.num_steps,
            )
            return (order * count + np.arange(count)).astype(np.int32)

        return self._drawn(purpose, iteration, rounds, draw)

    def _drawn(
        self, purpose: str, iteration: int, rows: int, draw: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """An iteration's random numbers, of a table drawn for some iterations at once.

        A draw takes 130 us however few its numbers are, as long as an iteration of a small program.
        """
        first, table = self._tables.get(purpose, (0, None))
        at = (iteration - first) * rows
        if table is None or not 0 <= at < len(table):
            table = draw(np.arange(iteration * rows, (iteration + 1) * rows))
            ahead = TABLE_SIZE // table.size
            if ahead > 1 and purpose in self._tables:  # not for what is drawn once
                table = draw(np.arange(iteration * rows, (iteration + ahead) * rows))
            self._tables[purpose], at = (iteration, table), 0
        return table[at : at + rows]

    def stack(self, name: str, rows: int, row: int, value: Any) -> np.ndarray:
        """Keeps a value of one turn of a loop; returns those of all turns."""
        value = to_host(value)
        if name not in self._stacks:
            self._stacks[name] = np.zeros((rows, *value.shape), value.dtype)
        self._stacks[name][row] = value
        return self._stacks[name]

    def send(self, name: str, values: tuple) -> None:
        """Sends this replica's part of a message to whom it concerns."""
        self._graph.look_before_sending()
        if self._server is None:
            self.exchange.send(name, values)
        else:
            self._server.send(name, values)

    def receive(self, name: str) -> tuple:
        """Receives this replica's part of a message. Returns: its values, without parameters."""
        if self._worker is not None and self.exchange.edges[name].message.parameters:
            self._worker.receive(name)
            values = ()
        else:
            values = self.exchange.receive(name)
        self._stamp(PYTHON)
        return values

    def report(self, metrics: dict[str, Any]) -> None:
        """Keeps metrics for the coordinator; stops the job if one is not a number."""
        for key, value in metrics.items():
            number = float(to_host(value))
            if not np.isfinite(number):
                self._graph.look(closely=True)
                raise NumericsError(
                    f"iteration {self.iteration}: {key} is {number}; lower the learning rate or "
                    "look at the rewards (the last good checkpoint is kept)"
                )
            self._metrics[key] = number

    def record(self, key: str, value: Any, axis: int | None, turns: Any = None) -> None:
        """Keeps a mark's values of this iteration for inspection.

        Args:
            key: the boundary's site and the position of the value in its tuple.
            value: of all turns, `[turns, ...]`; None if a condition was never met.
            axis: of the environments; None for a whole value.
            turns: under a condition, the iteration that made each row, counted from 1.
        """
        if value is not None and (axis is not None or self.replica == 0):
            rows = ... if turns is None else to_host(turns) == self.iteration + 1
            self._records[f"{key}|{'' if axis is None else axis}"] = to_host(value)[rows].copy()

    def number(self, value: Any) -> bool:
        """A condition on a whole value."""
        return bool(to_host(value))

    def take_restored(self, *names: str) -> tuple:
        """Carried variables from the checkpoint just loaded, this rank's environments."""
        return tuple(self.state.restored[name] for name in names)

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """See `GraphEnvironments`."""
        return self._graph.episode_buffer(name, rows)

    def keep(self, name: str, buffer: Any) -> None:
        """See `GraphEnvironments`."""
        self._graph.keep(name, buffer)

    def named_parameters(self, scope: str) -> list[tuple[str, Any]]:
        """See `parameters.named_parameters`."""
        from mindspore_rl.runtime.parameters import named_parameters  # noqa: PLC0415

        return named_parameters(self.trainer, scope)

    # ---- the iteration boundary ------------------------------------------------------------

    def _begin(self) -> None:
        """Every rank starts from a checkpoint, or from the parameters of one."""
        if self.plan.resume:
            self.state.load(Path(self.plan.resume))
        else:
            self.state.share_parameters(self._stages["the iteration boundary"])
            self.save()

    def note(self, text: str) -> None:
        """Tells the user something that is no failure."""
        self.link.send("note", rank=self.rank, iteration=self.iteration, note=text)

    def poll_command(self) -> int:
        """What the coordinator asks for."""
        command = CONTINUE
        while (message := self.link.poll()) is not None:
            command = max(command, {"stop": STOP, "checkpoint": CHECKPOINT}[message["kind"]])
        return command

    def _agree(self) -> int:
        """The leader's decision, the same on every rank."""
        command = self.poll_command() if self.rank == 0 else CONTINUE
        if self.iteration >= self.plan.num_iterations:
            command = STOP
        if self.messenger.alone:
            return command
        data = np.array([command], np.uint8)
        if self.rank == 0:
            for target in range(1, self.plan.num_ranks):
                self.messenger.send(target, CONTROL_TAG, data)
        else:
            self.messenger.receive(0, CONTROL_TAG, data, self._stages["the iteration boundary"])
        return int(data[0])

    def save(self) -> None:
        """Writes a checkpoint together with all other ranks."""
        stage = self._stages["a checkpoint"]
        self._stamp(stage)
        self.state.save(stage)

    def _end_iteration(self) -> None:
        for steps in self._graph.take_steps():
            self.episodes.count_all(steps[:, 0], steps[:, 1] > 0)
        if self._records:
            folder = self.run_dir / "records"
            folder.mkdir(exist_ok=True)
            np.savez(folder / f"{self.iteration - 1:06d}-{self.rank:04d}.npz", **self._records)
            self._records = {}
        if self._worker is None:
            self.env_steps = self.iteration * self.plan.steps_per_iteration
        self._report_iteration()

    def count_steps(self, steps: int, metrics: Callable[[], dict[str, float]]) -> None:
        """Counts the steps of a worker that was served; reports each whole iteration's worth."""
        self.env_steps += steps
        done = self.env_steps // self.plan.steps_per_iteration
        if done > self.iteration:
            self.iteration = done
            self._metrics |= metrics()
            self._report_iteration()

    def _report_iteration(self) -> None:
        with contextlib.suppress(OSError):
            self.link.send_soon(
                "iteration",
                rank=self.rank,
                iteration=self.iteration,
                env_steps=self.env_steps,
                episodes=self.episodes.take_finished(),
                metrics=self._metrics,
            )
        self._metrics = {}
        self.iterations_here += 1
        if self.iterations_here in TRIM_AFTER:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)

    # ---- waits, stamps, counts -------------------------------------------------------------

    def _waiting(self) -> None:
        """Ends a wait when the coordinator is gone."""
        if self.link.closed:
            raise InterruptedError("the coordinator is gone")

    def _stamp(self, stage: int) -> None:
        self._stage = stage
        self.stamps.write(self.rank, self.iteration, stage)

    def stage_of(self, name: str) -> int:
        """The number of one of `Plan.stages`."""
        return self._stages[name]

    def traffic(self) -> Counts:
        """What this rank sent, and gave to collectives, since it started."""
        names = {CONTROL_TAG: CONTROL, BYTES_TAG: STATE}
        names |= {edge.tag: name for name, edge in self.exchange.edges.items()}
        counts = {names[tag]: (calls, size) for tag, (calls, size) in self.messenger.sent.items()}
        for part in self._reductions:
            name, calls = f"{part.reduced} over {self.fragment.name}", int(part.calls.asnumpy())
            counts[name] = (calls, calls * part.message_bytes)
        return counts

    @property
    def stage(self) -> str:
        """What this rank is doing, in words."""
        return self.plan.stages()[self._stage]

    def close(self) -> None:
        """Finishes sends and frees the environment."""
        self.messenger.close()
        if self.vector is not None:
            self.vector.close()


def _agents(fragment: FragmentPlan, replica: int) -> random.Agents | None:
    """A replica's agents; None in an environment of a single one."""
    if not fragment.agents:
        return None
    return random.Agents(range(*fragment.agents[replica]), fragment.agents[-1][1])
