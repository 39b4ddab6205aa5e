"""Draws an algorithm's lines in the colours of the fragments that run them, as SVG."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.show.mermaid import COLOURS, GLUE, Flow, ends
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.traffic import describe, predict

DARK = ("#1e3a5f", "#1c4532", "#5c4a12", "#5b2245", "#3b2f6b", "#5f2120")
"""Fill colours on a dark page, in the order of `COLOURS`."""
LINE, CHARACTER, WIDEST, LANE = 20, 7.25, 78, 14
"""Height of a line, width of a character, most characters of a line, distance of two arrows."""
SVG = "http://www.w3.org/2000/svg"
NAME = "data-message"
"""Attribute of a message's text: its name in the plan."""
STYLE = "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}"
STYLE += "path{fill:none;stroke:#59636e}marker path{fill:#59636e}"


def render_svg(partition: Partition, plan: Plan) -> str:
    """Draws the lines with operations of components, and messages with their bytes.

    A line that several fragments run has the colours of all of them. The colours are those of a
    dark page where the reader prefers one.
    """
    ops = [op for op, _ in walk(partition.program.body) if op.component != GLUE]
    source = Path(plan.algorithm["file"])
    numbers = {op.name: op.where.line for op in ops if Path(op.where.file).name == source.name}
    lines = list(_statements(ast.parse(source.read_text()), set(numbers.values())))
    rows = {n: row for row, (first, last, _) in enumerate(lines) for n in range(first, last + 1)}
    row_of = {name: rows[number] for name, number in numbers.items() if number in rows}
    if not row_of:
        raise MsrlError(
            f"{source.name} has no line with an operation to draw; use --format mermaid"
        )
    said = {traffic.name: describe(traffic) for traffic in predict(plan)}
    titles = []
    for fragment in partition.fragments:
        reduced = [said[r.name] for r in plan.reductions if r.fragment == fragment.name]
        sums = f", summed among them: {'; '.join(reduced)}" if reduced else ""
        titles.append(f"{fragment.name} x {fragment.replicas}{sums}")
    flow, arrows = Flow(partition, [op.name for op in ops]), []
    for message in partition.messages:
        source_op, target_op = ends(message, partition, flow) or ("", "")
        if source_op in row_of and target_op in row_of:
            text = f"{message.mark}: {said[message.name]}"
            arrows.append((row_of[source_op], row_of[target_op], text, message.name))
    drawing = _Drawing([text for *_, text in lines], titles, arrows)
    for number, fragment in enumerate(partition.fragments):
        for row in {row_of[name] for name in fragment.ops if name in row_of}:
            drawing.colour(row, number)
    return drawing.svg()


def with_times(svg: str, times: Mapping[str, float]) -> str:
    """Adds times to the messages of a picture.

    Args:
        svg: of `render_svg`.
        times: milliseconds of an iteration by the name of a message.
    """
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.get("viewBox", "").split()[2:])
    for element in root.iter(f"{{{SVG}}}text"):
        if (name := element.get(NAME, "")) in times:
            element.text = f"{element.text}, {times[name]:.3g} ms"
            width = max(width, float(element.get("x", 0)) + CHARACTER * len(element.text) + 10)
    root.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
    return ElementTree.tostring(root, encoding="unicode")


