"""A cell on the CPU: native code where possible, else MindSpore."""

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import Parameter, nn

from mindspore_rl.codegen.differential_check import LARGEST, difference
from mindspore_rl.codegen.native_cell import NativeCell, unit_of
from mindspore_rl.codegen.unit import Unit
from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Graph
from mindspore_rl.platform import toolchain
from mindspore_rl.platform.cache import in_cache, keep
from mindspore_rl.purity.fingerprint import Unknown, fingerprint
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell


class LoweredCell:
    """A cell that chooses its backend at the first call, together with its fragment's replicas.

    Args:
        cell: the generated cell.
        owners: cells whose parameters it may use beside its own.
        turns: the bounds of its loops.
        agree: returns the minimum of the numbers that all replicas pass.
        keep: called with the C++ source of a native cell.
        threads: number of threads that it may use.
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
    ) -> None:
        self._cell, self._owners, self._turns = cell, owners, turns
        self._agree, self._chosen, self._keep = agree, chosen, keep
        self._threads = threads
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
        level = self._agree(toolchain.level())
        native, library, why = None, Path(), ""
        parameters = _parameters([self._cell, *self._owners])
        seen = _Seen(self._cell, inputs)
        unit = seen.unit if self._agree(int(seen.unit is not None)) else None
        graph = Graph(b"", {}) if unit else compiled.graph(*inputs)
        try:
            unit = unit or unit_of(graph)
            library = toolchain.cell_library(unit.text, level)
            native = NativeCell(unit, library, parameters, self._threads)
        except MsrlError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001  (a mistake of the compiler's ends no training)
            why = f"the native compiler failed, which is a mistake of its own: {error!r}"
        if not self._agree(int(native is not None)) or native is None:
            return None, why or "another replica cannot have it in native code"
        seen.keep(native.unit)
        verdict = _verdict(library)
        if not self._agree(int(verdict is not None)) or verdict is None:
            verdict = difference(
                parameters, self._turns, compiled, native, inputs, self._agree, native.unit.scales
            )
            _keep_verdict(library, verdict)
        off, where = verdict
        if self._agree(int(off <= 1.0)):
            self._keep(native.unit.text)
            return native, ""
        return None, (
            f"its native code gives another {where}, by {off * LARGEST:.1e} of the largest entry"
        )


class _Seen:
    """Cached unit of a cell that was compiled before, so that MindSpore need not compile it."""

    def __init__(self, cell: nn.Cell, inputs: tuple) -> None:
        self.unit: Unit | None = None
        self._key = ""
        with contextlib.suppress(Unknown, OSError):
            self._key = fingerprint(cell, inputs)
        path = in_cache(self._name) if self._key else None
        if path is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                self.unit = Unit.from_json(path.read_text())

    @property
    def _name(self) -> str:
        return f"native/graph-{self._key}.json"

    def keep(self, unit: Unit) -> None:
        """Stores the unit in the cache."""
        if self._key and self.unit is None:
            keep(self._name, unit.to_json().encode())


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
