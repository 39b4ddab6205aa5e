"""Maps nodes of MindSpore's graph to lines of the program.

MindIR does not contain them; the text dump that MindSpore can write while it compiles does.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import mindspore

from mindspore_rl.mindir.graph import Value
from mindspore_rl.platform.cache import temporary_folder

_MINDSPORE = Path(mindspore.__file__).parent
_OWN = Path(__file__).parents[1]
_DUMPED = "MS_DEV_DUMP_IR_PASSES"
_FULL_NAME = re.compile(r"# Fullname with scope: \((.*)\)$")
_FRAME = re.compile(r"# In file (.+?):(\d+)(?:~\d+)?, [\d~]+/(.*?)/(?:<~~.*)?$")


@contextlib.contextmanager
def noting_sources() -> Iterator[dict[str, str]]:
    """Collects the source lines of nodes compiled inside the context, by scoped node name.

    The dictionary is filled on exit. It stays empty if no temporary folder can be written.
    """
    sources: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder())
        except OSError:
            yield sources
            return
        with _dumping(folder):
            yield sources
        for path in Path(folder).rglob("*validate*.ir"):
            sources |= _sources(path.read_text(errors="replace"))


@contextlib.contextmanager
def _dumping(folder: str) -> Iterator[None]:
    """Makes MindSpore dump the last of its graphs as text inside the context."""
    context = mindspore.context._context()  # (its `set_context` would warn)
    level = mindspore.context.ms_ctx_param.save_graphs
    passes = os.environ.get(_DUMPED)
    os.environ[_DUMPED] = "validate"
    context.set_param(level, 1)
    context.set_save_graphs_path(folder)
    try:
        yield
    finally:
        context.set_param(level, 0)
        if passes is None:
            del os.environ[_DUMPED]
        else:
            os.environ[_DUMPED] = passes


def _sources(text: str) -> dict[str, str]:
    """Parses a dump: for each node its innermost source line outside MindSpore.

    Lines of user code are preferred to lines of this package.
    """
    found: dict[str, str] = {}
    rank: dict[str, int] = {}
    node = ""
    for line in text.splitlines():
        if named := _FULL_NAME.search(line):
            node = named[1]
        elif node and (frame := _FRAME.search(line)):
            path, number, code = frame.groups()
            own = 1 if path.startswith(str(_OWN)) else 2
            if not path.startswith(str(_MINDSPORE)) and own >= rank.get(node, 0):
                rank[node] = own
                found[node] = f"{Path(path).name}:{number}: {code.strip()}"
        elif not line.lstrip().startswith("#"):
            node = ""
    return found


def comment(nodes: list[Value], sources: dict[str, str]) -> list[str]:
    """Returns C++ comments on the origin of nodes: source lines, enclosing cells, variables."""
    scopes = dict.fromkeys(_cells(node) for node in nodes)
    names = dict.fromkeys(node.variable for node in nodes if node.variable)
    text = ", ".join(filter(None, scopes)) + (f": {', '.join(names)}" if names else "")
    lines = dict.fromkeys(sources.get(node.scope, "") for node in nodes)
    return [f"// {line}" for line in (*lines, text) if line]


def where(node: Value, sources: dict[str, str]) -> str:
    """Returns a text with a primitive, its enclosing cells, variable and source line."""
    cells = f" in {_cells(node)}" if _cells(node) else ""
    name = f", for `{node.variable}`" if node.variable else ""
    line = f" ({sources[node.scope]})" if node.scope in sources else ""
    return f"{node.op}{cells}{name}{line}"


def _cells(node: Value) -> str:
    """Returns the names of the cells around a node, joined by slashes."""
    return "/".join(node.scope.removeprefix("Default/").split("/")[:-1])
