"""Static analysis: the source of `Trainer.train` and `Learner.learn` becomes a `Program`.

The loop is read, never run. Tuples and dictionaries are taken apart while reading, so that every
variable of the graph is one array (or the opaque result of one call); methods that receive `msrl`
are inlined; attributes of `self` that are plain numbers become constants.
"""

import ast
import functools
import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_rl.compiler.frontend.assignment import same
from mindspore_rl.compiler.frontend.break_to_flag import BOUND, end_by_flag
from mindspore_rl.compiler.frontend.early_return import return_once
from mindspore_rl.compiler.frontend.expressions import ExpressionReader
from mindspore_rl.compiler.frontend.implied import Implied, implied_marks
from mindspore_rl.compiler.frontend.liveness import live_behind
from mindspore_rl.compiler.frontend.loop_carried import assigned, carried, decided, loaded
from mindspore_rl.compiler.frontend.msrl_calls import Calls
from mindspore_rl.compiler.frontend.replay_rows import place_kept
from mindspore_rl.compiler.frontend.scope import (
    MSRL,
    SUPPORTED,
    THROWN_AWAY,
    Gone,
    Scope,
    Static,
    Struct,
    Var,
    open_frame,
    variables,
)
from mindspore_rl.compiler.frontend.sequences import is_unrolled
from mindspore_rl.compiler.frontend.telling import PLAIN, is_plain, only_tells
from mindspore_rl.compiler.frontend.trajectory_rows import place_rows
from mindspore_rl.compiler.ir.ir import Branch, Expr, Loop, Program
from mindspore_rl.compiler.ir.operations import LOOPS
from mindspore_rl.errors import ProgramError

STATEMENTS = {
    ast.While: "a `while` without a bound",
    ast.FunctionDef: "a function inside a function",
    ast.ClassDef: "a class inside a function",
    ast.Delete: "`del`",
    ast.ImportFrom: "`import`",
    ast.AsyncFor: "`async for`",
    ast.AsyncWith: "`async with`",
    ast.AsyncFunctionDef: "`async def`",
}
"""Names of unsupported statements in errors, where the name of the `ast` class is unclear."""


def build(trainer: Any, algorithm: str, job: "_Builder | None" = None) -> Program:
    """Reads `trainer.train` into a program.

    Args:
        trainer: the trainer whose `train` is read.
        algorithm: its name.
        job: the loop of the job's trainer, if it has another number of environments.

    Raises:
        ProgramError: `train` uses Python that the analysis does not support; names the line.
    """
    marks = (job or read(trainer)).marks
    draft = _Builder(trainer, job, marks).read().draft
    body = draft.scope.items
    kinds = [item.kind for item in body if isinstance(item, Loop)]
    if kinds.count("iterations") != 1:
        raise ProgramError(
            f"{algorithm}: train has {kinds.count('iterations')} loops over msrl.iterations(), "
            "expected one, at the outermost level"
        )
    program = Program(
        algorithm,
        place_kept(place_rows(tuple(body))),
        imports=tuple((alias, *source) for alias, source in sorted(draft.imports.items())),
        locals=tuple(sorted(draft.locals.items())),
        left_out=tuple(draft.left_out),
    )
    if not program.steps_per_env:
        raise ProgramError(
            f"{algorithm}: train calls msrl.env_step() nowhere in the loop over "
            "msrl.iterations(), expected at least once: a run ends after total_steps"
        )
    return program


def read(trainer: Any) -> "_Builder":
    """Reads `trainer.train` for the marks that its calls imply.

    Raises:
        ProgramError: `train` uses Python that the analysis does not support; names the line.
    """
    return _Builder(trainer).read()


class _Returned(Exception):  # noqa: N818
    """Ends the reading of a function at its `return`."""

    def __init__(self, value: Struct) -> None:
        super().__init__()
        self.value = value


