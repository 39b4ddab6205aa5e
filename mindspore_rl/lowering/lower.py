"""From a partition to a plan: projects, checks and writes every fragment."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl.errors import PolicyError
from mindspore_rl.graph.ir import PARAMETERS, Branch, Loop, Op, paths, walk
from mindspore_rl.graph.partition import Message, Partition
from mindspore_rl.graph.schedule import check_turns
from mindspore_rl.graph.verify import verify
from mindspore_rl.lowering.cell_source import Target
from mindspore_rl.lowering.project import Projection, project
from mindspore_rl.lowering.source import generate
from mindspore_rl.plan.plan import FragmentPlan, MessagePlan, Plan, ReductionPlan, save_plan
from mindspore_rl.plan.value import Value
from mindspore_rl.storage import writing


def make_plan(
    partition: Partition,
    folder: Path,
    *,
    record: tuple[str, ...] = (),
    parameter_entries: dict[str, int],
    **job: Any,
) -> Plan:
    """Lowers every fragment and writes the plan into a folder.

    Args:
        partition: the cut program, shares of sums resolved.
        folder: gets `plan.json` and `fragments/*.py`.
        record: see `Plan`.
        parameter_entries: numbers in a message of parameters, by `MessagePlan.parameters`.
        job: the other fields of `Plan`.
    """
    program = partition.program
    steps = program.steps_per_env * job["num_envs"]
    native = job.get("cells") == "native"
    target = Target(job["num_envs"], job["num_steps"], steps, job["in_graph"], native)
    sources = folder / "fragments"
    sources.mkdir(parents=True, exist_ok=True)
    fragments: list[FragmentPlan] = []
    carried: dict[str, Value] = {}
    first_rank = 0
    projections = {
        f.name: project(partition, f.name, job["in_graph"], record) for f in partition.fragments
    }
    verify(partition, {name: found.body for name, found in projections.items()})
    if partition.arrivals is not None:
        check_turns(partition, projections[partition.arrivals.consumer].body)
    for fragment in partition.fragments:
        projection = projections[fragment.name]
        title = (
            f"Fragment `{fragment.name}` of {program.algorithm} under "
            f"{partition.policy.name}: {', '.join(fragment.components)}."
        )
        code = generate(program, projection, target, title)
        file = f"{fragment.name}.py"  # as it is: "a+b" is another fragment than "a_b"
        with writing(sources / file):
            (sources / file).write_text(code.source)
        if projection.serves and code.carried:
            raise PolicyError(
                f"policy {partition.policy.name} serves workers by arrival, and "
                f"{fragment.name} would carry `{code.carried[0]}` from an iteration of one worker "
                "to that of another; it can keep parameters only"
            )
        carried |= {
            name: projection.values[name] for name in code.carried if name in projection.values
        }
        fragments.append(
            FragmentPlan(
                fragment.name,
                file,
                first_rank,
                tuple((s.start, s.stop) for s in fragment.shares),
                fragment.components,
                code.cells,
                code.collectives,
                code.needs_tensors,
                tuple((s.start, s.stop) for s in fragment.agents),
            )
        )
        first_rank += fragment.replicas
    messages = tuple(
        _message(partition, message, parameter_entries) for message in partition.messages
    )
    reductions = tuple(
        found for projection in projections.values() for found in _reductions(projection)
    )
    plan = Plan(
        fragments=tuple(fragments),
        messages=messages,
        reductions=reductions,
        policy=partition.policy.name,
        record=record,
        chunks=partition.policy.schedule.chunks,
        carried=carried,
        arrivals=partition.arrivals,
        steps_per_env=program.steps_per_env,
        **job,
    )
    save_plan(plan, folder)
    return plan


def _reductions(projection: Projection) -> Iterator[ReductionPlan]:
    for item, around in paths(projection.body):
        if isinstance(item, Op) and item.kind == "all_reduce":
            yield ReductionPlan(
                f"{item.name.removeprefix('all_reduce:')} over {projection.fragment.name}",
                projection.fragment.name,
                item.attr("reduction"),
                sum(projection.values[name].message_bytes for name in item.targets),
                _times(around),
                _conditional(around),
            )


def _times(around: tuple[Loop | Branch, ...]) -> int:
    """How often what stands there happens in an iteration; 0: once, before the first."""
    loops = [item for item in around if isinstance(item, Loop)]
    if not any(loop.kind == "iterations" for loop in loops):
        return 0
    return math.prod(loop.count or 1 for loop in loops)


def _conditional(around: tuple[Loop | Branch, ...]) -> bool:
    return any(isinstance(item, Branch) for item in around)


def _message(
    partition: Partition, message: Message, parameter_entries: dict[str, int]
) -> MessagePlan:
    program = partition.program
    source, target = partition.fragment(message.source), partition.fragment(message.target)
    ops = {op.name: op for op, _ in walk(program.body)}
    loops = {op.name: found for op, found in walk(program.body)}
    rows = 1
    for loop in loops[message.site[-1]]:
        if loop.name in message.stacked:
            rows *= loop.count or 1
    around = next(found for item, found in paths(program.body) if item.name == message.after)
    names = [name for name in message.variables if name != PARAMETERS]
    values = [program.values[name] for name in names]
    if message.stacked:
        values = [value.behind(rows) for value in values]
    parameters = ""
    if PARAMETERS in message.variables:
        readers = {
            op.kind for op in ops.values() if op.name in target.ops and PARAMETERS in op.reads
        }
        parameters = "actor" if readers <= {"agent_act"} else "all"
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
        else "Send by arrival",
        _times(around),
        parameter_entries[parameters] if parameters else 0,
        _conditional(around),
        partition.arrivals is not None,
        max([item.chunks for item in around if isinstance(item, Loop)], default=1),
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
