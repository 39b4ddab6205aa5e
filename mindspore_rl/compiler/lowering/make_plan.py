"""Makes the plan from the loops of fragments: their modules and their messages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl.compiler.ir.ir import Branch, Loop, Lowered, Op, num_turns, paths, walk
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.compiler.lowering.emit_module import Generated, generate
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.target import Target
from mindspore_rl.compiler.partition.messages import Message
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.errors import PolicyError
from mindspore_rl.plan.plan import (
    SHUFFLES,
    FragmentPlan,
    MessagePlan,
    Plan,
    ReductionPlan,
    ReplayPlan,
    save_plan,
)
from mindspore_rl.platform.cache import make_folder, write_file


def generate_all(
    partition: Partition,
    projections: dict[str, Projection],
    regions: dict[str, tuple[Lowered, ...]],
    target: Target,
) -> dict[str, Generated]:
    """Generates the modules of all fragments.

    Raises:
        PolicyError: the consumer of an asynchronous schedule would carry a value from one worker's
            iteration to another's.
    """
    algorithm, policy = partition.program.algorithm, partition.policy.name
    found = {}
    for name, projection in projections.items():
        title = (
            f"Fragment `{name}` of {algorithm} under {policy}: "
            f"{', '.join(projection.fragment.components)}."
        )
        code = generate(partition.program, projection, regions[name], target, title)
        if projection.serves and code.carried:
            carried = code.carried[0]
            *_, last = (op for op, _ in walk(partition.program.body) if carried in op.defines)
            way = f"it keeps Parameters only: let msrl.update put `{carried}` into one"
            if carried.startswith(SHUFFLES):
                way = "it cannot count shuffles under a condition: put the minibatches outside it"
            raise PolicyError(
                f"policy {policy} serves workers asynchronously, and {name} would carry "
                f"`{carried}` from an iteration of one worker to that of another\n  {last.where}\n"
                f"{way}"
            )
        found[name] = code
    return found


def make_plan(
    partition: Partition,
    projections: dict[str, Projection],
    code: dict[str, Generated],
    folder: Path,
    *,
    record: tuple[str, ...] = (),
    parameter_bytes: dict[str, int],
    **job: Any,
) -> Plan:
    """Writes the plan of generated fragments into a folder.

    Args:
        partition: the partitioned program, with partial sums resolved.
        projections: the projected programs of its fragments.
        code: their modules.
        folder: where `plan.json` and `fragments/*.py` are written.
        record: see `Plan`.
        parameter_bytes: size in bytes of a message of parameters, by `MessagePlan.parameters`.
        job: the other fields of `Plan`.
    """
    sources = folder / "fragments"
    make_folder(sources)
    fragments: list[FragmentPlan] = []
    first_rank = 0
    for name, projection in projections.items():
        found = _fragment(projection, code[name], first_rank)
        write_file(sources / found.file, code[name].source)
        fragments.append(found)
        first_rank += projection.fragment.replicas
    plan = Plan(
        fragments=tuple(fragments),
        messages=tuple(
            _message(partition, message, parameter_bytes) for message in partition.messages
        ),
        reductions=tuple(
            found for projection in projections.values() for found in _reductions(projection)
        ),
        policy=partition.policy.name,
        record=record,
        chunks=partition.policy.schedule.chunks,
        carried={
            variable: projection.values[variable]
            for name, projection in projections.items()
            for variable in code[name].carried
            if variable in projection.values
        },
        arrivals=partition.arrivals,
        parts=tuple((part.start, part.stop) for part in partition.parts),
        steps_per_env=partition.program.steps_per_env,
        replays=_replays(partition),
        **job,
    )
    save_plan(plan, folder)
    return plan


def _replays(partition: Partition) -> dict[str, ReplayPlan]:
    """Returns the kept replays of a program by name, perhaps empty."""
    keeps = [op for op, _ in walk(partition.program.body) if op.kind == "replay_keep"]
    attrs = ((op.replay or "", op.attr) for op in keeps)
    return {
        name: ReplayPlan(held["per_iteration"], held["capacity"], held["weighted"])
        for name, held in attrs
    }


def _fragment(projection: Projection, made: Generated, first_rank: int) -> FragmentPlan:
    fragment = projection.fragment
    return FragmentPlan(
        fragment.name,
        f"{fragment.name}.py",  # not sanitised: "a+b" and "a_b" are different fragments
        first_rank,
        tuple((s.start, s.stop) for s in fragment.shares),
        fragment.components,
        made.cells,
        made.collectives,
        made.needs_tensors,
        tuple((s.start, s.stop) for s in fragment.agents),
        max((op.attr.get("lag", 0) for op, _ in walk(projection.body)), default=0),
    )


def _reductions(projection: Projection) -> Iterator[ReductionPlan]:
    for item, around in paths(projection.body):
        if isinstance(item, Op) and item.kind == "all_reduce":
            yield ReductionPlan(
                f"{item.name.removeprefix('all_reduce:')} over {projection.fragment.name}",
                projection.fragment.name,
                item.attr["reduction"],
                sum(projection.values[name].message_bytes for name in item.targets),
                _times(around),
                _conditional(around),
            )


def _times(around: tuple[Loop | Branch, ...]) -> int:
    """Returns how often an item runs in an iteration; 0: once, before the first iteration."""
    loops = [item for item in around if isinstance(item, Loop)]
    if not any(loop.kind == "iterations" for loop in loops):
        return 0
    return num_turns(loops)


def _conditional(around: tuple[Loop | Branch, ...]) -> bool:
    return any(isinstance(item, Branch) for item in around)


def _message(
    partition: Partition, message: Message, parameter_bytes: dict[str, int]
) -> MessagePlan:
    program = partition.program
    source, target = partition.fragment(message.source), partition.fragment(message.target)
    ops = {op.name: op for op, _ in walk(program.body)}
    loops = {op.name: found for op, found in walk(program.body)}
    rows = num_turns(loop for loop in loops[message.site[-1]] if loop.name in message.stacked)
    around = next(found for item, found in paths(program.body) if item.name == message.after)
    names = [name for name in message.variables if name != PARAMETERS]
    values = [program.values[name] for name in names]
    if message.stacked:
        values = [value.behind(rows) for value in values]
    parameters, lag = "", 0
    if PARAMETERS in message.variables:
        readers = {
            op.kind for op in ops.values() if op.name in target.ops and PARAMETERS in op.reads
        }
        parameters = "actor" if readers <= {"agent_act"} else "all"
        lag = partition.policy.schedule.lag if parameters == "actor" else 0
    shares = {
        target
        for name in message.site
        if (source.name, name) in partition.partial
        for target in ops[name].targets
    }
    scattered, gathered = (
        fragment.replicas > 1 and any(value.split_by(fragment.split) for value in values)
        for fragment in (target, source)
    )
    return MessagePlan(
        message.name,
        message.mark,
        message.source,
        message.target,
        tuple(values),
        parameters,
        tuple(name in shares for name in names),
        _pattern(source.replicas, target.replicas, gathered, scattered, bool(shares))
        if partition.arrivals is None
        else "asynchronous Send",
        _times(around),
        parameter_bytes[parameters] if parameters else 0,
        _conditional(around),
        partition.arrivals is not None,
        max([i.chunks for i in around if isinstance(i, Loop) and not i.apart], default=1),
        lag,
    )


def _pattern(sources: int, targets: int, gathered: bool, scattered: bool, partial: bool) -> str:
    if partial:
        return "Reduce" if targets == 1 else "Reduce and Broadcast"
    if sources == targets == 1:
        return "Send"
    if gathered and scattered:
        return "AllToAll of the shares' intersections"
    if gathered:
        return "Gather" if targets == 1 else "Gather and Broadcast"
    if scattered:
        return "Scatter"
    return "Broadcast" if sources == 1 else "Send"
