"""Messages: each is sent after an item of the program, moved out of loops where possible."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mindspore_rl.compiler.ir.ir import Branch, Loop, Program, common, paths, walk
from mindspore_rl.compiler.ir.operations import PARAMETERS


@dataclass(frozen=True)
class Message:
    """Values that one fragment sends to another.

    Attributes:
        name: the boundary's site, `boundary:transition#1`, and the two fragments.
        variables: the variables that are sent; `$parameters` for the actor's parameters.
        site: names of the operations that define them, in order.
        uses: names of the operations of the target that need them.
        after: the item after which the message is sent.
        stacked: loops out of which it was moved, outermost first; one message holds the values of
            all their turns.
    """

    name: str
    mark: str
    source: str
    target: str
    variables: tuple[str, ...]
    site: tuple[str, ...]
    uses: tuple[str, ...]
    after: str = ""
    stacked: tuple[str, ...] = ()


def positioned(program: Program, drafts: list[Message]) -> tuple[Message, ...]:
    """Returns messages with the items after which they are sent, in the order of their sites."""
    return _Placing(program, drafts).run()


class _Placing:
    """Chooses the place of each of a program's messages, which depends on the others."""

    def __init__(self, program: Program, drafts: list[Message]) -> None:
        self.body = program.body
        self.op = {op.name: op for op, _ in walk(program.body)}
        self.loops = {op.name: loops for op, loops in walk(program.body)}
        self.paths = {item.name: around for item, around in paths(program.body)}
        order = list(self.op)
        self.drafts = sorted(drafts, key=lambda m: order.index(m.site[-1]))

    def run(self) -> tuple[Message, ...]:
        """Returns the messages; of those of the parameters at one place the first."""
        found: dict[tuple, Message] = {}
        for message in map(self._positioned, self.drafts):
            parameters = message.variables == (PARAMETERS,)
            found.setdefault(
                (message.source, message.target, message.after) if parameters else (message.name,),
                message,
            )
        again = self._sent_again(found.values())
        return tuple(m for m in found.values() if m.name not in again)

    def _sent_again(self, messages: Iterable[Message]) -> set[str]:
        """Returns the parameters' messages that another one follows before anybody uses them."""
        loops = [item for item in self.body if isinstance(item, Loop)]
        body = next((loop.body for loop in loops if loop.kind == "iterations"), ())
        places = {item.name: place for place, item in enumerate(body)}
        sent = [m for m in messages if m.variables == (PARAMETERS,) and m.after in places]
        found = set()
        for one, later in itertools.combinations(sorted(sent, key=lambda m: places[m.after]), 2):
            if (one.source, one.target) == (later.source, later.target):
                between = body[places[one.after] + 1 : places[later.after] + 1]
                inside = {item.name for item, _ in paths(between)}
                if {*one.uses} <= {*later.uses} and inside.isdisjoint(one.uses):
                    found.add(one.name)
        return found

    def _positioned(self, message: Message) -> Message:
        defined_in = self.loops[message.site[-1]]
        shared = max((common(defined_in, self.loops[use]) for use in message.uses), key=len)
        stacked: list[Loop] = []
        while (
            shared
            and shared[-1].kind != "iterations"
            and PARAMETERS not in message.variables
            and not self._has_gaps(message.source, message.target, shared[-1])
            and not self._reaches(message.target, message.source, shared[-1])
        ):
            stacked.insert(0, shared[-1])
            shared = shared[:-1]
        deeper = defined_in[len(shared) :]
        after = deeper[0].name if deeper else self._end_of_site(message.site[-1])
        if PARAMETERS in message.variables:  # replicated at any time: sent after the condition
            path = (*self.paths[message.site[-1]], self.op[message.site[-1]])
            place = path.index(shared[-1]) + 1 if shared else 0
            # They are sent inside a branch only if it is the flag of a loop that may end early,
            # which both fragments evaluate, or if they are needed within that branch.
            while isinstance(outer := path[place], Branch) and (
                outer.first or self._used_later(message, outer)
            ):
                place += 1
            after = path[place].name
        return replace(message, after=after, stacked=tuple(loop.name for loop in stacked))

    def _used_later(self, message: Message, branch: Branch) -> bool:
        """Returns whether a message's values are needed later in the branch that makes them."""
        ops = list(self.op)
        later = ops[ops.index(message.site[-1]) + 1 :]
        return any(use in later and branch in self.paths[use] for use in message.uses)

    def _has_gaps(self, source: str, target: str, loop: Loop) -> bool:
        """Returns whether a turn of a loop may leave values between two fragments unset.

        Then all messages between the two stay in the loop, so that both have them in the same
        order.
        """
        sites = [
            self.paths[m.site[-1]]
            for m in self.drafts
            if (m.source, m.target) == (source, target) and PARAMETERS not in m.variables
        ]
        inside = [around[around.index(loop) :] for around in sites if loop in around]
        return any(isinstance(item, Branch) for around in inside for item in around)

    def _end_of_site(self, name: str) -> str:
        """Returns the last operation of a mark's tuple; the message and the reduction follow it."""
        op = self.op[name]
        if op.kind != "boundary":
            return name
        return [
            o.name
            for o in self.op.values()
            if o.kind == "boundary" and o.attr["site"] == op.attr["site"]
        ][-1]

    def _reaches(self, start: str, goal: str, loop: Loop) -> bool:
        """Returns whether `start` sends to `goal`, also indirectly, inside one turn of a loop."""
        inside = {name for name, loops in self.loops.items() if loop in loops}
        edges = {
            (m.source, m.target)
            for m in self.drafts
            if m.site[-1] in inside and any(use in inside for use in m.uses)
        }
        reached, frontier = {start}, [start]
        while frontier:
            here = frontier.pop()
            for source, target in edges:
                if source == here and target not in reached:
                    reached.add(target)
                    frontier.append(target)
        return goal in reached
