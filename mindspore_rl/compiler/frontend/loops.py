"""Reads loops: over msrl's, `range`, and sequences, which are unrolled."""

import ast
import math
from dataclasses import replace
from typing import Any

from mindspore_rl.compiler.frontend.assignment import same
from mindspore_rl.compiler.frontend.builder import UNROLLED
from mindspore_rl.compiler.frontend.in_place import carried_by
from mindspore_rl.compiler.frontend.loop_carried import assigned, carried, decided, loaded
from mindspore_rl.compiler.frontend.perhaps import has_perhaps
from mindspore_rl.compiler.frontend.records import Entries, Listed
from mindspore_rl.compiler.frontend.scope import (
    THROWN_AWAY,
    Broken,
    Frame,
    Gone,
    Scope,
    Struct,
    Var,
    constant,
    variables,
)
from mindspore_rl.compiler.frontend.sequences import is_range, is_unrolled, together
from mindspore_rl.compiler.frontend.step_sums import spread, sums_of_steps
from mindspore_rl.compiler.ir.ir import Branch, Expr, Loop
from mindspore_rl.compiler.ir.operations import LOOPS
from mindspore_rl.platform.syntax import nodes_of

BEFORE = "give it a value before, too: {0} = ..."
KEPT = "keep it in the loop, under a name that has a value before: kept = {0}"


