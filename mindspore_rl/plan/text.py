"""Prints a plan for people."""

from mindspore_rl.plan.plan import Arrivals, Plan
from mindspore_rl.plan.traffic import describe, predict


def plan_text(plan: Plan) -> str:
    """Formats ranks, messages and collectives, with the bytes of an iteration."""
    lines = [
        f"{plan.algorithm['name']} under {plan.policy} on {plan.environment}, "
        f"{plan.num_ranks} process{'es' if plan.num_ranks > 1 else ''}, {plan.device}"
    ]
    for fragment in plan.fragments:
        by_agent = len(set(fragment.agents)) > 1
        noun, shares = (
            ("agents", fragment.agents) if by_agent else ("environments", fragment.shares)
        )
        for rank, (first, last) in zip(fragment.ranks, shares, strict=True):
            cells = f", cells: {', '.join(fragment.cells)}" if fragment.cells else ""
            place = f"{fragment.name} on {plan.hosts[rank]}" if plan.hosts else fragment.name
            share = f"{noun} {first}..{last - 1}"
            if plan.arrivals and plan.arrivals.gather and fragment.name == plan.arrivals.consumer:
                share = f"batches of {last - first} environments"
            lines.append(f"  rank {rank}: {place}, {share}{cells}")
    traffic = {found.name: describe(found) for found in predict(plan)}
    for message in plan.messages:
        lines.append(
            f"  {message.mark}: {message.source} -> {message.target}, {message.pattern}, "
            f"{_often(message.times)}: {traffic[message.name]}"
        )
    for reduction in plan.reductions:
        lines.append(
            f"  {reduction.name}, {reduction.reduction} in a cell, "
            f"{_often(reduction.times)}: {traffic[reduction.name]}"
        )
    if plan.lag:
        keeper = next((fragment.name for fragment in plan.fragments if fragment.lag), "")
        lines.append(f"  {lag_text(plan.lag, keeper)}")
    if plan.arrivals is not None:
        lines.append(f"  {arrivals_text(plan.arrivals)}")
    return "\n".join(lines)


def _often(times: int) -> str:
    return f"{times} an iteration" if times else "once, at the start"


def lag_text(lag: int, keeper: str) -> str:
    """Describes a lag: which parameters the actors have.

    Args:
        lag: number of iterations that they are older.
        keeper: the fragment that acts and keeps older parameters; empty: they wait in messages.
    """
    how = f"of which {keeper} keeps a copy" if keeper else "while the learner learns"
    return (
        f"lag={lag}: actors of iteration i act with the parameters after iteration i - {1 + lag}, "
        f"{how}"
    )


def arrivals_text(arrivals: Arrivals) -> str:
    """Describes an asynchronous schedule: who serves whom, and the bound of staleness."""
    stale = "dropped" if arrivals.drop_stale else "waited for"
    does, who, its = f"serves one {arrivals.sender} at a time", arrivals.consumer, ""
    if arrivals.consumers > 1:
        who, its = f"each of {arrivals.consumers} {arrivals.consumer}s", " of its own"
    if arrivals.kept:
        few = f"{arrivals.gather} messages" if arrivals.gather > 1 else "a message"
        have = "have" if arrivals.gather > 1 else "has"
        does = f"learns whenever {few} of the {arrivals.sender}s{its} {have} come"
    elif arrivals.gather:
        few = f"{arrivals.gather} {arrivals.sender}s" if arrivals.gather > 1 else arrivals.sender
        ready = "are" if arrivals.gather > 1 else "is"
        does = f"learns from the first {few}{its} that {ready} ready"
    does += ", all together" if arrivals.consumers > 1 else ""
    return f"asynchronous: {who} {does}; more than {arrivals.staleness} updates old is {stale}"