class _Builder(ExpressionReader):
    """Reads statements."""

    def __init__(
        self, trainer: Any, job: "_Builder | None" = None, marks: Implied | None = None
    ) -> None:
        super().__init__(trainer)
        self.draft.implied = marks or {}
        num_envs = (job or self).trainer.config.num_envs
        wanted = tuple(job.calls.records.each) if job else ()
        self.calls: Calls = Calls(self, num_envs, wanted)

    def read(self) -> "_Builder":
        """Reads the training loop."""
        self.inline(self.trainer.train, (Static(MSRL),), {}, top=True)
        return self

    @functools.cached_property
    def marks(self) -> Implied:
        """The marks that the calls imply."""
        return implied_marks(self.draft.scope.items)

    def call(self, name: str, node: ast.Call) -> Struct:
        """Reads a call of `msrl.name` and returns its result."""
        return self.calls.read(name, node)

    # ---- functions -------------------------------------------------------------------------

    def inline(
        self, method: Any, args: tuple[Struct, ...], keywords: dict[str, Struct], top: bool = False
    ) -> Struct:
        """Reads a function's body in place of its call and returns its return value."""
        frame, tree = open_frame(method)
        if any(frame.function is other.function for other in self.draft.frames):
            self.frame.fail(self.frame.node, f"a function that calls itself ({tree.name})")
        if inspect.ismethod(method):
            args = (Static(method.__self__), *args)
        frame.top = top
        self.draft.frames.append(frame)
        self._bind_arguments(tree, args, dict(keywords))
        frame.returned = return_once(tree, frame.holds)
        tree = end_by_flag(tree)
        frame.live = live_behind(tree)
        result: Struct = Static(None)
        try:
            for statement in tree.body:
                self._statement(statement)
        except _Returned as returned:
            result = returned.value
        self.draft.frames.pop()
        return result

    def _bind_arguments(
        self, tree: ast.FunctionDef, args: tuple, keywords: dict[str, Struct]
    ) -> None:
        spec, names = tree.args, self.frame.names
        if spec.kwarg is not None:
            self.frame.fail(spec.kwarg, "`**` in the parameters of a function that gets msrl")
        # An argument's variable now has this name too, so it must not be renamed any more.
        for value in (*args, *keywords.values()):
            self.draft.temporary -= {leaf.name for leaf in variables(value)}
        positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        if len(args) > len(positional) and spec.vararg is None:
            self.frame.fail(
                tree,
                f"a call of {tree.name} with {len(args)} arguments, expected {len(positional)}",
            )
        names.update(zip(positional, args, strict=False))
        if spec.vararg is not None:
            names[spec.vararg.arg] = tuple(args[len(positional) :])
        only = [arg.arg for arg in spec.kwonlyargs]
        for name, value in keywords.items():
            if name not in positional + only or name in names:
                self.frame.fail(tree, f"a call of {tree.name} with the argument {name!r}")
            names[name] = value
        defaults = dict(
            zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
        )
        defaults |= {n: d for n, d in zip(only, spec.kw_defaults, strict=True) if d is not None}
        for name in (*positional, *only):
            if name not in names:
                if name not in defaults:
                    self.frame.fail(tree, f"a call of {tree.name} without {name!r}")
                names[name] = Static(self.frame.known(defaults[name]))

    # ---- statements ------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        self.frame.node = node
        if isinstance(node, ast.Assign):
            value = self.expression(node.value)
            for target in node.targets:
                self.assignments.assign(target, value)
                if isinstance(target, ast.Name):
                    value = self.frame.names.get(target.id, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assignments.assign(node.target, self.expression(node.value))
        elif isinstance(node, ast.AugAssign):
            if not isinstance(node.target, ast.Name):
                self.assignments.fail_target(node.target)
            self._augmented(node, node.target)
        elif isinstance(node, ast.Expr):
            self._lone_expression(node.value)
        elif isinstance(node, ast.Assert):
            self._assert(node)
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.Return):
            if self.frame.nested:
                self.frame.fail(
                    node,
                    "`return` inside a loop or under a condition that is known only at run time",
                    "leave a loop with `break`, and return behind it; of nested conditions, let "
                    "each branch return,\n  or assign the result to a name and return that at last",
                )
            raise _Returned(self.expression(node.value) if node.value else Static(None))
        elif not isinstance(node, (ast.Pass, ast.AnnAssign)):
            text = STATEMENTS.get(type(node), f"`{type(node).__name__.lower()}`")
            self.frame.fail(node, text, BOUND if isinstance(node, ast.While) else SUPPORTED)

    def _augmented(self, node: ast.AugAssign, target: ast.Name) -> None:
        """Reads `x += y` as `x = x + y`; fails for lists and such, which change in place."""
        load = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        struct = self.frame.names.get(target.id)
        known = struct.value if isinstance(struct, Static) else None
        if isinstance(struct, (tuple, dict)) or isinstance(known, (list, dict, set, np.ndarray)):
            text = ast.unparse(ast.BinOp(load, node.op, node.value))
            self.frame.fail(
                node,
                f"a change in place of `{target.id}`, which may have another name,",
                f"make a new value: {target.id} = {text}",
            )
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        self.assignments.assign(target, self.expression(value))

    def _lone_expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.Call) and (
            self.frame.msrl_call(node) or self.frame.gets_msrl(node)
        ):
            self.expression(node)
            return
        if only_tells(node, self.frame):
            self.draft.left_out[self.frame.where(node)] = None
            return
        self.frame.fail(
            node,
            "an expression whose result is not used",
            "it would have no effect on the graph and is left out of it: change parameters and "
            "learner state\n  with msrl.update(self.method, ...), and report numbers with "
            "msrl.report",
        )

    def _assert(self, node: ast.Assert) -> None:
        """Checks what is known now; any other assertion is left out."""
        holds = self.frame.holds(node.test)
        if holds is None and not is_plain(node.test, self.frame):
            self.frame.fail(node, "an assertion that calls a function of yours", PLAIN)
        if holds is False and not self.draft.conditions:
            self.frame.fail(node, "an assertion that fails", "change what it asserts")
        if not holds:
            self.draft.left_out[self.frame.where(node)] = None

    def _for(self, node: ast.For) -> None:
        if node.orelse:
            self.frame.fail(node.orelse[0], "`else` of a loop")
        if is_unrolled(node):
            self._unrolled(node)
            return
        kind, args = self._loop_call(node.iter)
        count = self._loop_count(kind, args, node)
        if count == 0:
            return
        values = self.expression(args[1]) if kind == "minibatches" else None
        index = LOOPS.get(kind, "i")
        target = getattr(node.target, "id", "")
        named = target not in ("", THROWN_AWAY)
        shifted = kind == "range" and len(args) > 1  # by a start, perhaps in other steps
        if named and kind != "minibatches" and not shifted:
            index = target
        read, kept = carried(node, self.frame)
        going = self._flag_of(node)
        own = assigned(node.body) - read - self.frame.live[node]
        self.assignments.give_homes(sorted(read | (kept - own) | going))
        self.assignments.forget(own)
        before = {name: self.frame.names[name] for name in read if name in self.frame.names}
        index = self.draft.fresh(index)
        loop = Loop(self.draft.name_op(kind), kind, index, count, (), self.frame.where(node))
        outer, self.draft.scope = self.draft.scope, Scope(outer=self.draft.scope)
        self.draft.loops.append(loop)
        self.frame.nested += 1
        if kind == "iterations":
            self.calls.drawing.top_of_iteration = []
        if kind == "minibatches":
            self.assignments.assign(node.target, self.calls.drawing.minibatch(loop, values, args))
        elif named and shifted:
            start, step = self.frame.known(args[0]), [*map(self.frame.known, args[2:]), 1][0]
            number = self.draft.result("glue", f"{start} + {step} * {index}", (index,))
            self.assignments.assign(node.target, number)
        elif named:
            self.frame.names[target] = Var(index)
        elif not target:
            self.frame.fail(node.target, "a loop target that is not a name")
        self.draft.conditions += len(going)
        for statement in node.body:
            self._statement(statement)
        self.draft.conditions -= len(going)
        self._check_carried(before, node)
        self._end_of(own, "a loop")
        if named and (shifted or self.frame.names[target] == Var(index)):
            self.frame.names[target] = Gone("a loop's index after the loop")
        body = self.draft.scope.items
        for flag in (self.frame.names[name].name for name in going):
            name = self.draft.name_op("if")
            body = [Branch(name, Expr(flag), (flag,), tuple(body), (), loop.where, first=True)]
        if kind == "iterations":
            body = [*(self.calls.drawing.top_of_iteration or ()), *body]
            self.calls.drawing.top_of_iteration = None
            outer.items += self.calls.drawing.before_iterations
        self.draft.loops.pop()
        self.frame.nested -= 1
        self.draft.scope = outer
        self.draft.scope.items.append(replace(loop, body=tuple(body)))

    def _unrolled(self, node: ast.For) -> None:
        """Reads a loop over a sequence: its body, once for each part."""
        flag, ends = getattr(node, "going", ""), False
        turn = ast.copy_location(ast.If(ast.Name(flag, ast.Load()), node.body, []), node)
        ast.fix_missing_locations(turn)
        self.frame.live[turn] = self.frame.live[node] | loaded(node)
        parts = self.sequences.of(node.iter, "a loop over this")
        several = len(parts) > 1
        self.draft.unrolled += several
        try:
            for part in parts:
                self.assignments.assign(node.target, part)
                if flag not in assigned(node.body):
                    for statement in node.body:
                        self._statement(statement)
                    continue
                ends |= isinstance(self.frame.names[flag], Var)
                self._if(turn)
                if self.frame.holds(turn.test) is False:
                    break
        finally:  # also at a `return`
            self.draft.unrolled -= several
        if ends:  # the last part was assigned, and Python would have left the loop before
            self._end_of(assigned([ast.Expr(node.target)]), "a loop that `break` may end")

    def _end_of(self, names: set[str], statement: str) -> None:
        """Marks names that are local to a statement's body as unreadable after it."""
        for name in names & self.frame.names.keys():
            self.frame.names[name] = Gone(f"`{name}` behind {statement}")

    def _flag_of(self, node: ast.For) -> set[str]:
        """Returns the flag of a loop that may end early; empty if its `break` is never reached."""
        flag = {getattr(node, "going", "")} & assigned(decided(node, self.frame))
        if flag and self._loop_call(node.iter)[0] == "iterations":
            self.frame.fail(
                node.iter,
                "`break` in the loop over msrl.iterations()",
                "a run ends after total_steps, or when --stop-return is reached",
            )
        return flag

    def _check_carried(self, before: dict[str, Struct], node: ast.For) -> None:
        for name, struct in before.items():
            if not same(struct, self.frame.names[name]):
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
            return int(self.trainer.config.num_steps)
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

    def _if(self, node: ast.If) -> None:
        condition = self.condition(node.test)
        if isinstance(condition, Static):
            for statement in node.body if condition.value else node.orelse:
                self._statement(statement)
            return
        test, reads = condition
        where = self.frame.where(node)
        changed = assigned(node.body) | assigned(node.orelse)
        own = changed - self.frame.live[node]
        changed -= own
        self.assignments.give_homes(sorted(changed), always=True)
        self.assignments.forget(own)
        before, ends, bodies = dict(self.frame.names), [], []
        self.draft.conditions += 1
        self.draft.perhaps += 1
        self.frame.nested += 1
        for statements in (node.body, node.orelse):
            outer, self.draft.scope = self.draft.scope, Scope(outer=self.draft.scope)
            self.frame.names = dict(before)
            for statement in statements:
                self._statement(statement)
            bodies.append(tuple(self.draft.scope.items))
            ends.append(self.frame.names)
            self.draft.scope = outer
        self.draft.conditions -= 1
        self.draft.perhaps -= 1
        self.frame.nested -= 1
        taken, other = ends
        for name in changed:
            if name in taken and name in other and not same(taken[name], other[name]):
                called = "the result" if name == self.frame.returned else f"`{name}`"
                self.frame.fail(
                    node,
                    f"{called}, which is something else in each branch,",
                    "under a condition that is known only at run time, assign arrays "
                    "or numbers, the same tuple or dictionary of them in both branches",
                )
        self.frame.names = other | taken
        self._end_of(own, "a condition")
        self.draft.scope.items.append(
            Branch(self.draft.name_op("if"), test, reads, bodies[0], bodies[1], where)
        )
