"""Applies a policy's schedule to a partitioned program, or refuses it with the reason.

In an asynchronous schedule (by arrival), the fragment that updates fires once for each message of
one sender. The sender's gradients and means are over its own samples, and only it gets the reply.
"""

from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Item, Op, messages_of, walk
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.errors import PolicyError
from mindspore_rl.plan.plan import Arrivals
from mindspore_rl.policy import ARRIVAL


def apply_schedule(partition: Partition) -> Partition:
    """Applies the policy's schedule to a partition whose partial sums are resolved.

    Raises:
        PolicyError: the program cannot run under the schedule; gives the reason.
    """
    policy = partition.policy
    if policy.schedule.order != ARRIVAL:
        return partition
    sender, consumer = _ends(partition)
    for message in partition.messages:
        values = [partition.program.values.get(v) for v in message.variables if v != PARAMETERS]
        if any(value.split for value in values if value):
            raise _refused(
                partition,
                f"{message.mark} carries rows of environments to {message.target}, which by "
                f"arrival would have those of one {sender.name} at a time and not its batch; only "
                "sums over a batch, such as gradients, can be served so (as Central does)",
            )
    kept = (op for op, _ in walk(partition.program.body) if op.kind == "replay_keep")
    if (op := next(kept, None)) is not None:
        raise _refused(
            partition,
            "workers that are at different iterations would resume with replays that are filled "
            f"differently\n  {op.where}",
        )
    bound = policy.schedule.staleness
    arrivals = Arrivals(
        sender.name,
        consumer.name,
        2 * sender.replicas if bound is None else bound,
        policy.schedule.drop_stale,
    )
    return replace(partition, reduced=frozenset(), partial=frozenset(), arrivals=arrivals)


def check_turns(partition: Partition, body: tuple[Item, ...]) -> None:
    """Checks that the consumer can serve any one sender in each of its iterations.

    Args:
        partition: a partition with an asynchronous schedule.
        body: the consumer's projected body.

    Raises:
        PolicyError: the consumer exchanges messages before the iterations, does not begin an
            iteration with a receive, does not end it by returning parameters, or returns them
            twice without a receive between.
    """
    assert partition.arrivals is not None
    name, sender = partition.arrivals.consumer, partition.arrivals.sender
    before = [op for op, loops in walk(body) if not loops and op.kind in ("send", "receive")]
    if before:
        raise _refused(partition, f"{name} exchanges messages with {sender} before the iterations")
    for taken in (True, False):
        talk = list(messages_of(body, taken))
        if not talk or talk[0].kind != "receive":
            raise _refused(partition, f"{name} does not wait for a message of {sender} first")
        if not _returns_parameters(talk[-1]):
            raise _refused(
                partition, f"an iteration of {sender} does not end with new parameters from {name}"
            )
        for one, other in zip(talk, talk[1:], strict=False):
            if _returns_parameters(one) and other.kind != "receive":
                raise _refused(
                    partition,
                    f"{name} sends parameters again before {sender} has used them\n  {other.where}",
                )


def _returns_parameters(op: Op) -> bool:
    return op.kind == "send" and PARAMETERS in op.reads


def _ends(partition: Partition) -> tuple[Fragment, Fragment]:
    """Returns the fragment that sends and the fragment that serves it."""
    consumer = next(f for f in partition.fragments if "update" in f.components)
    if consumer.replicas != 1:
        raise _refused(
            partition,
            f"the update is made on {consumer.replicas} replicas of {consumer.name}, which would "
            "serve different workers and drift apart; it takes one, apart from the gradients",
        )
    senders = [f for f in partition.fragments if f is not consumer]
    if len(senders) != 1:
        names = ", ".join(f.name for f in partition.fragments)
        raise _refused(
            partition, f"it takes one fragment that sends and one that updates; there are {names}"
        )
    return senders[0], consumer


def _refused(partition: Partition, reason: str) -> PolicyError:
    return PolicyError(
        f"policy {partition.policy.name} cannot run {partition.program.algorithm} with "
        f"order={ARRIVAL}: {reason}"
    )
