"""Partial sums: finds values that replicas hold shares of, and where they are all-reduced.

Uses of a partial sum before its mark, and operations that would mix the rows of different replicas,
are refused.
"""

import ast
import re
from dataclasses import replace

from mindspore_rl.compiler.ir.dataflow import definitions
from mindspore_rl.compiler.ir.ir import Branch, Op, Program, paths, walk
from mindspore_rl.compiler.ir.operations import OPERATIONS, PARAMETERS
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.errors import PolicyError

_MAKERS = frozenset({"arange", "eye", "full", "linspace", "ones", "zeros"})
"""Functions that make an array from numbers."""


def reduce_partials(result: Partition) -> Partition:
    """Finds the partial sums on replicated fragments and decides where each is all-reduced.

    Raises:
        PolicyError: a partial sum is used before its mark, rows of different replicas would mix,
            an update would get a different value on each replica, or a partial sum is not float32.
    """
    program = result.program
    values = program.values
    branches = [item for item, _ in paths(program.body) if isinstance(item, Branch)]
    for branch in branches:
        for name in branch.reads:
            if name in values and values[name].split:
                raise PolicyError(
                    f"`{name}` differs between environments, and `if` needs one "
                    f"value for all: use ops.where\n  {branch.where}"
                )
    partials = _Partials(program)
    reduced = set()
    for fragment in result.fragments:
        if fragment.replicas == 1:
            continue
        inside = {item.name for op in fragment.ops for item in partials.around[op]}
        for branch in branches:
            if branch.name in inside and partials.read_by(branch, fragment):
                raise _used_before_mark(partials.read_by(branch, fragment)[0], fragment, branch)
        for op, _ in walk(program.body):
            if op.name in fragment.ops and _check_shares(result, fragment, op, partials):
                reduced.add((fragment.name, op.name))
    partial = _only_sent(result, reduced, partials)
    for _, name in sorted(reduced - partial):
        _check_float32(program, partials.op[name])
    return replace(result, reduced=frozenset(reduced - partial), partial=frozenset(partial))


def _only_sent(result: Partition, reduced: set, partials: "_Partials") -> set[tuple[str, str]]:
    """Returns the partial sums that their own fragment only sends; the message's target sums them.

    All values of one mark are treated alike, because they travel in one message.
    """
    used = set()
    for fragment in result.fragments:
        readers = set(fragment.ops) | {
            item.name for op in fragment.ops for item in partials.around[op]
        }
        used |= {
            (fragment.name, definer)
            for reader in readers
            for definers in partials.uses.get(reader, {}).values()
            for definer in definers
        }
    site = {op.name: op.attr["site"] for op in partials.op.values() if op.kind == "boundary"}
    kept = {
        (fragment, site[op]) for fragment, op in reduced if op in site and (fragment, op) in used
    }
    return {
        (fragment, op)
        for fragment, op in reduced
        if op in site and (fragment, site[op]) not in kept
    }


def _check_float32(program: Program, op: Op) -> None:
    """Refuses dtypes other than float32, the only one of collectives inside cells."""
    for target in op.targets:
        other = {leaf.dtype for leaf in program.values[target].leaves} - {"float32"}
        if other:
            raise PolicyError(
                f"msrl.{op.kind} of several replicas gives {', '.join(sorted(other))}, and they "
                f'reduce float32 alone: give it .astype("float32")\n  {op.where}'
            )


class _Partials:
    """Finder of partial sums: gradients and their means on one replica, before their mark."""

    def __init__(self, program: Program) -> None:
        self.values = program.values
        self.uses = definitions(program.body)
        self.op = {op.name: op for op, _ in walk(program.body)}
        self.around = {item.name: around for item, around in paths(program.body)}

    def read_by(self, item: Op | Branch, fragment: Fragment) -> list[str]:
        """Returns the variables read by an item that are partial sums on a fragment's replicas."""
        return [
            v
            for v in item.reads
            if any(self._is_share(d, v, fragment, frozenset()) for d in self.uses[item.name][v])
        ]

    def _is_share(self, definer: str, name: str, fragment: Fragment, seen: frozenset[str]) -> bool:
        op = self.op.get(definer)
        if op is None or definer in seen:
            return False
        if op.kind == "copy":
            return any(
                self._is_share(d, read, fragment, seen | {definer})
                for read, found in self.uses[definer].items()
                for d in found
            )
        if op.kind != "gradient":
            return False
        *_, rows = op.targets
        return name != rows and self.values[rows].split_by(fragment.split)


