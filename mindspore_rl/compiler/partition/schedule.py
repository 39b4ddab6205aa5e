"""Applies a policy's schedule to a partitioned program, or refuses it with the reason.

With a lag, the messages with the actors' parameters are used some iterations later. A fragment that
acts and has the newest parameters anyway keeps older ones for a second actor, which acts.

In an asynchronous schedule the fragment that updates fires once for each message of
one sender. The sender's gradients and means are over its own samples, and only it gets the reply.
If the messages carry rows of environments, it fires once for several of them, its batch: for those
of `gather` senders, or, if it keeps the rows as records, for as many messages as there are senders,
whoever sent them. So the number of updates a record is that of the loop. Several replicas of that
fragment serve as many senders each and fire together; what is reduced over them stays reduced.
"""

from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Item, Loop, Op, messages_of, paths, walk, with_ops
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.compiler.partition.messages import Message
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.errors import PolicyError
from mindspore_rl.plan.plan import Arrivals
from mindspore_rl.policy import ASYNCHRONOUS
from mindspore_rl.replay.across import ACROSS

OTHER = (
    "take a policy whose workers send trajectories (SingleLearnerCoarse), or let it be synchronous"
)
"""What a program may do whose messages with gradients are in another order."""
GRADIENTS = "or let workers compute gradients, as under Central"
"""How else a program may run asynchronously whose rows make no batches."""


def apply_schedule(partition: Partition) -> Partition:
    """Applies the policy's schedule to a partition whose partial sums are resolved.

    Raises:
        PolicyError: the program cannot run under the schedule; gives the reason.
    """
    policy = partition.policy
    if policy.schedule.lag:
        partition = _delay(partition)
    if policy.schedule.order != ASYNCHRONOUS:
        return partition
    sender, consumer = _ends(partition)
    keeps = [op for op, _ in walk(partition.program.body) if op.kind == "replay_keep"]
    kept = any(op.name in consumer.ops for op in keeps)
    if keeps and not kept:
        _check_own_replays(partition, sender)
    if kept:
        _check_one_replay(partition, consumer)
    schedule, gather = policy.schedule, 0
    if _sends_rows(partition, sender):
        _check_batches(partition, sender, consumer)
        _check_numbers(partition, sender, consumer)
        gather = sender.replicas // consumer.replicas if kept else schedule.gather
        if kept and schedule.gather not in (1, gather):
            raise _refused(
                partition,
                f"gather={schedule.gather} would change how many updates a record is worth, which "
                f"the loop says; with a kept replay an update takes as many messages as there are "
                f"replicas of {sender.name}, {sender.replicas}, whoever sent them: leave gather "
                "out",
            )
        size = gather * len(sender.shares[0])
        batches = tuple(range(i * size, (i + 1) * size) for i in range(consumer.replicas))
        smaller = replace(consumer, shares=batches)
        fragments = tuple(smaller if f is consumer else f for f in partition.fragments)
        partition = replace(partition, fragments=fragments)
    elif schedule.gather > 1:
        raise _refused(
            partition,
            f"gather={schedule.gather} makes batches of rows of environments, and {sender.name} "
            f"sends none to {consumer.name}",
        )
    bound = schedule.staleness
    arrivals = Arrivals(
        sender.name,
        consumer.name,
        2 * sender.replicas if bound is None else bound,
        schedule.drop_stale,
        gather,
        kept,
        consumer.replicas,
    )
    reduced = frozenset(one for one in partition.reduced if one[0] == consumer.name)
    return replace(partition, reduced=reduced, partial=frozenset(), arrivals=arrivals)


def _sends_rows(partition: Partition, sender: Fragment) -> bool:
    return any(m.source == sender.name and _rows(partition, m) for m in partition.messages)


def _rows(partition: Partition, message: Message) -> bool:
    """Returns whether a message carries rows of environments or agents."""
    values = (partition.program.values.get(name) for name in message.variables)
    return any(value.split for value in values if value)


def _check_own_replays(partition: Partition, sender: Fragment) -> None:
    """Checks that each replica draws from records of its own alone."""
    draws = [op for op, _ in walk(partition.program.body) if op.kind == "replay_draw"]
    across = [op for op in draws if op.attr["by"] in ACROSS or "count" in op.attr]
    if across and sender.replicas > 1:
        raise _refused(
            partition,
            f"replicas of {sender.name} draw together from the records of all, and are at "
            f"different iterations\n  {across[0].where}\nleave out `by`, and draw a multiple of "
            "num_envs",
        )


def _check_one_replay(partition: Partition, consumer: Fragment) -> None:
    """Checks that the consumer puts the rows of its messages into one kept replay."""
    kinds = ("replay_insert", "replay_keep")
    ops = [op for op, _ in walk(partition.program.body) if op.kind in kinds]
    if len({op.replay for op in ops}) > 1:
        other = next(op for op in ops if op.replay != ops[0].replay)
        raise _refused(
            partition,
            f"{consumer.name} takes messages in any order into one kept replay, and the loop has "
            f"several\n  {ops[0].where}\n  {other.where}\nuse a synchronous schedule, or a policy "
            "whose workers hold the replays (Central)",
        )


