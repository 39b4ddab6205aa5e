"""A generated C++ unit, cached between jobs."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_rl.codegen.cost import Work
from mindspore_rl.mindir.graph import Type


@dataclass(frozen=True)
class Unit:
    """A cell as C++.

    Attributes:
        text: the source; its entry is
            `int run(void **data, char *memory, void **functions, char *results)`.
        memory_bytes: of the area that it works in.
        inputs: types of what it is called with.
        weights: names of the cell's parameters, in the order of their pointers.
        results: types of what it gives, each aligned in one area.
        structure: of the results, nested tuples of positions.
        functions: `library:name` of functions that it calls.
        work: how much it computes.
    """

    text: str
    memory_bytes: int
    inputs: tuple[Type, ...]
    weights: tuple[str, ...]
    results: tuple[Type, ...]
    structure: Any
    functions: tuple[str, ...]
    work: tuple[Work, ...] = ()

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Unit":
        """A unit that was kept."""

        def tuples(value: Any) -> Any:
            return tuple(map(tuples, value)) if isinstance(value, list) else value

        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no unit")
        fields = {name: tuples(value) for name, value in found.items()}
        for name in ("inputs", "results"):
            fields[name] = tuple(Type(tuple(t["shape"]), t["dtype"]) for t in fields[name])
        fields["work"] = tuple(Work(**{**w, "bounds": tuple(w["bounds"])}) for w in found["work"])
        unit = cls(**fields)
        for function in unit.functions:
            if not Path(function.rsplit(":", 1)[0]).exists():
                raise ValueError(f"{function} is gone")
        return unit
