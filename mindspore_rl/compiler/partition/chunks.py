"""Chunks: pipelines a loop over parts of the environments, so that fragments wait less.

While one fragment works on one chunk, the fragments that it exchanges messages with work on
another. Environment i belongs to chunk i mod `chunks`, so that every share of consecutive
environments is spread as evenly as possible over all chunks.
"""

from collections.abc import Iterator
from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op, paths
from mindspore_rl.compiler.ir.operations import OPERATIONS, PARAMETERS
from mindspore_rl.compiler.partition.partition import Message, Partition
from mindspore_rl.errors import PolicyError
from mindspore_rl.policy import SYNCHRONOUS


def chunk_loops(partition: Partition, in_graph: bool) -> Partition:
    """Marks the loops that run in chunks, if the policy's schedule asks for them.

    Args:
        partition: the partitioned program.
        in_graph: whether the environment is compiled.

    Raises:
        PolicyError: no loop can run in chunks; gives the reason.
    """
    schedule = partition.policy.schedule
    if schedule.chunks == 1:
        return partition
    asked = f"policy {partition.policy.name} asks for chunks={schedule.chunks}"
    if schedule.order != SYNCHRONOUS or in_graph:
        why = (
            "with an environment in the graph: chunks overlap a Python environment with inference"
            if in_graph
            else f"and order={schedule.order}: choose one of the two"
        )
        raise PolicyError(f"{asked} {why}")
    refused = {}
    for loop, _ in paths(partition.program.body):
        if isinstance(loop, Loop):
            messages = _sent_in(partition, loop)
            if {m.source for m in messages} & {m.target for m in messages}:
                refused[loop.name] = _reason(partition, loop, messages)
    chosen = frozenset(name for name, reason in refused.items() if not reason)
    if not refused:
        raise PolicyError(
            f"{asked}, and its fragments wait for each other in no inner loop: there is nothing "
            "to overlap; leave chunks out"
        )
    if not chosen:
        raise PolicyError(f"{asked}, and {next(iter(refused.values()))}")
    body = tuple(_marked(partition.program.body, chosen, schedule.chunks))
    return replace(partition, program=replace(partition.program, body=body))


def _sent_in(partition: Partition, loop: Loop) -> list[Message]:
    """Returns the messages that are sent in a loop, but in no loop inside it."""
    if loop.kind == "iterations":
        return []
    around = {item.name: found for item, found in paths(partition.program.body)}
    found = []
    for message in partition.messages:
        loops = [item for item in around[message.after] if isinstance(item, Loop)]
        if loops and loops[-1].name == loop.name:
            found.append(message)
    return found


def _reason(partition: Partition, loop: Loop, messages: list[Message]) -> str:
    """Returns the reason why a loop cannot run in chunks; empty if it can."""
    program, chunks = partition.program, partition.policy.schedule.chunks
    names = {name for m in messages for name in (m.source, m.target)}
    fragments = [f for f in partition.fragments if f.name in names]
    ops = frozenset().union(*(f.ops for f in fragments))
    for item, around in paths(loop.body):
        if isinstance(item, Op) and item.name in ops:
            if any(isinstance(outer, Loop) for outer in around):
                return f"{item.name} stands in a loop inside {loop.name}\n  {item.where}"
            if OPERATIONS[item.kind].whole:
                return f"{item.name} takes all environments together\n  {item.where}"
            if item.name in program.unsplittable:
                return (
                    f"`{item.targets[0]}` has an entry for each environment but is made of none\n"
                    f"  {item.where}"
                )
            if item.name in program.row_dependent:
                return f"{program.row_dependent[item.name]}\n  {item.where}"
            if wrong := next(_not_rows(partition, item), ""):
                return f"`{wrong}` does not hold one row for each environment\n  {item.where}"
    if any(PARAMETERS in message.variables for message in messages):
        return f"parameters change within {loop.name}"
    for fragment in fragments:
        fewest = min(map(len, fragment.shares))
        if fewest < chunks:
            return (
                f"a replica of {fragment.name} has {fewest} environments, expected at least "
                f"{chunks}: ask for fewer workers or chunks, or more environments"
            )
    return ""


def _not_rows(partition: Partition, op: Op) -> Iterator[str]:
    for name in (*op.reads, *op.targets):
        if name in partition.program.values:
            leaves = partition.program.values[name].leaves
            kept = op.kind in ("replay_insert", "replay_keep") and name in op.args
            stored = kept and any(leaf.axis != 0 for leaf in leaves)
            if stored or any(leaf.axis is not None and leaf.per_env != 1 for leaf in leaves):
                yield name


def _marked(items: tuple[Item, ...], chosen: frozenset[str], chunks: int) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Loop):
            body = tuple(_marked(item.body, chosen, chunks))
            yield replace(item, body=body, chunks=chunks if item.name in chosen else 1)
        elif isinstance(item, Branch):
            sides = [tuple(_marked(side, chosen, chunks)) for side in (item.body, item.orelse)]
            yield replace(item, body=sides[0], orelse=sides[1])
        else:
            yield item
