"""Draws the folders of mindspore_rl and their imports into docs/tour.md, from the code.

.venv/bin/python scripts/draw_house.py
"""

import re
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tour.md"
PACKAGE = "mindspore_rl"
GROUPS = {
    "compiler": ("compiler",),
    "runtime": ("runtime", "communication", "replay"),
    "native code": ("codegen", "mindir", "purity"),
}


def drawing() -> str:
    """Returns the picture as Mermaid's text, without arrows that follow from others."""
    graph = grimp.build_graph(PACKAGE)
    rooms = {
        name.rpartition(".")[2]: {name, *graph.find_descendants(name)}
        for name in sorted(graph.find_children(PACKAGE))
    }
    imported = {
        room: {m for module in modules for m in graph.find_modules_directly_imported_by(module)}
        for room, modules in rooms.items()
    }
    arrows = {
        room: {other for other in rooms if other != room and imported[room] & rooms[other]}
        for room in rooms
    }

    def reached(room: str) -> set[str]:
        return arrows[room].union(*(reached(other) for other in arrows[room]))

    ids = {room: f"room{number}" for number, room in enumerate(rooms)}
    lines = ["flowchart TD"]
    for title, grouped in GROUPS.items():
        lines += [f'  subgraph "the {title}"', *(f"    {ids[r]}[{r}]" for r in grouped), "  end"]
    grouped = {room for group in GROUPS.values() for room in group}
    lines += [f'  {ids[room]}["{room}"]' for room in rooms if room not in grouped]
    for room, others in arrows.items():
        behind = set().union(*(reached(other) for other in others))
        lines += [f"  {ids[room]} --> {ids[other]}" for other in sorted(others - behind)]
    return "\n".join(lines) + "\n"


def drawn(page: str) -> str:
    """Returns the page with the current picture."""
    picture = f"<!-- house -->\n```mermaid\n{drawing()}```\n<!-- end -->"
    return re.sub(r"<!-- house -->.*<!-- end -->", picture, page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
