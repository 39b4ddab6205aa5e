"""Verifies the invariants that every pass keeps.

A broken rule is a bug in the compiler or in the user's program; the error names the rule, the
fragment, the operation and its line, and no process is started.
"""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import product, zip_longest

from mindspore_rl.compiler.ir.dataflow import first_reads
from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op, Program, messages_of, paths, walk
from mindspore_rl.compiler.ir.operations import EFFECTS
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.errors import ProgramError

Bodies = dict[str, tuple[Item, ...]]


def verify_program(program: Program) -> None:
    """Checks the invariants of a program after every pass.

    Raises:
        ProgramError: a rule is broken.
    """
    items = [item for item, _ in paths(program.body)]
    known = {item.index for item in items if isinstance(item, Loop)}
    known |= {name for item in items if isinstance(item, Op) for name in item.targets}
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            raise _broken("one name each", program.algorithm, item, "has the name of another one")
        seen.add(item.name)
        for name in () if isinstance(item, Loop) else item.reads:
            if name not in known and name not in EFFECTS:
                raise _broken("known", program.algorithm, item, f"reads `{name}`, set nowhere")


def verify_partition(partition: Partition) -> None:
    """Checks the invariants of a partition before its fragments are generated.

    Raises:
        ProgramError: a rule is broken.
    """
    verify_program(partition.program)
    _placed_once(partition)


def verify(partition: Partition, bodies: Bodies) -> None:
    """Checks the projected programs of all fragments.

    Args:
        partition: the partitioned program.
        bodies: the projected body of each fragment.

    Raises:
        ProgramError: a rule is broken.
    """
    for name, body in bodies.items():
        _defined(name, body)
        _carried(partition, name, body)
        _reduced_together(partition, name, body)
    _same_messages(bodies)
    for taken in (True, False):
        _no_deadlock(bodies, taken)


def _broken(rule: str, fragment: str, item: Item, text: str) -> ProgramError:
    return ProgramError(
        f"rule `{rule}`, fragment {fragment}, operation {item.name}: {text}\n  {item.where}"
    )


def _placed_once(partition: Partition) -> None:
    """Checks that every operation of a component is in exactly one fragment."""
    for op, _ in walk(partition.program.body):
        holders = [f.name for f in partition.fragments if op.name in f.ops]
        if op.component != "glue" and len(holders) != 1:
            raise _broken(
                "placed once",
                ", ".join(holders) or "(none)",
                op,
                f"{op.component} runs in {len(holders)} fragments",
            )


def _defined(fragment: str, body: tuple[Item, ...]) -> None:
    """Checks that every variable is set before it is read, in the same fragment."""
    unset = first_reads(body)
    set_somewhere: set[str] = set()
    for item, _ in paths(body):
        for name in () if isinstance(item, Loop) else item.reads:
            if unset.get(name) == item.name:
                why = (
                    "is set in one branch of an `if` only: set it before, or in both"
                    if name in set_somewhere
                    else "is not set before it is read"
                )
                raise _broken("defined", fragment, item, f"`{name}` {why}")
        set_somewhere |= set(item.targets) if isinstance(item, Op) else set()


def _carried(partition: Partition, fragment: str, body: tuple[Item, ...]) -> None:
    """Checks the values that one iteration carries to the next.

    They must be arrays, so that a checkpoint can hold them, with one row of each environment, so
    that the rows of several replicas can be concatenated.
    """
    values = partition.program.values
    (inside,) = [i.body for i in body if isinstance(i, Loop) and i.kind == "iterations"] or [()]
    items = {item.name: item for item, _ in paths(inside)}
    made = {name for op, _ in walk(inside) for name in op.targets}
    for name, reader in first_reads(inside).items():
        if name not in made or name not in values:
            continue
        if values[name].parts:
            text = (
                f"`{name}` is a tuple made by one operation and kept from one iteration to the "
                "next: unpack it (`a, b = ...`) and carry its parts"
            )
            raise _broken("carried", fragment, items[reader], text)
        if values[name].per_env > 1:
            text = (
                f"`{name}` has {values[name].per_env} rows of each environment along one axis and "
                "is kept from one iteration to the next: carry it with those rows on an axis of "
                "their own, or as several variables"
            )
            raise _broken("carried", fragment, items[reader], text)


def _reduced_together(partition: Partition, fragment: str, body: tuple[Item, ...]) -> None:
    """Checks that no all-reduce stands under a condition that differs between replicas."""
    values = partition.program.values
    for item, around in paths(body):
        if not isinstance(item, Op) or item.kind != "all_reduce":
            continue
        conditions = [outer for outer in around if isinstance(outer, Branch)]
        for name in (name for outer in conditions for name in outer.reads):
            if name in values and values[name].split:
                raise _broken(
                    "collectives",
                    fragment,
                    item,
                    f"stands under `{name}`, which differs between replicas",
                )


# ---- messages ------------------------------------------------------------------------------


def _same_messages(bodies: Bodies) -> None:
    """Checks that two fragments have their messages in the same order, loops and conditions."""
    for first, second in product(bodies, bodies):
        if first >= second:
            continue
        ours, theirs = (list(_skeleton(bodies[name], first, second)) for name in (first, second))
        for mine, other in zip_longest(ours, theirs, fillvalue="nothing"):
            if mine != other:
                ops = [op for name in (first, second) for op, _ in walk(bodies[name])]
                raise _broken(
                    "messages",
                    f"{first} and {second}",
                    next(op for op in ops if op.kind in ("send", "receive")),
                    f"{first} has {mine} where {second} has {other}",
                )


def _skeleton(items: tuple[Item, ...], first: str, second: str, around: str = "") -> Iterator[str]:
    for item in items:
        if isinstance(item, Loop):
            yield from _skeleton(item.body, first, second, f"{around}{item.name} x{item.count} / ")
        elif isinstance(item, Branch):
            yield from _skeleton(item.body, first, second, f"{around}{item.name} / ")
            yield from _skeleton(item.orelse, first, second, f"{around}else of {item.name} / ")
        elif item.kind in ("send", "receive"):
            message = item.attr["message"]
            if message.endswith((f" {first}->{second}", f" {second}->{first}")):
                yield f"{around}{message}"


def _no_deadlock(bodies: Bodies, taken: bool) -> None:
    """Checks by simulation that two turns of every loop run to the end without deadlock.

    Args:
        bodies: the projected body of each fragment.
        taken: whether every condition is true, or every one false.
    """
    left = {name: deque(messages_of(body, taken)) for name, body in bodies.items()}
    mail: Counter = Counter()
    moved = True
    while moved:
        moved = False
        for queue in left.values():
            while queue and (queue[0].kind == "send" or mail[queue[0].attr["message"]]):
                op = queue.popleft()
                mail[op.attr["message"]] += 1 if op.kind == "send" else -1
                moved = True
    for name, queue in left.items():
        if queue:
            raise _broken("no deadlock", name, queue[0], "waits for a message that is never sent")
    for name, body in bodies.items():
        for op, _ in walk(body):
            if op.kind == "send" and mail[op.attr["message"]]:
                raise _broken("no deadlock", name, op, "sends a message that nobody receives")
