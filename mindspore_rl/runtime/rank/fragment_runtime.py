"""The `w` of generated code: one replica of a fragment, with its work between iterations."""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.environments.registry import make_graph
from mindspore_rl.plan.stages import Stage
from mindspore_rl.plan.traffic import CHECKPOINTS, CONTROL, RECORDS, Counts
from mindspore_rl.programs import load_trainer
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.batch_server import BatchServer
from mindspore_rl.runtime.rank.cell_cache import Cells
from mindspore_rl.runtime.rank.env_shard import Share, whole_share
from mindspore_rl.runtime.rank.graph_environment import GraphEnvironments
from mindspore_rl.runtime.rank.leases import Leases, Serve
from mindspore_rl.runtime.rank.messenger import (
    BYTES_TAG,
    CHECKPOINT,
    CONTINUE,
    CONTROL_TAG,
    RECORDS_TAG,
    STOP,
)
from mindspore_rl.runtime.rank.older_parameters import OlderParameters
from mindspore_rl.runtime.rank.parameter_server import Client, Server
from mindspore_rl.runtime.rank.pipelined_loop import in_turn, run_parts
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.shard_runtime import Parts, ShareRuntime
from mindspore_rl.runtime.rank.state import RankState

TRIM_AFTER = (1, 3, 10)
"""Iterations after which freed memory is returned to the system; compilation frees 200 MB."""