def _statements(tree: ast.AST, lines: set[int]) -> Iterator[tuple[int, int, str]]:
    """Yields first and last line and text of statements with such lines, and what they are in."""

    def visit(node: ast.AST, depth: int) -> Iterator[tuple[int, int, str]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt) or not lines & _span(child):
                continue
            text = "    " * depth + ast.unparse(child).splitlines()[0]
            if isinstance(child, ast.ClassDef):
                yield from visit(child, depth)
            elif isinstance(child, ast.For | ast.While | ast.If | ast.FunctionDef):
                yield child.lineno, child.lineno, text
                yield from visit(child, depth + 1)
            else:
                cut = text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
                yield child.lineno, child.end_lineno or child.lineno, cut

    # The loop first, then what it calls.
    found = list(visit(tree, 0))
    starts = [i for i, (*_, text) in enumerate(found) if text.startswith("def ")] + [len(found)]
    functions = [found[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    for function in sorted(functions, key=lambda part: not part[0][2].startswith("def train")):
        yield from function


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


class _Drawing:
    """Rows of text on coloured ground, under a legend, with arrows on their right."""

    def __init__(
        self, texts: list[str], titles: list[str], arrows: list[tuple[int, int, str, str]]
    ) -> None:
        self._texts, self._titles, self._arrows = texts, titles, arrows
        self._colours: dict[int, list[int]] = {}
        self._top = LINE * (len(titles) + 1)
        self._right = CHARACTER * max(map(len, texts)) + 20

    def colour(self, row: int, number: int) -> None:
        """Gives a row the colour of a fragment, besides others."""
        self._colours.setdefault(row, []).append(number)

    def svg(self) -> str:
        """Returns the picture."""
        labels = self._right + LANE * (len(self._arrows) + 1)
        longest = max([len(text) for *_, text, _ in self._arrows], default=0)
        legend = CHARACTER * max(map(len, self._titles)) + 30
        width = max(labels + CHARACTER * longest + 10, legend)
        height = self._top + LINE * (len(self._texts) + 1)
        root = ElementTree.Element("svg", xmlns=SVG, viewBox=f"0 0 {width:.0f} {height}")
        fills = "".join(f".f{i}{{fill:{colour}}}" for i, colour in enumerate(COLOURS))
        dark = "".join(f".f{i}{{fill:{colour}}}" for i, colour in enumerate(DARK))
        dark += "text{fill:#e6edf3}path{stroke:#9198a1}marker path{fill:#9198a1}"
        style = f"{STYLE}{fills}@media(prefers-color-scheme:dark){{{dark}}}"
        ElementTree.SubElement(root, "style").text = style
        marker = ElementTree.SubElement(
            root, "marker", id="tip", viewBox="0 0 8 8", refX="7", refY="4", orient="auto"
        )
        ElementTree.SubElement(marker, "path", d="M0,0L8,4L0,8z")
        for number, title in enumerate(self._titles):
            self._ground(root, 4, LINE * number + 4, (LINE - 6, LINE - 6), number)
            self._write(root, 24, LINE * number, title)
        for row, text in enumerate(self._texts):
            for part, number in enumerate(own := sorted(self._colours.get(row, []))):
                each = (self._right - 8) / len(own)
                self._ground(root, 4 + part * each, self._y(row), (each, LINE), number)
            code = text.lstrip()
            self._write(root, 10 + CHARACTER * (len(text) - len(code)), self._y(row), code)
        taken = -float(LINE)
        for lane, (source, target, text, name) in enumerate(sorted(self._arrows)):
            begin, end = (self._y(row) + LINE / 2 for row in (source, target))
            out = self._right + LANE * (lane + 1)
            line = f"M{self._right - 4},{begin}H{out}V{end}H{self._right - 2}"
            ElementTree.SubElement(root, "path", {"d": line, "marker-end": "url(#tip)"})
            taken = max(taken + LINE, (begin + end) / 2 - LINE / 2)
            self._write(root, labels, taken, text, **{NAME: name})
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _y(self, row: int) -> float:
        return self._top + LINE * row

    def _ground(
        self, root: ElementTree.Element, x: float, y: float, size: tuple[float, float], number: int
    ) -> None:
        width, height = (f"{length:.0f}" for length in size)
        place = {"x": f"{x:.0f}", "y": f"{y:.0f}", "width": width, "height": height}
        ElementTree.SubElement(root, "rect", {**place, "class": f"f{number % len(COLOURS)}"})

    def _write(
        self, root: ElementTree.Element, x: float, y: float, text: str, **about: str
    ) -> None:
        place = {"x": f"{x:.0f}", "y": f"{y + 14:.0f}"}
        ElementTree.SubElement(root, "text", {**place, **about}).text = text
