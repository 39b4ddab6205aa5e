"""A cell on the CPU: native code where possible, else MindSpore."""

import contextlib
import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mindspore import Parameter, nn

from mindspore_rl.codegen.differential_check import LARGEST, difference
from mindspore_rl.codegen.native_cell import NativeCell, unit_of
from mindspore_rl.codegen.unit import Unit
from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Graph
from mindspore_rl.platform import toolchain
from mindspore_rl.platform.cache import in_cache, in_turn, keep
from mindspore_rl.purity.fingerprint import Unknown, fingerprint
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell

NONE = "null"
"""Entry in the cache of a cell that has no native form."""


class LoweredCell:
    """A cell that chooses its backend at the first call, together with its fragment's replicas.

    Args:
        cell: the generated cell.
        owners: cells whose parameters it may use beside its own.
        turns: the bounds of its loops.
        agree: returns the minimum of the numbers that all replicas pass.
        keep: called with the C++ source of a native cell.
        threads: number of threads that it may use.
        alone: makes a context in which the cell's collectives wait for no other replica.
        chosen: called with whether the cell is native, and why not (empty if it is).
    """

    def __init__(
        self,
        cell: nn.Cell,
        owners: list[nn.Cell],
        turns: list[Parameter],
        agree: Callable[[int], int],
        chosen: Callable[[bool, str], None],
        keep: Callable[[str], None],
        threads: int = 1,
        alone: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._cell, self._owners, self._turns = cell, owners, turns
        self._agree, self._chosen, self._keep = agree, chosen, keep
        self._threads, self._alone = threads, alone
        self._run: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Runs the cell on arrays, numbers and tensors."""
        if self._run is None:
            compiled = CompiledCell(self._cell)
            native, why = self._choose(compiled, inputs)
            self._chosen(native is not None, why)
            self._run = native or compiled
        return self._run(*inputs)

    def work(self) -> tuple[float, float, float]:
        """Returns the operators launched in a call, their flops and moved bytes; 0: unknown.

        The numbers describe a device without fusion: native code launches fewer operators.
        """
        turns = {found.name: int(found.asnumpy()) for found in self._turns}
        parts = self._run.unit.work if isinstance(self._run, NativeCell) else ()
        times = [math.prod(turns.get(name, 1) for name in part.bounds) for part in parts]
        keys = ("launches", "flops", "moved_bytes")
        launches, flops, moved = (
            sum(n * getattr(part, key) for n, part in zip(times, parts, strict=True))
            for key in keys
        )
        return launches, flops, moved

    def _choose(self, compiled: CompiledCell, inputs: tuple) -> tuple[NativeCell | None, str]:
        native, why = self._made(compiled, inputs, self._agree(toolchain.level()))
        if not self._agree(int(native is not None)) or native is None:
            return None, why or "another replica cannot have it in native code"
        self._keep(native.unit.text)
        return native, ""

    def _made(
        self, compiled: CompiledCell, inputs: tuple, level: int
    ) -> tuple[NativeCell | None, str]:
        """Makes the cell's native code and checks it, or takes both from the cache.

        One process does it for a cell, while other replicas wait and take what it has kept. So
        nothing here may wait for a replica.

        Returns: the native cell, or None and the reason.
        """
        seen = _Seen(self._cell, inputs)
        with contextlib.ExitStack() as turn:
            if not seen.known:
                turn.enter_context(in_turn(seen.name))
                seen.look()
            unit, native, library, why = seen.unit, None, Path(), ""
            graph = Graph(b"", {}) if unit else compiled.graph(*inputs)
            parameters = _parameters([self._cell, *self._owners])
            try:
                unit = unit or unit_of(graph)
                library = toolchain.cell_library(unit.text, level)
                native = NativeCell(unit, library, parameters, self._threads)
            except MsrlError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001  (a mistake of the compiler's ends no training)
                why = f"the native compiler failed, which is a mistake of its own: {error!r}"
            if native is None:
                seen.keep(None)
                return None, why
            verdict = _verdict(library)
            if verdict is None:
                with self._alone():
                    verdict = difference(
                        parameters, self._turns, compiled, native, inputs, native.unit.scales
                    )
                _keep_verdict(library, verdict)
            seen.keep(native.unit)
        off, where = verdict
        if off <= 1.0:
            return native, ""
        return None, (
            f"its native code gives another {where}, by {off * LARGEST:.1e} of the largest entry"
        )


class _Seen:
    """Cache entry of a cell that was compiled before, so that MindSpore need not compile it.

    Attributes:
        name: of its file in the cache; empty if the cell has no fingerprint.
        unit: None if the cache has none.
        known: whether no other process can spare this one the work.
    """

    def __init__(self, cell: nn.Cell, inputs: tuple) -> None:
        self.name = ""
        self.unit: Unit | None = None
        self.known = True
        with contextlib.suppress(Unknown, OSError):
            self.name = f"native/graph-{fingerprint(cell, inputs)}.json"
            self.look()

    def look(self) -> None:
        """Reads the cache."""
        path, self.known = in_cache(self.name), False
        if path is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                text = path.read_text()
                self.unit = None if text == NONE else Unit.from_json(text)
                self.known = True

    def keep(self, unit: Unit | None) -> None:
        """Stores the unit in the cache, after its check; None: the cell has no native form."""
        if self.name and self.unit is None and (unit is not None or not self.known):
            keep(self.name, (unit.to_json() if unit else NONE).encode())


def _parameters(owners: list[nn.Cell]) -> dict[str, Parameter]:
    """Returns parameters by name, without duplicate names, which the graph cannot tell apart."""
    found: dict[str, Parameter] = {}
    shared = set()
    for parameter in (p for owner in owners for p in owner.get_parameters()):
        if found.setdefault(parameter.name, parameter) is not parameter:
            shared.add(parameter.name)
    return {name: parameter for name, parameter in found.items() if name not in shared}


def _verdict(library: Path) -> tuple[float, str] | None:
    try:
        off, where = json.loads(library.with_suffix(".json").read_text())
        return float(off), str(where)
    except (OSError, ValueError, TypeError):
        return None


def _keep_verdict(library: Path, verdict: tuple[float, str]) -> None:
    keep(f"native/{library.stem}.json", json.dumps(verdict).encode())