def _check_batches(partition: Partition, sender: Fragment, consumer: Fragment) -> None:
    """Checks that the consumer can make a batch of the rows of any of the senders."""
    around = {item.name: found for item, found in paths(partition.program.body)}
    ops = {op.name: op for op, _ in walk(partition.program.body)}

    def line_of(message: Message) -> str:
        return str(ops[message.site[-1]].where)

    if sender.split != "env":
        raise _refused(
            partition,
            f"replicas of {sender.name} have rows of the same environments; give that fragment "
            'sharded="env"',
        )
    sent = [m for m in partition.messages if m.source == sender.name]
    for message in partition.messages:
        if message not in sent and _rows(partition, message):
            raise _refused(
                partition,
                f"{message.mark} carries rows of environments back to {sender.name}, and the "
                f"environments of a batch of {consumer.name} change\n  {line_of(message)}\nlet "
                f"{sender.name} act itself (as SingleLearnerCoarse does)",
            )
        if message not in sent and message.variables != (PARAMETERS,):
            raise _refused(
                partition,
                f"{message.mark} carries `{message.variables[0]}` back to {sender.name}, to which "
                f"only parameters return\n  {line_of(message)}\nlet {sender.name} compute it",
            )
    for message in sent:
        outer = [getattr(item, "kind", "") for item in around[message.after]]
        if outer != ["iterations"]:
            raise _refused(
                partition,
                f"{sender.name} sends {message.mark} within an iteration or before the first, "
                f"instead of once at its end\n  {line_of(message)}\nlet one loop of msrl.steps() "
                f"make all that an iteration learns from, before it learns; {GRADIENTS}",
            )
    if len(sent) > 1:
        marks = ", ".join(m.mark for m in sent)
        lines = "\n  ".join(line_of(message) for message in sent)
        raise _refused(
            partition,
            f"{sender.name} sends {marks} apart, instead of one message\n  {lines}\nlet one loop "
            f"of msrl.steps() make all that an iteration learns from; {GRADIENTS}",
        )
    values = {v: partition.program.values[v] for v in sent[0].variables}
    if whole := [v for v, value in values.items() if not value.split_by("env")]:
        raise _refused(
            partition,
            f"{sent[0].mark} carries `{whole[0]}`, which has no row for each environment, and the "
            f"senders of a batch of {consumer.name} have different ones\n  {line_of(sent[0])}\n"
            f"give it a row for each, or let {consumer.name} compute it",
        )


def _check_numbers(partition: Partition, sender: Fragment, consumer: Fragment) -> None:
    """Checks that batches of one size can be made of whole messages."""
    schedule = partition.policy.schedule
    if schedule.drop_stale:
        raise _refused(
            partition, "drop_stale drops gradients, and no row is ever dropped; leave it out"
        )
    served, left = divmod(sender.replicas, consumer.replicas)
    if left:
        raise _refused(
            partition,
            f"each of {consumer.replicas} replicas of {consumer.name} serves as many replicas of "
            f"{sender.name}, and there are {sender.replicas}; ask for a multiple, "
            f"workers={sender.replicas + consumer.replicas - left}",
        )
    if schedule.gather > served:
        each = f" for each {consumer.name}" if consumer.replicas > 1 else ""
        raise _refused(
            partition,
            f"there are {served} replicas of {sender.name}{each} for gather={schedule.gather}; ask "
            f"for gather={served} at most, or for more workers",
        )
    if len({len(share) for share in sender.shares}) > 1:
        num_envs = sender.shares[-1].stop
        raise _refused(
            partition,
            f"the {sender.replicas} replicas of {sender.name} have different numbers of the "
            f"{num_envs} environments, and all batches are of one size; ask for a multiple, "
            f"num_envs={num_envs + -num_envs % sender.replicas}",
        )


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
        raise _refused(
            partition,
            f"{name} exchanges messages with {sender} before the iterations\n  {before[0].where}\n"
            "do it in the first iteration",
        )
    numbers = [op for op, _ in walk(body) if op.kind == "env_index"]
    if partition.arrivals.gather and numbers:
        raise _refused(
            partition,
            f"the environments of a batch of {name} change, and it asks for their numbers\n  "
            f"{numbers[0].where}\nlet the rows of msrl.replay_insert hold msrl.env_index()",
        )
    keeps = [site for site in walk(body) if site[0].kind in ("replay_keep", "replay_keep_rows")]
    if partition.arrivals.kept and (len(keeps) > 1 or len(keeps[0][1]) > 1):
        raise _refused(
            partition,
            f"{name} inserts the records of a message in several turns, between which those of "
            f"another message would come\n  {keeps[-1][0].where}\ninsert once for each environment "
            "step, next to msrl.env_step, and draw after the steps",
        )
    for taken in (True, False):
        talk = list(messages_of(body, taken))
        if not talk or talk[0].kind != "receive":
            raise _refused(
                partition, f"{name} does not wait for a message of {sender} first: {OTHER}"
            )
        if not _returns_parameters(talk[-1]):
            raise _refused(
                partition,
                f"an iteration of {sender} does not end with new parameters from {name}: {OTHER}",
            )
        for one, other in zip(talk, talk[1:], strict=False):
            if _returns_parameters(one) and other.kind != "receive":
                raise _refused(
                    partition,
                    f"{name} sends parameters again before {sender} has used them\n  {other.where}"
                    f"\n{OTHER}",
                )


