"""Prints the graph for people: edges, cuts, and a dot file."""

from collections.abc import Iterator
from itertools import product

from mindspore_rl.compiler.ir.dataflow import edges
from mindspore_rl.compiler.ir.ir import Loop, Op, Program, num_turns, paths, walk
from mindspore_rl.compiler.ir.text import render_value
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.plan.text import arrivals_text, lag_text


def render_edges(program: Program) -> str:
    """Lists every def-use edge: shape, dtype, bytes, times it fires in an iteration."""
    ops = {op.name: op for op, _ in walk(program.body)}
    times = {op.name: num_turns(loops) for op, loops in walk(program.body)}
    order = {name: i for i, name in enumerate(ops)}
    lines = ["edges (bytes: all environments; times: in an iteration)"]
    for definer, variable, reader in edges(program.body):
        if definer not in ops:
            continue
        value = program.values.get(variable)
        size = f"{render_value(value)} {value.message_bytes} B" if value else " effect"
        carried = " carried" if order[definer] >= order.get(reader, len(order)) else ""
        lines.append(f"  {definer} -> {reader}: {variable} {size} x{times.get(reader, 1)}{carried}")
    return "\n".join(lines) + "\n"


def render_partition(partition: Partition) -> str:
    """Lists fragments with their operations, cut edges and reductions."""
    lines = [f"policy {partition.policy.name}: {partition.policy.summary}"]
    ops = [op for op, _ in walk(partition.program.body)]
    lines += _fragments(partition.fragments, ops)
    for message in partition.messages:
        moved = f", moved out of {', '.join(message.stacked)}" if message.stacked else ""
        lines.append(
            f"cut {message.mark}: {message.source} -> {message.target}, after "
            f"{message.after}{moved}: {', '.join(message.variables)}"
        )
    for item, _ in paths(partition.program.body):
        if isinstance(item, Loop) and item.apart:
            lines.append(
                f"loop {item.name} in {item.apart} for {item.chunks} parts of the environments, "
                "each when it is ready"
            )
        elif isinstance(item, Loop) and item.chunks > 1:
            lines.append(
                f"loop {item.name} in {item.chunks} chunks: environment i in chunk "
                f"i mod {item.chunks}"
            )
    for name, op in sorted(partition.reduced):
        lines.append(f"reduce {op} over the replicas of {name}")
    if partition.policy.schedule.lag:
        kept = {op.name for op in ops if "lag" in op.attr}
        keeper = next((f.name for f in partition.fragments if f.ops & kept), "")
        lines.append(lag_text(partition.policy.schedule.lag, keeper))
    if partition.arrivals is not None:
        lines.append(arrivals_text(partition.arrivals))
    return "\n".join(lines) + "\n"


def render_fragments(fragments: tuple[Fragment, ...]) -> str:
    """Lists the environments or agents of each rank."""
    return "\n".join(_fragments(fragments, [])) + "\n"


def _fragments(fragments: tuple[Fragment, ...], ops: list[Op]) -> Iterator[str]:
    rank = 0
    for fragment in fragments:
        by_agent = fragment.split == "agent"
        noun, shares = (
            ("agents", fragment.agents) if by_agent else ("environments", fragment.shares)
        )
        envs = ", ".join(
            f"rank {rank + i}: {noun} {s.start}..{s.stop - 1}" for i, s in enumerate(shares)
        )
        yield (
            f"fragment {fragment.name} ({', '.join(fragment.components)}) "
            f"x{fragment.replicas}: {envs}"
        )
        rank += fragment.replicas
        if fragment.ops:
            yield "  " + " ".join(op.name for op in ops if op.name in fragment.ops)


def render_dot(partition: Partition) -> str:
    """Draws operations in clusters by fragment, for Graphviz."""
    lines = ["digraph fdg {", "  rankdir=LR; node [shape=box, fontname=monospace];"]
    for index, fragment in enumerate(partition.fragments):
        lines.append(f'  subgraph cluster_{index} {{ label="{fragment.name} x{fragment.replicas}";')
        for op, _ in walk(partition.program.body):
            if op.name in fragment.ops:
                lines.append(f'    "{fragment.name}/{op.name}" [label="{op.name}"];')
        lines.append("  }")
    cut = {(m.source, m.target, site): m.mark for m in partition.messages for site in m.site}
    for (definer, variable, reader), target, source in product(
        edges(partition.program.body), partition.fragments, partition.fragments
    ):
        mark = cut.get((source.name, target.name, definer))
        here = source is target and definer in source.ops
        if reader in target.ops and (here or mark is not None):
            style = f'color=red label="{mark}"' if mark else f'label="{variable}"'
            ends = f'"{source.name}/{definer}" -> "{target.name}/{reader}"'
            lines.append(f"  {ends} [{style}];")
    return "\n".join([*lines, "}"]) + "\n"
