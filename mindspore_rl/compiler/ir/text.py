"""The graph as text that reads as Python, and back: `parse(render(program)) == program`.

A statement is an operation, `targets = kind(arguments)`. A comment behind it holds its other
fields; a comment above it shows the line of the user's program that it comes from.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from mindspore_rl.compiler.ir.ir import Branch, Expr, Loop, Lowered, Op, Program, Region, Where
from mindspore_rl.plan.value import Value

_AXES = {"e": "axis", "a": "agent_axis"}
_LINE = re.compile(r"# (.+?):(\d+): (.*)")
_EXTENT = re.compile(r"(\d+)([ea]*)(?:/(\d+))?")
_FIELDS = ("row_dependent", "unsplittable", "teams", "agents_mixed", "locals")


def render(program: Program) -> str:
    """Returns the text of a program or of a fragment's program."""
    lines = [f"# program {program.algorithm}"]
    lines += [
        f"# {field} {getattr(program, field)!r}" for field in _FIELDS if getattr(program, field)
    ]
    for alias, module, name in program.imports:
        lines.append(f"from {module} import {name}" + (f" as {alias}" if alias != name else ""))
    for name, value in program.values.items():
        lines.append(f'{name}: "{render_value(value)}"')
    return "\n".join([*lines, "", *_Writer().items(program.body, "")]) + "\n"


def render_value(value: Value) -> str:
    """Returns the text of a value, such as `float32[128, 8e, 3a, 4]`.

    `e` marks the axis of environments and `a` the axis of agents; `64e/8` has eight entries for
    each environment.
    """
    if value.parts:
        return f"{value.dtype}({', '.join(render_value(part) for part in value.parts)})"
    extents = [str(extent) for extent in value.shape]
    for letter, field in _AXES.items():
        if (axis := getattr(value, field)) is not None:
            extents[axis] += letter
    if value.per_env > 1 and value.axis is not None:
        extents[value.axis] += f"/{value.per_env}"
    return f"{value.dtype}[{', '.join(extents)}]"


class _Writer:
    """Writes items, with the user's source line wherever it changes."""

    def __init__(self) -> None:
        self.where: Where | None = None

    def items(self, items: tuple[Lowered, ...], pad: str) -> Iterator[str]:
        if not items:
            yield f"{pad}pass"
        for item in items:
            if not isinstance(item, Region) and item.where != self.where:
                self.where = item.where
                yield f"{pad}# {item.where.file}:{item.where.line}: {item.where.text}"
            yield from self.item(item, pad)

    def item(self, item: Lowered, pad: str) -> Iterator[str]:
        if isinstance(item, Op):
            targets = f"{', '.join(item.targets)} = " if item.targets else ""
            attrs = repr(dict(item.attrs)) if item.attrs else ""
            more = _more(item.name, reads=item.reads, writes=item.writes, mark=(item.mark,))
            behind = f"  # {more}" + (f" | {attrs}" if attrs else "")
            yield f"{pad}{targets}{item.kind}({', '.join(item.args)}){behind}"
        elif isinstance(item, Region):
            outputs = _more(item.name, gives=item.outputs)
            yield f"{pad}with region({', '.join(item.inputs)}):  # {outputs}"
            yield from self.items(item.items, pad + "    ")
        elif isinstance(item, Loop):
            count = "" if item.count is None else str(item.count)
            chunks = f", chunks={item.chunks}" if item.chunks > 1 else ""
            chunks += f", apart={item.apart!r}" if item.apart else ""
            yield f"{pad}for {item.index} in {item.kind}({count}{chunks}):  # {item.name}"
            yield from self.items(item.body, pad + "    ")
        else:
            first = ("turn",) if item.first else ()
            yield f"{pad}if {item.test}:  # {_more(item.name, reads=item.reads, first=first)}"
            yield from self.items(item.body, pad + "    ")
            if item.orelse:
                yield f"{pad}else:"
                yield from self.items(item.orelse, pad + "    ")


def _more(name: str, **fields: tuple[str, ...]) -> str:
    named = (f"{key} {' '.join(words)}" for key, words in fields.items() if any(words))
    return " | ".join([name, *named])