def _returns_parameters(op: Op) -> bool:
    return op.kind == "send" and PARAMETERS in op.reads


def _ends(partition: Partition) -> tuple[Fragment, Fragment]:
    """Returns the fragment that sends and the fragment that serves it."""
    consumer = next(f for f in partition.fragments if "update" in f.components)
    senders = [f for f in partition.fragments if f is not consumer]
    learns = consumer.split == "env" and "gradient" in consumer.components
    rows = learns and any(_sends_rows(partition, sender) for sender in senders)
    if consumer.replicas != 1 and (not rows or _sends_rows(partition, consumer)):
        raise _refused(
            partition,
            f"the update is made on {consumer.replicas} replicas of {consumer.name}, which would "
            "serve different workers and drift apart; it takes one, apart from the gradients, or "
            "learners with trajectories of other ranks, as in docs/examples/split_learners.py",
        )
    if len(senders) != 1:
        names = ", ".join(f.name for f in partition.fragments)
        raise _refused(
            partition,
            f"it takes one fragment that sends and one that updates; there are {names}: let one "
            "of them hold replay, gradient and update (as in SingleLearnerCoarse)",
        )
    return senders[0], consumer


def _delay(partition: Partition) -> Partition:
    """Makes `agent_act` use older parameters.

    They wait in the messages to the fragment that acts, if it needs parameters for nothing else;
    only then can it run ahead. Else it keeps them.
    """
    ops = [op for op, _ in walk(partition.program.body)]
    acts = [op for op in ops if op.kind == "agent_act"]
    if not acts:
        raise _refused(
            partition, "it never calls msrl.agent_act, which alone may have older parameters"
        )
    fragment = next(f for f in partition.fragments if acts[0].name in f.ops)
    readers = [op for op in ops if op.name in fragment.ops and PARAMETERS in op.reads]
    got = [m for m in partition.messages if m.target == fragment.name]
    parameters = [m for m in got if PARAMETERS in m.variables]
    if parameters and readers == acts:
        _check_lagged(partition, parameters, readers)
        _check_no_wait(partition, parameters[0], got)
        return partition
    lag = (("lag", partition.policy.schedule.lag),)
    changed = {op.name: replace(op, attrs=(*op.attrs, *lag)) for op in acts}
    body = with_ops(partition.program.body, changed)
    return replace(partition, program=replace(partition.program, body=body))


def _check_lagged(partition: Partition, parameters: list[Message], readers: list[Op]) -> None:
    """Checks that the messages with parameters are one, at the end of every iteration."""
    order = [op.name for op, _ in walk(partition.program.body)]
    around = {item.name: found for item, found in paths(partition.program.body)}
    message = parameters[-1]
    outer = [getattr(item, "kind", "") for item in around[message.after]]
    update = next(op for op, _ in walk(partition.program.body) if op.name == message.site[-1])
    if len(parameters) > 1 or outer != ["iterations"]:
        raise _refused(
            partition,
            f"{message.target} gets parameters more than once, or under a condition, instead of "
            f"once in every iteration\n  {update.where}",
        )
    if late := [op for op in readers if order.index(op.name) > order.index(update.name)]:
        raise _refused(
            partition, f"an iteration acts after it has learnt\n  {late[0].where}\nlet it act first"
        )


def _check_no_wait(partition: Partition, parameters: Message, got: list[Message]) -> None:
    """Checks that the actors wait for nothing else from where their parameters come."""
    around = {item.name: found for item, found in paths(partition.program.body)}
    for message in got:
        again = any(isinstance(item, Loop) for item in around[message.after])
        if again and message is not parameters and message.source == parameters.source:
            raise _refused(
                partition,
                f"{message.target} waits for {message.mark} from {message.source} in every "
                "iteration, so that it could not run ahead",
            )


def _refused(partition: Partition, reason: str) -> PolicyError:
    schedule = partition.policy.schedule
    asked = f"lag={schedule.lag}" if schedule.lag else f"order={ASYNCHRONOUS}"
    return PolicyError(
        f"policy {partition.policy.name} cannot run {partition.program.algorithm} with {asked}: "
        f"{reason}"
    )
