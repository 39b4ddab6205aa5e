"""A job whose cells and environments only sleep, with the real launcher, runtime and messages.

With it, machines can be tested, and predictions compared with reality, with more ranks than could
compute here: no rank imports MindSpore, whose names are empty stubs in the generated code. Run as a
program, this module is a worker of such a job.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mindspore_rl.compiler.ir.ir import Op, Program, Region, paths
from mindspore_rl.performance.rank_script import CELL, Script, Word
from mindspore_rl.plan.edges import edges_by_chunk, local_shape
from mindspore_rl.plan.plan import Plan, save_plan
from mindspore_rl.plan.reading import read
from mindspore_rl.plan.stages import Stage
from mindspore_rl.plan.traffic import Counts
from mindspore_rl.plan.value import Value
from mindspore_rl.platform.cache import writing
from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime
from mindspore_rl.runtime.rank.rank import Rank

REHEARSAL_FILE = "rehearsal.json"
NOISE_SIZE = 1
_EMPTY = (
    "mindspore",
    "msrl_program",
    "mindspore_rl.rl.operators",
    "mindspore_rl.runtime.rank.cell_parts",
)
"""Modules that are replaced by stubs, with all their submodules."""
Reduce = Callable[[str, np.ndarray], np.ndarray]
Sleeps = Callable[[str, str], float]
"""Seconds that a fragment's part takes."""
SCALAR = Value((), "float32")


@dataclass(frozen=True)
class Part:
    """A cell or a step of environments, replaced by a sleep.

    Attributes:
        sleep_s: seconds that it takes.
        outputs: types of the values that it returns.
        sizes: bytes of each collective in it, in order.
        collectives: names of these collectives.
    """

    sleep_s: float
    outputs: tuple[Value, ...]
    sizes: tuple[int, ...] = ()
    collectives: tuple[str, ...] = ()


def write(plan: Plan, folder: Path, parts: dict[str, dict[str, Part]]) -> Plan:
    """Turns the job in a run directory into one that only sleeps.

    Args:
        plan: of the job.
        folder: the job's run directory.
        parts: of each fragment, by `cell act`, `reset` and `step`.

    Returns: the new plan.
    """
    data = {fragment: {k: asdict(v) for k, v in found.items()} for fragment, found in parts.items()}
    with writing(folder / REHEARSAL_FILE):
        (folder / REHEARSAL_FILE).write_text(json.dumps(data))
    fragments = tuple(
        replace(
            fragment,
            needs_tensors=False,
            components=tuple(c for c in fragment.components if c not in ("environment", "update")),
        )
        for fragment in plan.fragments
    )
    plan = replace(plan, fragments=fragments)
    save_plan(plan, folder)
    return plan


def parts_of(
    plan: Plan, programs: dict[str, Program], sleeps: Sleeps
) -> dict[str, dict[str, Part]]:
    """Makes the parts of a job's fragments, each as long as `sleeps` says."""
    found: dict[str, dict[str, Part]] = {}
    edges = edges_by_chunk(plan)
    for fragment in plan.fragments:
        program = programs[fragment.name]
        words = Script(plan, fragment.first_rank, program, edges).words(1)
        cells = {word.name: word for word in words if word.kind == CELL}
        parts = found[fragment.name] = {}
        for item, _ in paths(program.body):
            if isinstance(item, Region):
                name = f"cell {item.name}"
                values = tuple(program.values.get(v, SCALAR) for v in item.outputs)
                word = cells.get(name, Word(CELL, name))
                seconds = sleeps(fragment.name, name)
                parts[name] = Part(seconds, values, word.sizes, word.collectives)
            elif isinstance(item, Op) and item.kind in ("env_reset", "env_step"):
                name = item.kind.removeprefix("env_")
                values = tuple(program.values.get(v, SCALAR) for v in item.targets)
                parts[name] = Part(sleeps(fragment.name, name), values)
    return found


