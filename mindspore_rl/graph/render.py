"""The graph for people: as text, as a dot file, and as a summary of a plan."""

from itertools import product

from mindspore_rl.graph.flow import INITIAL, definitions
from mindspore_rl.graph.ir import EFFECTS, Branch, Item, Loop, Op, Program, paths, walk
from mindspore_rl.graph.partition import Partition
from mindspore_rl.plan.plan import Arrivals
from mindspore_rl.plan.value import Value


def render_program(program: Program) -> str:
    """Every operation with its component, results and source line, in the loop tree."""
    lines = [f"program {program.algorithm}"]
    _render_items(program, program.body, 1, lines)
    return "\n".join(lines) + "\n"


def _render_items(program: Program, items: tuple[Item, ...], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for item in items:
        if isinstance(item, Op):
            lines.append(pad + _render_op(program, item))
        elif isinstance(item, Loop):
            count = "" if item.count is None else f" x{item.count}"
            lines.append(f"{pad}loop {item.name}{count} index {item.index}")
            _render_items(program, item.body, depth + 1, lines)
        elif isinstance(item, Branch):
            lines.append(f"{pad}if {item.test}")
            _render_items(program, item.body, depth + 1, lines)
            if item.orelse:
                lines.append(f"{pad}else")
                _render_items(program, item.orelse, depth + 1, lines)


def _render_op(program: Program, op: Op) -> str:
    results = ", ".join(f"{t} {render_value(program.values.get(t))}" for t in op.targets)
    effects = " ".join(
        [f"reads {e}" for e in op.reads if e in EFFECTS] + [f"writes {e}" for e in op.writes]
    )
    mark = f' mark "{op.mark}"' if op.mark else ""
    parts = [f"{op.name} [{op.component}]{mark} ({', '.join(op.args)})"]
    parts += [f"-> {results}"] if results else []
    parts += [effects] if effects else []
    return f"{'  '.join(parts)}  @ {op.where.file}:{op.where.line}"


def render_value(value: Value | None) -> str:
    """`float32[128, 8e, 3a, 4]`, with `e` on the axis of environments and `a` on that of agents."""
    if value is None:
        return ""
    if value.parts:
        return f"({', '.join(render_value(part) for part in value.parts)})"
    letters = {value.axis: "e", value.agent_axis: "a"}
    extents = [f"{n}{letters.get(i, '')}" for i, n in enumerate(value.shape)]
    return f"{value.dtype}[{', '.join(extents)}]"


def render_edges(program: Program) -> str:
    """Every def-use edge: shape, dtype, bytes, times it fires in an iteration."""
    ops = {op.name: op for op, _ in walk(program.body)}
    times = {}
    for op, loops in walk(program.body):
        times[op.name] = 1
        for loop in loops:
            times[op.name] *= loop.count or 1
    order = {name: i for i, name in enumerate(ops)}
    lines = ["edges (bytes: all environments; times: in an iteration)"]
    for reader, found in definitions(program.body).items():
        for variable, definers in sorted(found.items()):
            for definer in sorted(definers - {INITIAL}):
                if definer not in ops:
                    continue
                value = program.values.get(variable)
                size = f"{value.message_bytes} B" if value else "effect"
                carried = " carried" if order[definer] >= order.get(reader, len(order)) else ""
                lines.append(
                    f"  {definer} -> {reader}: {variable} {render_value(value)} {size} "
                    f"x{times.get(reader, 1)}{carried}"
                )
    return "\n".join(lines) + "\n"


def render_partition(partition: Partition) -> str:
    """Fragments with their operations, cut edges and reductions."""
    lines = [f"policy {partition.policy.name}: {partition.policy.summary}"]
    ops = [op for op, _ in walk(partition.program.body)]
    rank = 0
    for fragment in partition.fragments:
        by_agent = fragment.split == "agent"
        noun, shares = (
            ("agents", fragment.agents) if by_agent else ("environments", fragment.shares)
        )
        envs = ", ".join(
            f"rank {rank + i}: {noun} {s.start}..{s.stop - 1}" for i, s in enumerate(shares)
        )
        lines.append(
            f"fragment {fragment.name} ({', '.join(fragment.components)}) "
            f"x{fragment.replicas}: {envs}"
        )
        rank += fragment.replicas
        lines.append("  " + " ".join(op.name for op in ops if op.name in fragment.ops))
    for message in partition.messages:
        moved = f", moved out of {', '.join(message.stacked)}" if message.stacked else ""
        lines.append(
            f"cut {message.mark}: {message.source} -> {message.target}, after "
            f"{message.after}{moved}: {', '.join(message.variables)}"
        )
    for item, _ in paths(partition.program.body):
        if isinstance(item, Loop) and item.chunks > 1:
            lines.append(
                f"loop {item.name} in {item.chunks} chunks: environment i in chunk "
                f"i mod {item.chunks}"
            )
    for name, op in sorted(partition.reduced):
        lines.append(f"reduce {op} over the replicas of {name}")
    if partition.arrivals is not None:
        lines.append(render_arrivals(partition.arrivals))
    return "\n".join(lines) + "\n"


def render_arrivals(arrivals: Arrivals) -> str:
    """Which fragment serves which by arrival."""
    stale = "dropped" if arrivals.drop_stale else "waited for"
    return (
        f"by arrival: {arrivals.consumer} serves one {arrivals.sender} at a time; more than "
        f"{arrivals.staleness} updates old is {stale}"
    )


def render_dot(partition: Partition) -> str:
    """Operations in clusters by fragment, for Graphviz."""
    lines = ["digraph fdg {", "  rankdir=LR; node [shape=box, fontname=monospace];"]
    for index, fragment in enumerate(partition.fragments):
        lines.append(f'  subgraph cluster_{index} {{ label="{fragment.name} x{fragment.replicas}";')
        for op, _ in walk(partition.program.body):
            if op.name in fragment.ops:
                lines.append(f'    "{fragment.name}/{op.name}" [label="{op.name}"];')
        lines.append("  }")
    cut = {(m.source, m.target, site): m.mark for m in partition.messages for site in m.site}
    edges = [
        (definer, variable, reader)
        for reader, found in definitions(partition.program.body).items()
        for variable, definers in sorted(found.items())
        for definer in sorted(definers - {INITIAL})
    ]
    for (definer, variable, reader), target, source in product(
        edges, partition.fragments, partition.fragments
    ):
        mark = cut.get((source.name, target.name, definer))
        here = source is target and definer in source.ops
        if reader in target.ops and (here or mark is not None):
            style = f'color=red label="{mark}"' if mark else f'label="{variable}"'
            ends = f'"{source.name}/{definer}" -> "{target.name}/{reader}"'
            lines.append(f"  {ends} [{style}];")
    return "\n".join([*lines, "}"]) + "\n"