class FragmentRuntime(ShareRuntime):
    """The object that generated code calls, for all environments of a replica.

    Args:
        group: the fragment's replicas, if its cells hold collectives.
        threads: number of threads that this rank may use.

    Attributes:
        iterations_here: iterations done since this process started.
    """

    def __init__(self, rank: Rank, group: Any = None, threads: int = 1) -> None:
        plan, environment, trainer = rank.plan, None, None
        self._older: OlderParameters | None = None
        if rank.stepping and plan.in_graph:
            environment = make_graph(plan.environment)
        if rank.fragment.needs_tensors:
            trainer = load_trainer(plan.algorithm, plan.config, rank.spec)
            if lag := rank.fragment.lag:
                second = load_trainer(plan.algorithm, plan.config, rank.spec)
                self._older = OlderParameters(trainer, second, lag)
        share = whole_share(rank, trainer, threads)
        self.state = RankState(share, self._older)
        self._graph = GraphEnvironments(rank, self.state)
        self._cells = Cells(rank, self.state, self._graph, group, threads)
        self._metrics: dict[str, float] = {}
        acting = self._older.actor if self._older else None
        parts = Parts(trainer, environment, group, self._cells, self._graph, self._metrics, acting)
        super().__init__(share, parts)
        self._chunks: list[ShareRuntime] = []
        self._records: dict[str, np.ndarray] = {}
        self.iterations_here, self._reached = 0, False
        self._server: Leases | None = None
        self._client: Client | None = None
        if rank.served:
            parameters = next(m.name for m in plan.messages if m.parameters)
            self._client = Client(rank, share.exchange, parameters)

    # ---- called by generated code ----------------------------------------------------------

    @property
    def restored(self) -> bool:
        """True if a checkpoint was loaded before this iteration."""
        return bool(self.state.restored)

    def take_restored(self, *names: str) -> tuple:
        """Returns carried variables of the checkpoint just loaded, for this rank's environments."""
        return tuple(self.state.restored[name] for name in names)

    def iterations(self, carried: Callable[[], dict[str, Any]]) -> Iterator[int]:
        """Yields the training iterations, and runs the iteration boundary between them.

        Args:
            carried: returns the variables that an iteration takes over from the one before.
        """
        rank = self.rank
        self.state.carried = carried
        self._begin()
        while True:
            rank.stamp(Stage.BOUNDARY)
            command = self._client.agree() if self._client else self._agree()
            if command != CONTINUE:
                self.save()
            if command == STOP:
                break
            if command == CHECKPOINT:
                continue
            path = rank.plan.load_at.get(str(rank.iteration))
            if path:
                self.state.load(Path(path))
            rank.stamp(Stage.PYTHON)
            yield rank.iteration
            self._graph.look()
            self.state.restored = {}
            rank.iteration += 1
            if self._older is not None:
                self._older.keep()
            self._end_iteration()
        rank.stamp(Stage.FINISHED)

    def arrivals(self, serve: Serve) -> Iterator[Any]:
        """Yields the next worker to serve, or workers, each time that their messages have arrived.

        Args:
            serve: makes the consumer's part of one iteration.
        """
        self._begin()
        assert self.rank.plan.arrivals is not None
        exchange, started = self.share.exchange, self.state.iterations
        given = (self.rank, exchange, started, serve, self.save, self._count_steps)
        if self.rank.plan.arrivals.gather:
            replays = self.share.replays.values()
            kept = next(iter(replays)) if self.rank.plan.arrivals.kept else None
            self._server = BatchServer(kept, *given)
        else:
            self._server = Server(*given)
        yield from self._server
        self.rank.stamp(Stage.FINISHED)

    def fire(self, sender: Any) -> None:
        """Serves what `arrivals` yielded."""
        assert self._server is not None
        self._server.fire(sender)
        self.state.save_ahead()
        self.rank.stamp(Stage.PYTHON)

    def in_turn(self, loop: Callable, inputs: tuple, axes: tuple) -> tuple:
        """Runs a loop for each chunk of the environments, in turn."""
        return self._run_parts(self.share.chunks, loop, inputs, axes, in_turn)

    def as_ready(self, loop: Callable, inputs: tuple, axes: tuple) -> tuple:
        """Runs a loop for each part of the environments, each turn when its messages are there."""
        return self._run_parts(self.share.parts, loop, inputs, axes, self._ready)

    def _run_parts(
        self,
        parts: Callable[[], list[Share]],
        loop: Callable,
        inputs: tuple,
        axes: tuple,
        ready: Callable,
    ) -> tuple:
        if not self._chunks:
            self._chunks = [ShareRuntime(part, self._parts) for part in parts()]
        rows = [self.share.places(part.env_indices) for part in self._chunks]
        return run_parts(loop, self._chunks, rows, inputs, axes, ready)

    def _ready(self, waiting: dict[int, str]) -> int:
        """Waits for all messages of a part.

        Args:
            waiting: the edge of the message that each waiting part needs next.
        """
        missing: dict[int, list[tuple[int, int]]] = {}
        for number, name in waiting.items():
            edge = self._chunks[number].share.exchange.edges[name]
            missing[number] = [(edge.source.first_rank + i, edge.tag) for i, _ in edge.pairs]
        stage = self.rank.stages.edge(next(iter(waiting.values())))
        while True:
            flat = [(number, one) for number, found in missing.items() for one in found]
            number, one = flat[self.rank.messenger.first_of([one for _, one in flat], stage)]
            missing[number].remove(one)
            if not missing[number]:
                return number

    def send(self, name: str, values: tuple) -> None:
        """Sends this replica's part of a message to the replicas that need it."""
        if self._server is None:
            super().send(name, values)
        else:
            self._server.send(name, values)

    def receive(self, name: str) -> tuple:
        """Receives this replica's part of a message. Returns: its values, without parameters."""
        if self._client is None or not self.share.exchange.edges[name].message.parameters:
            return super().receive(name)
        self._client.receive(name)
        self.rank.stamp(Stage.PYTHON)
        return ()

    def record(self, key: str, value: Any, axis: int | None, made_in: Any = None) -> None:
        """Records a mark's values of this iteration for inspection.

        Args:
            key: the boundary's site and the place of the value's first array in all that pass it.
            value: of all turns, `[turns, ...]`; None if the condition was never met.
            axis: of the environments or agents; None for a replicated value.
            made_in: for a mark under a condition: the iteration that wrote each row, counted from
                1.
        """
        if value is not None and (axis is not None or self.rank.replica == 0):
            rows = ... if made_in is None else to_host(made_in) == self.rank.iteration + 1
            agents, own = self.rank.agents, self.env_indices
            if agents is not None and len(agents.share) < agents.count:
                own = agents.share
            place = "|" if axis is None else f"{axis}|{len(own)}"
            self._records[f"{key}|{place}"] = to_host(value)[rows].copy()

    # ---- the iteration boundary ------------------------------------------------------------

    def _begin(self) -> None:
        """Loads the checkpoint to resume from, or saves the trainer's initial parameters."""
        if self.rank.profile is not None and self.rank.plan.hosts:
            self.rank.profile.clock_ns = self.rank.messenger.clock_difference(Stage.BOUNDARY)
        self.state.compare_parameters()
        if self.rank.plan.resume:
            self.state.load(Path(self.rank.plan.resume))
        else:
            self.save()

    def _agree(self) -> int:
        """Returns the leader's decision, which is the same on every rank."""
        rank = self.rank
        command = rank.poll_command() if rank.number == 0 else CONTINUE
        if rank.iteration >= rank.plan.num_iterations or self._reached:
            command = STOP
        if rank.messenger.alone:
            return command
        data = np.array([command], np.uint8)
        if rank.number == 0:
            for target in range(1, rank.plan.num_ranks):
                rank.messenger.send(target, CONTROL_TAG, data)
        else:
            rank.messenger.receive(0, CONTROL_TAG, data, Stage.BOUNDARY)
        return int(data[0])

    def save(self) -> None:
        """Writes a checkpoint together with all other ranks."""
        self.share.exchange.settle()
        with contextlib.suppress(OSError):  # what the checkpoint has is reported before it is there
            self.rank.link.send("saving", rank=self.rank.number)
        self.rank.stamp(Stage.CHECKPOINT)
        self.state.save()

    def _end_iteration(self) -> None:
        rank = self.rank
        for steps in self._graph.take_steps():
            self.share.episodes.count_all(steps[:, 0], steps[:, 1] > 0)
        if self._records:
            folder = rank.run_dir / "records"
            folder.mkdir(exist_ok=True)
            np.savez(folder / f"{rank.iteration - 1:06d}-{rank.number:04d}.npz", **self._records)
            self._records = {}
        if not rank.served:
            rank.env_steps = rank.iteration * rank.plan.steps_per_iteration
        self.state.save_ahead()
        self._report_iteration()

    def _count_steps(self, steps: int, metrics: Callable[[], dict[str, float]]) -> None:
        """Adds a worker's steps; reports when the steps of a whole iteration are done."""
        rank = self.rank
        rank.env_steps += steps
        if rank.iterations_done > rank.iteration:
            rank.iteration = rank.iterations_done
            self._metrics |= metrics()
            self._report_iteration()

    def _report_iteration(self) -> None:
        episodes, goal = self.share.episodes.take_finished(), self.rank.goal
        self._reached = goal is not None and goal.reached(episodes)
        with contextlib.suppress(OSError):
            self.rank.link.send_soon(
                "iteration",
                rank=self.rank.number,
                iteration=self.rank.iteration,
                env_steps=self.rank.env_steps,
                episodes=episodes,
                metrics=dict(self._metrics),
            )
        self._metrics.clear()
        self.iterations_here += 1
        if self.rank.profile is not None:
            self.rank.profile.iteration(self.rank.iteration)
        if self.iterations_here in TRIM_AFTER:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)

    # ---- the end -----------------------------------------------------------------------------

    def traffic(self) -> Counts:
        """Returns the calls and bytes that this rank sent or reduced since it started."""
        messenger, edges = self.rank.messenger, self.share.exchange.edges
        names = {CONTROL_TAG: CONTROL, BYTES_TAG: CHECKPOINTS, RECORDS_TAG: RECORDS}
        names |= {edge.tag: name for name, edge in edges.items()}
        counts = {names[tag]: (calls, size) for tag, (calls, size) in messenger.sent.items()}
        for part in self._cells.reductions:
            calls = int(part.calls.asnumpy())
            name = f"{part.reduced} over {self.rank.fragment.name}"
            counts[name] = (calls, calls * part.message_bytes)
        return counts

    def close(self) -> None:
        """Waits for the last checkpoint, flushes outstanding sends and closes the environments."""
        self.rank.background.wait()
        super().close()
        if self.rank.profile is not None:
            self.rank.profile.write()
        self.rank.messenger.close()
        if self.share.vector is not None:
            self.share.vector.close()