def parse(text: str) -> Program:
    """Parses the text of a program.

    Raises:
        ValueError: the text is not that of a program.
    """
    try:
        return _Reader(text).program()
    except (SyntaxError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise ValueError(f"no text of a program: {error!r}") from error


class _Reader:
    """Parses a text as Python and reads the comments by line number."""

    def __init__(self, text: str) -> None:
        self.tree, self.lines = ast.parse(text), text.splitlines()

    def program(self) -> Program:
        header: dict[str, Any] = {}
        for line in self.lines:
            word, _, rest = line.removeprefix("# ").partition(" ")
            if not line.startswith("# ") or (word != "program" and word not in _FIELDS):
                break
            header[word] = rest if word == "program" else ast.literal_eval(rest)
        if "program" not in header:
            raise ValueError(f"no text of a program, it begins with {self.lines[:1]}")
        imports: list[tuple[str, str, str]] = []
        values: dict[str, Value] = {}
        body = []
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                (alias,) = node.names
                imports.append((alias.asname or alias.name, str(node.module), alias.name))
            elif isinstance(node, ast.AnnAssign):
                target, annotation = _any(node.target), _any(node.annotation)
                values[target.id] = parse_value(annotation.value)
            else:
                body.append(node)
        return Program(
            header.pop("program"), self.items(body), tuple(imports), values=values, **header
        )

    def items(self, nodes: list[ast.stmt]) -> tuple[Any, ...]:
        return tuple(self.item(node) for node in nodes if not isinstance(node, ast.Pass))

    def item(self, node: Any) -> Lowered:
        more = self.more(node)
        if isinstance(node, ast.With):
            inputs = tuple(name.id for name in _any(node.items[0].context_expr).args)
            return Region(more["name"], self.items(node.body), inputs, more.get("gives", ()))
        where = self.where(node.lineno)
        if isinstance(node, ast.For):
            head = _any(node.iter)
            chunks = {keyword.arg: keyword.value.value for keyword in head.keywords}
            return Loop(
                more["name"],
                head.func.id,
                _any(node.target).id,
                head.args[0].value if head.args else None,
                self.items(node.body),
                where,
                **chunks,
            )
        if isinstance(node, ast.If):
            return Branch(
                more["name"],
                Expr(node.test),
                more.get("reads", ()),
                self.items(node.body),
                self.items(node.orelse),
                where,
                "first" in more,
            )
        targets, call = (), node.value
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            targets = tuple(t.id for t in getattr(target, "elts", [target]))
        parts = sorted([*call.args, *call.keywords], key=lambda part: part.col_offset)
        return Op(
            more["name"],
            call.func.id,
            targets,
            tuple(map(Expr, parts)),
            more.get("reads", ()),
            where,
            more.get("writes", ()),
            " ".join(more.get("mark", ())),
            more.get("attrs", ()),
        )

    def more(self, node: Any) -> dict[str, Any]:
        """Reads the fields in the comment behind a statement."""
        last: Any = node
        if isinstance(node, (ast.If, ast.For, ast.With)):
            last = getattr(node, "test", None) or getattr(node, "iter", None)
            last = last or _any(node).items[0].context_expr
        # Columns of the syntax tree count bytes.
        behind = self.lines[last.end_lineno - 1].encode()[last.end_col_offset :].decode()
        name, *fields = behind.lstrip(" :)").removeprefix("# ").split(" | ")
        found: dict[str, Any] = {"name": name}
        for position, field in enumerate(fields):
            if field.startswith("{"):
                written = ast.literal_eval(" | ".join(fields[position:]))
                return found | {"attrs": tuple(written.items())}
            key, *words = field.split(" ")
            found[key] = tuple(words)
        return found

    def where(self, line: int) -> Where:
        """Returns the user's source line from the nearest comment above a line."""
        for above in reversed(self.lines[: line - 1]):
            if match := _LINE.fullmatch(above.lstrip(" ")):
                return Where(match[1], int(match[2]), match[3])
        raise ValueError(f"line {line} has no line of the user's program above it")


def _any(node: ast.AST) -> Any:
    """Returns the node typed as `Any`; its class is known from the text format."""
    return node


def parse_value(text: str) -> Value:
    """Parses the text that `render_value` writes."""
    found, rest = _value(text)
    if rest:
        raise ValueError(f"no text of a value: {text!r}")
    return found


def _value(text: str) -> tuple[Value, str]:
    """Parses the value at the beginning of a text. Returns: it and the rest of the text."""
    dtype, bracket, rest = re.split(r"([\[(])", text, maxsplit=1)
    if bracket == "(":
        parts = []
        while not rest.startswith(")"):
            part, rest = _value(rest.removeprefix(", "))
            parts.append(part)
        return Value((), dtype, parts=tuple(parts)), rest[1:]
    inside, _, rest = rest.partition("]")
    shape: list[int] = []
    axes: dict[str, Any] = {}
    for axis, extent in enumerate(inside.split(", ") if inside else []):
        size, letters, each = _EXTENT.fullmatch(extent).groups()  # type: ignore[union-attr]
        shape.append(int(size))
        axes |= {_AXES[letter]: axis for letter in letters}
        axes |= {"per_env": int(each)} if each else {}
    return Value(tuple(shape), dtype, **axes), rest