def _check_shares(result: Partition, fragment: Fragment, op: Op, partials: _Partials) -> bool:
    """Returns whether an operation of a replicated fragment needs an all-reduce of its result.

    Raises:
        PolicyError: the operation cannot run on several replicas.
    """
    program, policy = result.program, result.policy
    split = [
        v for v in op.reads if v in program.values and program.values[v].split_by(fragment.split)
    ]
    partial = [v for v in partials.read_by(op, fragment) if v != PARAMETERS]
    several = f"{fragment.replicas} replicas of {fragment.name}"
    if op.kind == "boundary" and partial:
        if op.mark in policy.marks:
            return True
        raise PolicyError(
            f"policy {policy.name} splits the batch over {several} and does not permit a cut at "
            f"{op.mark!r}, where shares of the gradient are summed up\n  {op.where}"
        )
    if partial and op.kind != "copy":
        raise _used_before_mark(partial[0], fragment, op)
    if fragment.split == "agent":
        _check_agents(result, fragment, op)
    elif op.name in program.unsplittable:
        raise PolicyError(
            f"policy {policy.name} splits environments over {several}, and `{op.targets[0]}` has "
            "an entry for each of them\nbut is made of none, so that a replica cannot know its "
            f"share\n  {op.where}\nderive it from a value that has that axis, for example "
            "ops.zeros_like(reward) or 0.0 * obs[:, :1]"
        )
    elif op.name in program.row_dependent:
        evidence = program.row_dependent[op.name]
        advice = "take statistics of the batch with msrl.mean, msrl.sum, msrl.max or msrl.min"
        if re.search("sort|topk|quantile|median|percentile", op.where.text):
            advice += (
                "; to sort the members of a\npopulation, take group_means(msrl, value, member, "
                "members) of rl/statistics.py"
            )
        elif "by StridedSlice" in evidence:
            advice += (
                "; what a loop over rows\npicks, x[b][index[b]], is picked for all rows at once: "
                "ops.gather_elements(x, 1, index)"
            )
        if own := _made_of_numbers(op):
            advice = (
                f"of an array made of numbers a replica takes its rows if it stands on a line of "
                f"its own, outside of\nloops inside an iteration: write `numbers = {own}`"
            )
        raise PolicyError(
            f"policy {policy.name} splits environments over {several}, but {evidence}\n  {op.where}"
            + (f"\n{advice}" if "side by side" not in evidence else "")
        )
    if op.kind == "update" and split:
        raise PolicyError(
            f"`{split[0]}` differs between the replicas of {fragment.name}, and "
            f"msrl.update would make their parameters differ\n  {op.where}"
        )
    if op.kind == "report" and split:
        raise PolicyError(f"`{split[0]}` is not a scalar; take msrl.mean() of it\n  {op.where}")
    # A reduction that keeps the sharded axis is local to each replica's rows.
    return OPERATIONS[op.kind].reduces and any(
        arg in split and not program.values[target].split_by(fragment.split)
        for target, arg in zip(op.targets, op.args, strict=True)
    )


def _check_agents(result: Partition, fragment: Fragment, op: Op) -> None:
    """Refuses an operation that mixes agents of different replicas."""
    program, policy = result.program, result.policy
    agents = (
        f"policy {policy.name} splits agents over {fragment.replicas} replicas of {fragment.name}"
    )
    if op.kind == "joint":
        marks = [
            cut.mark for cut in policy.cuts if cut.optional and cut.target in fragment.components
        ]
        others = "choose a policy that splits environments (--policy MultipleLearners)"
        marked = any(
            user.mark in marks and op.targets[0] in user.args for user, _ in walk(program.body)
        )
        if marked:
            name = dict(program.locals).get(op.args[0], op.args[0])
            advice = f"`{name}` is made where the agents are, not where they are together: {others}"
        elif marks:
            advice = (
                f'pass its result through msrl.boundary("{marks[0]}", ...), so that it is computed '
                "where they are together"
            )
        else:
            advice = f"this policy permits no cut for it: {others}"
        raise PolicyError(f"{agents}, and msrl.joint takes all of them\n  {op.where}\n{advice}")
    own = [v for v in op.args if v in program.values and program.values[v].split_by("agent")]
    if op.kind == "replay_keep" and own:
        name = dict(program.locals).get(own[0], own[0]).removeprefix("transition_")
        raise PolicyError(
            f"{agents}, and `{name}` is kept, but kept records are saved and restored for all "
            f"agents of an environment together\n  {op.where}\nchoose a policy that splits "
            "environments (--policy MultipleLearners), or one worker"
        )
    if op.name in program.agents_mixed:
        raise PolicyError(
            f"{agents}, but {program.agents_mixed[op.name]}\n  {op.where}\n"
            + _way_to_the_others(program, op)
        )
    kept = [v for v in op.targets if OPERATIONS[op.kind].reduces and program.values[v].split]
    if kept:
        raise PolicyError(
            f"{agents}, and `{kept[0]}` keeps the axis of agents\n  {op.where}\n"
            "reduce it with the others"
        )


def _way_to_the_others(program: Program, op: Op) -> str:
    """Says what to write in place of an operation that mixes agents."""
    policy = "choose a policy that splits environments (--policy MultipleLearners)"
    if OPERATIONS[op.kind].component != "glue":  # the actor's or a loss's own code
        return (
            "let an agent see the others through msrl.joint alone; a function that sums over "
            f"agents, such as the loss of VDN or QMIX, needs all of them in one place: {policy}"
        )
    values = program.values
    seen = [name for name in op.reads if name in values and values[name].split_by("agent")]
    name = dict(program.locals).get(seen[0], seen[0]) if seen else "..."
    return (
        "let an agent see the others through msrl.joint alone, before msrl.replay_insert: "
        f'msrl.boundary("state", msrl.joint({name})); or {policy}'
    )


def _used_before_mark(name: str, fragment: Fragment, item: Op | Branch) -> PolicyError:
    return PolicyError(
        f"`{name}` is one share of a sum on {fragment.replicas} replicas of {fragment.name}, and "
        "is used before its mark (clip and apply gradients, and look at the means, after "
        f'msrl.boundary("gradient", ...))\n  {item.where}'
    )


def _made_of_numbers(op: Op) -> str:
    """Returns the first call of an expression that makes an array and reads none; empty: none."""
    for arg in op.args if op.kind == "glue" else ():
        for call in ast.walk(ast.parse(str(arg), mode="eval")):
            names = {name.id for name in ast.walk(call) if isinstance(name, ast.Name)}
            match call:
                case ast.Call(ast.Attribute(attr=made)) if made in _MAKERS:
                    if names.isdisjoint(op.reads):
                        return ast.unparse(call)
    return ""
