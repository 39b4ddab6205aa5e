"""Draws a partitioned algorithm in Mermaid, for web pages.

Only the operations of components are shown; an arrow stands for the glue between two of them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from mindspore_rl.compiler.ir.dataflow import edges
from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.compiler.partition.messages import Message
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.traffic import describe, predict

GLUE = "glue"
COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#fee2e2")
"""Fill colours of fragments, used in a cycle."""


def render_mermaid(partition: Partition, plan: Plan) -> str:
    """Draws fragments with the operations of their components, and messages with their bytes."""
    ops = [op for op, _ in walk(partition.program.body)]
    shown = {op.name: op.kind for op in ops if op.component != GLUE}
    flow = Flow(partition, list(shown))
    said = {traffic.name: describe(traffic) for traffic in predict(plan)}
    lines = ["flowchart LR"]
    for number, fragment in enumerate(partition.fragments):
        own = [name for name in shown if name in fragment.ops]
        title = [f"{fragment.name} x {fragment.replicas}"]
        reduced = [said[r.name] for r in plan.reductions if r.fragment == fragment.name]
        title += [f"reduced among them: {text}" for text in reduced]
        lines.append(f'  subgraph {_id(fragment.name)}["{"<br>".join(title)}"]')
        lines += [f'    {_id(fragment.name, name)}["{shown[name]}"]' for name in own]
        for name in own:
            for reader in flow.after([name], fragment.ops):
                if reader != name:
                    pair = _id(fragment.name, name), _id(fragment.name, reader)
                    lines.append(f"    {' --> '.join(pair)}")
        lines.append("  end")
        lines.append(f"  style {_id(fragment.name)} fill:{COLOURS[number % len(COLOURS)]}")
    for message in partition.messages:
        drawn = ends(message, partition, flow)
        if drawn is not None:
            text = f"{message.mark}: {said[message.name]}"
            source, target = _id(message.source, drawn[0]), _id(message.target, drawn[1])
            lines.append(f'  {source} == "{text}" ==> {target}')
    return "\n".join(lines) + "\n"


def _id(*names: str) -> str:
    return re.sub(r"\W", "_", "_".join(names))


class Flow:
    """Successors and predecessors among the shown operations, through any glue between them.

    Args:
        partition: the partitioned program.
        shown: names of operations, in the order of the program.
    """

    def __init__(self, partition: Partition, shown: list[str]) -> None:
        self._order = {name: i for i, name in enumerate(shown)}
        self._after: dict[str, set[str]] = defaultdict(set)
        self._before: dict[str, set[str]] = defaultdict(set)
        place = {op.name: i for i, (op, _) in enumerate(walk(partition.program.body))}
        for definer, variable, reader in edges(partition.program.body):
            effect = variable.startswith("$") and variable != PARAMETERS
            if effect and place.get(definer, 0) >= place.get(reader, 0):
                continue  # an effect that the next turn takes from this one
            self._after[definer].add(reader)
            self._before[reader].add(definer)

    def after(self, names: Iterable[str], within: Iterable[str]) -> list[str]:
        """Returns the next shown operations after `names`, through glue in `within` only."""
        return self._next(names, self._after, set(within))

    def before(self, names: Iterable[str], within: Iterable[str]) -> list[str]:
        """Returns the last shown operations before `names`, through glue in `within` only."""
        return self._next(names, self._before, set(within))

    def _next(self, names: Iterable[str], steps: dict[str, set[str]], within: set[str]) -> list:
        found: set[str] = set()
        seen: set[str] = set()
        left = list(names)
        while left:
            for name in steps[left.pop()] - seen:
                seen.add(name)
                if name not in within:
                    continue
                if name in self._order:
                    found.add(name)
                else:
                    left.append(name)
        return sorted(found, key=self._order.__getitem__)


def ends(message: Message, partition: Partition, flow: Flow) -> tuple[str, str] | None:
    """Returns the shown operation that a message comes from and the first that needs it."""
    named = {fragment.name: fragment for fragment in partition.fragments}
    source, target = named[message.source], named[message.target]
    shown = [name for name in message.site if name in flow._order]
    causes = shown or flow.before(message.site, source.ops)
    readers = flow.after(message.site, target.ops)
    if not causes or not readers:
        return None
    return causes[-1], readers[0]