class Rehearsed(FragmentRuntime):
    """A fragment that sleeps instead of computing.

    Args:
        group: reduces over the fragment's replicas, if its cells hold collectives.
    """

    def __init__(self, rank: Rank, group: Reduce | None = None, threads: int = 1) -> None:
        super().__init__(rank, None, threads)
        data = json.loads((rank.run_dir / REHEARSAL_FILE).read_text())[rank.fragment.name]
        self._rehearsed = read(dict[str, Part], data)
        self._arrays = {
            name: tuple(map(self._array, part.outputs)) for name, part in self._rehearsed.items()
        }
        self._reduced: Counts = {}
        self._reduce = group
        self.actor = self.learner = SimpleNamespace(noise_size=NOISE_SIZE)
        exchange: Any = self.share.exchange
        exchange._parameters = lambda edge: np.zeros(edge.message.parameter_bytes, np.uint8)
        exchange._take_parameters = lambda edge, data: None
        exchange.older = list

    def _array(self, value: Value) -> Any:
        if value.parts:
            return tuple(map(self._array, value.parts))
        agents = len(self.rank.agents.share) if self.rank.agents is not None else 0
        return np.zeros(local_shape(value, len(self.env_indices), agents), value.dtype)

    def cell(self, cell_class: type, name: str, to_host: Any, obs: Any = ()) -> Any:
        """See `ShareRuntime`."""
        stage = self.rank.stages.cell(self.rank.fragment.name, name)

        def call(*_: Any) -> Any:
            self.rank.stamp(stage)
            outputs = self._sleep(f"cell {name}")
            self.rank.stamp(Stage.PYTHON)
            return outputs if len(outputs) > 1 else outputs[0] if outputs else None

        return call

    def env_reset(self) -> Any:
        """See `ShareRuntime`."""
        return self._step("reset")

    def env_step(self, action: Any) -> Any:
        """See `ShareRuntime`."""
        return self._step("step")

    def traffic(self) -> Counts:
        """See `FragmentRuntime`."""
        return super().traffic() | self._reduced

    def _step(self, name: str) -> Any:
        self.rank.stamp(Stage.ENVIRONMENT)
        outputs = self._sleep(name)
        self.rank.stamp(Stage.PYTHON)
        return outputs if len(outputs) > 1 else outputs[0]

    def _sleep(self, name: str) -> tuple:
        part = self._rehearsed[name]
        piece = part.sleep_s / (len(part.sizes) + 1)
        for collective, size in zip(part.collectives, part.sizes, strict=True):
            time.sleep(piece)
            assert self._reduce is not None
            self._reduce("sum", np.zeros(size // 4, np.float32))
            calls, total = self._reduced.get(collective, (0, 0))
            self._reduced[collective] = (calls + 1, total + size)
        time.sleep(piece)
        return self._arrays[name]


class _Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stub modules, in which every name is an empty class."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """See `MetaPathFinder`."""
        if any(name == empty or name.startswith((f"{empty}.", f"{empty}_")) for empty in _EMPTY):
            if name.startswith("mindspore_rl") and name not in _EMPTY:
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """See `Loader`."""
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`."""


class _Anything(type):
    """Metaclass of empty classes, every attribute of which is another empty class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


def without_mindspore() -> None:
    """Replaces MindSpore and modules of algorithms by stubs from now on."""
    sys.meta_path.insert(0, _Nothing())


def main() -> None:
    """Entry point of a worker process under mpiexec."""
    from mindspore_rl.runtime.rank import worker  # noqa: PLC0415

    without_mindspore()
    worker.main(Rehearsed, _join_group)


def _join_group(plan: Plan, comm: Any, settings: Any, link: Any) -> Reduce | None:
    own, _ = plan.fragment_of(comm.rank)
    return comm.channel(own.ranks, lambda: None) if own.collectives else None


if __name__ == "__main__":
    main()
