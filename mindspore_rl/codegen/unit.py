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
        memory_bytes: size of its working memory.
        inputs: types of its inputs.
        weights: names of the cell's parameters, in the order of their pointers.
        results: types of its results, each aligned in one area.
        structure: nested tuples of positions in `results`, the structure that the cell returns.
        functions: `library:name` of the functions that it calls.
        work: the amount of computation, by loop.
        scales: for each result, the size of the number in a sum with one (1 - x: 1.0), or 0.0.
            Its rounding error is relative to that number, however small the result is.
    """

    text: str
    memory_bytes: int
    inputs: tuple[Type, ...]
    weights: tuple[str, ...]
    results: tuple[Type, ...]
    structure: Any
    functions: tuple[str, ...]
    work: tuple[Work, ...] = ()
    scales: tuple[float, ...] = ()

    def to_json(self) -> str:
        """Returns the unit as text for `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Unit":
        """Restores a unit from the text of `to_json`.

        Raises:
            ValueError: the text is not that of a unit, or a library that it calls is gone.
        """

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
