"""Draws the rooms of mindspore_rl and who imports whom into docs/tour.md, from the code.

.venv/bin/python scripts/draw_house.py
"""

import re
from itertools import permutations
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tour.md"
ROOMS = {
    "the command line": (
        *("cli", "commands", "jobs", "training", "runs", "plan_commands", "checking"),
    ),
    "pipeline": ("pipeline",),
    "graph": ("graph",),
    "lowering": ("lowering",),
    "plan": ("plan",),
    "coordinator": ("runtime.coordinator",),
    "rank": ("runtime.rank",),
    "purity": ("purity",),
    "native": ("native",),
    "communication": ("communication",),
    "environments": ("environments",),
    "replay, datasets": ("replay", "datasets"),
    "profiling, scale": ("profiling", "scale"),
    "api, networks, rl": ("api", "networks", "rl"),
}
COMPILER, RUNTIME = ("pipeline", "graph", "lowering"), ("coordinator", "rank")


def drawing() -> str:
    """The picture as Mermaid's text."""
    graph = grimp.build_graph("mindspore_rl")
    inside = {
        room: {
            module
            for name in names
            for module in (
                f"mindspore_rl.{name}",
                *graph.find_descendants(f"mindspore_rl.{name}"),
            )
        }
        for room, names in ROOMS.items()
    }
    ids = {room: f"room{number}" for number, room in enumerate(ROOMS)}
    lines = ["flowchart TD"]
    for title, rooms in (("compiler", COMPILER), ("runtime", RUNTIME)):
        lines += [f"  subgraph {title}", *(f"    {ids[r]}[{r}]" for r in rooms), "  end"]
    rest = [room for room in ROOMS if room not in COMPILER + RUNTIME]
    lines += [f'  {ids[room]}["{room}"]' for room in rest]
    for one, other in permutations(ROOMS, 2):
        found = {
            m for module in inside[one] for m in graph.find_modules_directly_imported_by(module)
        }
        if found & inside[other]:
            lines.append(f"  {ids[one]} --> {ids[other]}")
    return "\n".join(lines) + "\n"


def drawn(page: str) -> str:
    """The page with the picture as it is now."""
    picture = f"<!-- house -->\n```mermaid\n{drawing()}```\n<!-- end -->"
    return re.sub(r"<!-- house -->.*<!-- end -->", picture, page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
