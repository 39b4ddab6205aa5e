"""Builds and lowers a rank's cells when generated code first needs them."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mindspore_rl.communication.group import HostGroup
from mindspore_rl.plan.stages import Stage
from mindspore_rl.platform.cache import writing
from mindspore_rl.runtime.rank import arrays
from mindspore_rl.runtime.rank.graph_environment import GraphEnvironments
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.state import RankState


class Cells:
    """Makes functions of generated cells, see `function`.

    Args:
        group: for the collectives inside cells; None: there are none.
        graph: records the steps of environments inside cells.
        threads: number of threads that a native cell may use.

    Attributes:
        reductions: the collectives of all cells built so far.
        native: the cells that may run as native code, by name.
    """

    def __init__(
        self, rank: Rank, state: RankState, graph: GraphEnvironments, group: Any, threads: int
    ) -> None:
        self._rank, self._state, self._graph = rank, state, graph
        self._group, self._threads = group, threads
        self.reductions: list[Any] = []
        self.native: dict[str, Any] = {}

    def function(
        self, built: Any, name: str, to_host: tuple[int, ...], obs: tuple[int, ...]
    ) -> Callable:
        """Returns a region's cell as a function of arrays, numbers and tensors.

        Args:
            built: the cell.
            name: of the region.
            to_host: positions of the outputs that Python code reads, returned as arrays.
            obs: positions of the outputs that are observations.
        """
        from mindspore_rl.runtime.rank.cell_parts import reductions_of  # noqa: PLC0415

        rank, graph, group = self._rank, self._graph, self._group
        kept = graph.kept()
        self.reductions += reductions_of(built)
        stage = rank.stages.cell(rank.fragment.name, name)
        cell = self._lowered(built, name, stage)

        def call(*inputs: Any) -> Any:
            rank.stamp(stage)
            try:
                result = cell(*inputs)
            except RuntimeError:
                if isinstance(group, HostGroup) and group.error is not None:
                    raise group.error from None  # the error inside a collective
                raise
            outputs = list(result) if isinstance(result, tuple) else [result]
            graph.collect(kept, tuple([outputs[i] for i in obs]))
            for i in to_host:
                if not isinstance(outputs[i], tuple):
                    outputs[i] = arrays.to_host(outputs[i])
            result = tuple(outputs) if isinstance(result, tuple) else outputs[0]
            rank.stamp(Stage.PYTHON)
            return result

        return call

    def _lowered(self, built: Any, name: str, stage: int) -> Callable:
        """Lowers a cell as the plan requires: to native code where possible, or to MindSpore."""
        rank, state = self._rank, self._state
        if rank.plan.cells != "native":
            from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell  # noqa: PLC0415

            return CompiledCell(built)
        from mindspore_rl.runtime.rank.cell_parts import turns_of  # noqa: PLC0415
        from mindspore_rl.runtime.rank.native_or_mindspore import LoweredCell  # noqa: PLC0415

        def chosen(native: bool, why: str) -> None:
            state.native[name] = native
            if rank.replica != 0:
                return
            if why:
                rank.note(f"cell {name} runs in MindSpore: {why}")
            if native != state.native_before.get(name, native):
                other = "MindSpore's" if native else "native"
                rank.note(f"cell {name} was {other} before: equal up to rounding from here on")

        def keep(text: str) -> None:
            file = f"{Path(rank.fragment.file).stem}.{name}.cpp"
            path = rank.run_dir / "fragments" / file
            if rank.replica == 0:
                with writing(path):
                    path.write_text(text)

        replicas, arrivals = rank.fragment.ranks, rank.plan.arrivals
        if arrivals is not None and arrivals.sender == rank.fragment.name:
            # Asynchronous workers choose alone: else a fast worker would wait here for the others.
            replicas = replicas[rank.replica : rank.replica + 1]
        agree = partial(rank.messenger.agree, replicas, stage)
        trainer = state.trainer
        owners = [part for part in (trainer.actor, trainer.learner) if part is not None]
        alone = self._group.alone if isinstance(self._group, HostGroup) else contextlib.nullcontext
        self.native[name] = LoweredCell(
            built, owners, turns_of(built), agree, chosen, keep, self._threads, alone
        )
        return self.native[name]
