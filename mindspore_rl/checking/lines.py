"""Finds the line of the user's file where a compared value is made."""

from pathlib import Path
from typing import Any

from mindspore_rl.checking.compared import place_of
from mindspore_rl.compiler.ir.ir import Program, walk

CHANGED_BY = {
    "metric": "report",
    "environment": "env_step",
    "replay": "replay_insert",
    "parameters": "update",
}
"""Kinds of compared values besides boundaries and carried variables, and the operation of each."""


def of_program(program: Program) -> dict[str, str]:
    """Returns source lines by boundary site, by carried variable and by kind of `CHANGED_BY`."""
    kinds = {operation: kind for kind, operation in CHANGED_BY.items()}
    found: dict[str, list[str]] = {}
    for op, loops in walk(program.body):
        place = f"{Path(op.where.file).name}:{op.where.line}"
        keys = [kinds[op.kind]] if op.kind in kinds else []
        if op.kind == "boundary":
            keys.append(place_of(op.attr["site"]))
        for key in keys:
            found.setdefault(key, []).append(place)
        if loops:  # the last assignment counts
            found |= {f"variables/{name}": [place] for name in op.targets}
    return {key: ", ".join(dict.fromkeys(places)) for key, places in found.items()}


def of(name: str, lines: dict[str, str]) -> str:
    """Returns the source line of a value; empty if none is known."""
    return lines.get(name) or lines.get(_kind(name), "")


def told(one: Any, lines: dict[str, str]) -> str:
    """Returns a text that names a compared value, its source line and its iteration."""
    words = {"parameters": "parameter", "variables": "variable"}
    kind = _kind(one.name)
    name = one.name.removeprefix("boundary:").replace(f"{kind}/", f"{words.get(kind, kind)} ", 1)
    when = "at the end" if one.iteration is None else f"iteration {one.iteration}"
    when += ", as trained" if one.as_trained else ""
    line = of(one.name, lines)
    return f"{name}{line and f' ({line})'}, {when}"


def _kind(name: str) -> str:
    return name.replace(" ", "/").partition("/")[0]