class Loops:
    """Reads `for` statements.

    Args:
        reader: the reader of statements.
    """

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft
        self.assignments = reader.assignments

    @property
    def frame(self) -> Frame:
        """The function being read."""
        return self.draft.frame

    def kind_of(self, node: ast.expr) -> str:
        """Returns the name of the loop of msrl that an expression is; empty for any other."""
        first = together(node)[0]
        name = self.frame.msrl_call(first) if isinstance(first, ast.Call) else None
        return name if name in LOOPS else ""

    def read(self, node: ast.For) -> None:
        """Reads a loop."""
        if is_unrolled(node) or self._goes_with_unrolled(node):
            self._unrolled(node)
            return
        calls = together(node.iter)
        (kind, args), *others = [self._loop_call(call) for call in calls]
        count = self._loop_count(kind, args, node)
        if count == 0:
            return
        every = [args, *(more for _, more in others)] if kind == "minibatches" else []
        if any(self.frame.known(more[0]) != count for more in every[1:]):
            self.frame.fail(node.iter, "`zip` of other numbers of minibatches", "give all the same")
        values = [self.reader.expression(one[1]) for one in every]
        inside = (part for part in nodes_of(node) if isinstance(part, ast.Call))
        if any(self.frame.msrl_call(part) == "env_step" for part in inside):
            self._spread_starts(node)
        index = LOOPS.get(kind, "i")
        target = getattr(node.target, "id", "")
        named = target not in ("", THROWN_AWAY)
        shifted = kind == "range" and len(args) > 1  # by a start, perhaps in other steps
        if named and kind != "minibatches" and not shifted:
            index = target
        if kind != "iterations":
            self.reader.grown.begin(node, self.reader.changes.holders)
        read, kept = carried(node, self.frame)
        going = self._flag_of(node)
        own = assigned(node.body) - read - self.frame.live[node]
        self.reader.load_parameters(read | (kept - own), node)
        self.assignments.give_homes(sorted(read | (kept - own) | going))
        self.reader.perhaps.begin(node)
        turn, rebound = object(), assigned(node.body, changed=False) & self.frame.names.keys()
        rebound_before = {name: carried_by(self.frame.names[name], turn) for name in rebound}
        self.frame.names |= rebound_before
        forgotten = self.assignments.forget(own)
        before, left = (
            {name: self.frame.names[name] for name in names if name in self.frame.names}
            for names in (read, kept - own)
        )
        index = self.draft.fresh(index)
        loop = Loop(self.draft.name_op(kind), kind, index, count, (), self.frame.where(node))
        outer, self.draft.scope = self.draft.scope, Scope(outer=self.draft.scope)
        self.draft.loops.append(loop)
        self.frame.nested += 1
        drawing = self.reader.calls.drawing
        if kind == "iterations":
            drawing.top_of_iteration = []
        if every:
            drawn = zip(values, every, calls, strict=True)
            parts = tuple(drawing.minibatch(loop, *one) for one in drawn)
            self.assignments.assign(node.target, parts if others else parts[0])
        elif named and shifted:
            start, step = self.frame.known(args[0]), [*map(self.frame.known, args[2:]), 1][0]
            number = self.draft.result("glue", f"{start} + {step} * {index}", (index,))
            self.assignments.assign(node.target, number)
        elif named:
            self.frame.names[target] = Var(index)
        elif not target:
            self.frame.fail(node.target, "a loop target that is not a name")
        self.draft.conditions += len(going)
        self.reader.entered.add(node)
        for statement in node.body:
            self.reader.statement(statement)
        self.draft.conditions -= len(going)
        for name, struct in left.items():
            if has_perhaps(self.frame.names[name]):
                before[name] = struct
        self._check_carried(before, node)
        for name, struct in rebound_before.items():
            self.reader.changes.end_turn(name, struct, turn)
        self.end_of(own, "a loop")
        self.assignments.remember(forgotten)
        if named and (shifted or self.frame.names[target] == Var(index)):
            self.frame.names[target] = Gone("a loop's index after the loop", KEPT.format(target))
        body = self.draft.scope.items
        for flag in (self.frame.names[name].name for name in going):
            name = self.draft.name_op("if")
            body = [Branch(name, Expr(flag), (flag,), tuple(body), (), loop.where, first=True)]
        if kind == "iterations":
            body = [*(drawing.top_of_iteration or ()), *body]
            drawing.top_of_iteration = None
            outer.items += drawing.before_iterations
        self.draft.loops.pop()
        self.frame.nested -= 1
        self.draft.scope = outer
        self.draft.scope.items.append(replace(loop, body=tuple(body)))
        self.reader.perhaps.behind(node)

    def _spread_starts(self, node: ast.For) -> None:
        """Makes arrays `[B]` of the numbers at which sums over the steps start, see `step_sums`."""
        msrl, teams = self.frame.msrl, bool(self.reader.trainer.spec.teams)
        for name, agents in sorted(sums_of_steps(node, msrl, teams).items()):
            start = constant(self.frame.names.get(name))
            if type(start) is float and math.isfinite(start):
                made = spread(name, start, msrl, agents)
                for part in nodes_of(made):
                    ast.copy_location(part, node)
                self.reader.statement(made)

    def _unrolled(self, node: ast.For) -> None:
        """Reads a loop over a sequence: its body, once for each part."""
        flag, ends = getattr(node, "going", ""), False
        turn = ast.copy_location(ast.If(ast.Name(flag, ast.Load()), node.body, []), node)
        ast.fix_missing_locations(turn)
        self.frame.live[turn] = self.frame.live[node] | loaded(node)
        parts = self.reader.sequences.of(node.iter, "a loop over this")
        names = self.frame.names.keys() & (assigned(node.body) | assigned([ast.Expr(node.target)]))
        changing = {var.name for name in names for var in variables(self.frame.names[name])}
        parts = self.draft.kept(parts, changing)
        self.reader.entered.add(node)
        with self.draft.turns(len(parts)):
            for part in parts:
                self.assignments.assign(node.target, part)
                if flag not in assigned(node.body):
                    for statement in node.body:
                        self.reader.statement(statement)
                    continue
                ends |= isinstance(self.frame.names[flag], Var)
                self.reader.condition_statement(turn)
                if self.frame.holds(turn.test) is False:
                    break
        if ends:  # the last part was assigned, and Python would have left the loop before
            targets = assigned([ast.Expr(node.target)])
            self.end_of(targets, "a loop that `break` or `return` may end", KEPT)

    def _goes_with_unrolled(self, node: ast.For) -> bool:
        """Returns whether a `range` in an unrolled loop has calls that are numbered by turn."""
        draft = self.draft
        if draft.unrolled_in != (len(draft.loops), draft.conditions) or not is_range(node):
            return False
        calls = [part for part in nodes_of(node) if isinstance(part, ast.Call)]
        return any(
            self.frame.msrl_call(call) in UNROLLED or any(map(self.frame.is_msrl, call.args))
            for call in calls
        )

    def end_of(self, names: set[str], statement: str, way: str = BEFORE) -> None:
        """Marks names that are local to a statement's body as unreadable after it."""
        for name in names & self.frame.names.keys():
            if isinstance(self.frame.names[name], Broken):
                continue
            self.frame.names[name] = Gone(f"`{name}` behind {statement}", way.format(name))

    def _flag_of(self, node: ast.For) -> set[str]:
        """Returns the flag of a loop that may end early; empty if its `break` is never reached."""
        flag = {getattr(node, "going", "")} & assigned(decided(node, self.frame))
        if flag and self.kind_of(node.iter) == "iterations":
            self.frame.fail(
                node.iter,
                "`break` in the loop over msrl.iterations()",
                "a run ends after total_steps, or when --stop-return is reached",
            )
        return flag

    def _check_carried(self, before: dict[str, Struct], node: ast.For) -> None:
        for name, struct in before.items():
            after = self.frame.names[name]
            if isinstance(after, Broken):
                continue
            if isinstance(struct, (Listed, Entries)) and _grown(struct, after):
                if isinstance(struct, Entries):
                    if _is_filled(name, struct, after, node) and self.draft.loops[-1].count:
                        continue
                    self.reader.perhaps.end(node, name, struct)
                    more = ", ".join(f"{key!r}: 0.0" for key in after if key not in struct)
                    self.frame.fail(
                        node,
                        f"`{name}`, a dictionary that grows in a loop that reads it,",
                        f"give it all its keys before the loop: {name} |= {{{more}}}",
                    )
                self.frame.fail(
                    node,
                    f"`{name}`, a list that grows from turn to turn,",
                    f"append numbers to it, `{name}.append(...)`, in a loop inside an iteration; "
                    f"over all iterations\n  add up: `{name} = 0.0` before the loop and "
                    f"`{name} = {name} + ...` in it",
                )
            if isinstance(struct, tuple) and isinstance(after, Var):
                parts = ", ".join(f"{name}_{k}" for k in range(len(struct)))
                self.frame.fail(
                    node,
                    f"`{name}`, {len(struct)} parts before the loop and one value at its end,",
                    f"name the parts where it is set, as in `action, ({parts}) = ...`, then "
                    f"`{name} = {parts}`",
                )
            if not same(self.reader.perhaps.end(node, name, struct), self.frame.names[name]):
                self.frame.fail(
                    node,
                    f"`{name}`, which changes its structure from turn to turn,",
                    "what a loop carries round must be arrays and numbers, in tuples "
                    "and dictionaries that keep their shape",
                )

    def _loop_call(self, call: ast.expr) -> tuple[str, list[ast.expr]]:
        if not isinstance(call, ast.Call):
            self.frame.fail(call, "a loop over something else")
        name = self.frame.msrl_call(call)
        if name not in LOOPS and isinstance(call.func, ast.Name) and call.func.id == "range":
            name = "range"
        if name is None or name not in (*LOOPS, "range"):
            self.frame.fail(call, "a loop over something else")
        wanted = {"epochs": 1, "minibatches": 2, "range": 1}.get(name, 0)
        args = list(call.args)
        if name == "range" and len(args) in (2, 3):
            wanted = len(args)
        if name == "minibatches" and [item.arg for item in call.keywords] == ["steps"]:
            args.append(call.keywords[0].value)
            wanted = 3
        if len(args) != wanted or (call.keywords and (wanted != 3 or name == "range")):
            self.frame.fail(call, f"{name} with other than {wanted} positional arguments")
        return name, args

    def _loop_count(self, kind: str, args: list[ast.expr], node: ast.For) -> int | None:
        if kind == "iterations":
            if self.draft.loops or self.draft.conditions:
                self.frame.fail(node.iter, "msrl.iterations() inside a loop or a condition")
            return None
        if kind == "steps":
            return int(self.reader.trainer.config.num_steps)
        count = self.frame.known(args[0])
        if kind == "range":
            count = self._turns(list(map(self.frame.known, args)), count, node)
        least = 1 if kind == "minibatches" else 0
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            self.frame.fail(args[0], f"a loop count of {count!r}", "expected a positive integer")
        return count

    def _turns(self, ends: list[Any], count: Any, node: ast.For) -> Any:
        """Returns the turns of `range(*ends)`; `count` if they are no whole numbers."""
        if any(type(end) is not int for end in ends):
            if len(ends) > 1:
                self.frame.fail(node.iter, f"range{tuple(ends)}", "expected whole numbers")
            return count
        if ends[2:] == [0]:
            self.frame.fail(node.iter, "a range in steps of 0", "expected another step")
        return len(range(*ends))


def _is_filled(name: str, struct: Entries, after: Struct, loop: ast.For) -> bool:
    """Returns whether a loop sets entries of a dictionary and reads none.

    Each turn then sets the same entries, and the first needs none of them before.
    """
    if not isinstance(after, Entries) or has_perhaps(after):
        return False
    if not all(same(struct[k], after[k]) for k in struct):
        return False
    own = set()
    for part in nodes_of(loop):
        if getattr(part, "in_place", None) in (("entry", name), ("update", name)):
            own.add(part.value.elts[0])  # type: ignore[attr-defined]
    names = {part for part in nodes_of(loop) if isinstance(part, ast.Name)} - own
    reads = {part.id for part in names if isinstance(part.ctx, ast.Load)}
    return name not in reads.union(*(getattr(part, "captures", ()) for part in names))


def _grown(struct: Struct, after: Struct) -> bool:
    return isinstance(after, (tuple, dict)) and len(after) > len(struct)
