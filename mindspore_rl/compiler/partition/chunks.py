"""Chunks: pipelines a loop over parts of the environments, so that fragments wait less.

While one fragment works on one chunk, the fragments that it exchanges messages with work on
another. Environment i belongs to chunk i mod `chunks`, so that every share of consecutive
environments is spread as evenly as possible over all chunks.

With `act_for`, the parts are the environments of some replicas of the fragment that steps them, and
only the fragment that acts runs the loop for each part, whenever that part's messages are there. So
the values are those of acting for all in every step, and a slow step delays only its own part.
"""

from collections.abc import Iterator
from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op, paths
from mindspore_rl.compiler.ir.operations import OPERATIONS, PARAMETERS
from mindspore_rl.compiler.partition.messages import Message
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
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
    if schedule.act_for:
        return _act_apart(partition)
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
    refused = {
        loop.name: _reason(partition, loop, messages) or _too_few(partition, messages)
        for loop, messages in _waiting_loops(partition)
    }
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


def _act_apart(partition: Partition) -> Partition:
    """Marks the loops that the acting fragment runs for each part.

    Raises:
        PolicyError: a loop cannot run so; gives the reason.
    """
    act_for = partition.policy.schedule.act_for
    asked = f"policy {partition.policy.name} asks for act_for={act_for}"
    loops = list(_waiting_loops(partition))
    ends = {m.source for _, found in loops for m in found}
    ends |= {m.target for _, found in loops for m in found}
    if not loops:
        raise PolicyError(
            f"{asked}, and its fragments wait for each other in no inner loop: nobody acts for the "
            "environments of others; leave act_for out, or take SingleLearnerFine"
        )
    acting, stepping = (
        next(f for f in partition.fragments if part in f.components)
        for part in ("actor", "environment")
    )
    if acting.replicas != 1 or ends != {acting.name, stepping.name}:
        raise PolicyError(
            f"{asked}, which takes one replica that acts and one fragment whose replicas step "
            f"environments; here {acting.replicas} of {acting.name} act, and a loop joins "
            f"{', '.join(sorted(ends))}"
        )
    if act_for > stepping.replicas:
        raise PolicyError(
            f"{asked}, and there are {stepping.replicas} replicas of {stepping.name}; ask for "
            f"act_for={stepping.replicas} at most, or for more workers"
        )
    for loop, messages in loops:
        reason = _reason(partition, loop, messages, (acting.name,))
        if reason := reason or _without_rows(partition, messages):
            raise PolicyError(f"{asked}, and {reason}")
    if act_for == stepping.replicas:
        return partition
    shares = stepping.shares
    groups = [shares[i : i + act_for] for i in range(0, len(shares), act_for)]
    parts = tuple(range(group[0].start, group[-1].stop) for group in groups)
    chosen = frozenset(loop.name for loop, _ in loops)
    body = tuple(_marked(partition.program.body, chosen, len(parts), acting.name))
    return replace(partition, program=replace(partition.program, body=body), parts=parts)


def _waiting_loops(partition: Partition) -> Iterator[tuple[Loop, list[Message]]]:
    """Yields the loops in which fragments wait for each other, with their messages."""
    for loop, _ in paths(partition.program.body):
        if isinstance(loop, Loop):
            messages = _sent_in(partition, loop)
            if {m.source for m in messages} & {m.target for m in messages}:
                yield loop, messages


def _without_rows(partition: Partition, messages: list[Message]) -> str:
    """Returns the reason why a message cannot come from each part; empty if all can."""
    for message in messages:
        for name in message.variables:
            leaves = partition.program.values[name].leaves
            if any(leaf.axis is None for leaf in leaves):
                return f"{message.mark} carries `{name}`, which has no row for each environment"
    return ""


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


def _fragments(partition: Partition, messages: list[Message]) -> list[Fragment]:
    names = {name for m in messages for name in (m.source, m.target)}
    return [f for f in partition.fragments if f.name in names]


def _reason(
    partition: Partition, loop: Loop, messages: list[Message], only: tuple[str, ...] = ()
) -> str:
    """Returns the reason why a loop cannot run for parts of the environments; empty if it can.

    It runs so in the fragments `only`, or in all that exchange messages in it.
    """
    program = partition.program
    fragments = [f for f in _fragments(partition, messages) if not only or f.name in only]
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
    return ""


def _too_few(partition: Partition, messages: list[Message]) -> str:
    """Returns the reason why a fragment has too few environments for chunks; empty if none has."""
    chunks = partition.policy.schedule.chunks
    for fragment in _fragments(partition, messages):
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


def _marked(
    items: tuple[Item, ...], chosen: frozenset[str], chunks: int, apart: str = ""
) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Loop):
            loop = replace(item, body=tuple(_marked(item.body, chosen, chunks, apart)))
            chunked = item.name in chosen
            yield replace(loop, chunks=chunks, apart=apart) if chunked else loop
        elif isinstance(item, Branch):
            both = (item.body, item.orelse)
            sides = [tuple(_marked(side, chosen, chunks, apart)) for side in both]
            yield replace(item, body=sides[0], orelse=sides[1])
        else:
            yield item
