"""Static analysis: the source of `Trainer.train` and `Learner.learn` becomes a `Program`.

The loop is read, never run. Tuples and dictionaries are taken apart while reading, so that every
variable of the graph is one array (or the opaque result of one call); methods that receive `msrl`
are inlined; attributes of `self` that are plain numbers become constants.
"""

import ast
import contextlib
import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mindspore_rl.compiler.frontend.assignment import same
from mindspore_rl.compiler.frontend.break_to_flag import BOUND, count_turns, end_by_flag
from mindspore_rl.compiler.frontend.early_return import return_once
from mindspore_rl.compiler.frontend.expressions import ExpressionReader
from mindspore_rl.compiler.frontend.functions import Inner, Partial
from mindspore_rl.compiler.frontend.implied import Implied, implied_marks
from mindspore_rl.compiler.frontend.in_place import Changes, as_assignments, joined
from mindspore_rl.compiler.frontend.lazy_loops import compute_by_turns
from mindspore_rl.compiler.frontend.left_out_draws import counted_draws
from mindspore_rl.compiler.frontend.liveness import live_behind
from mindspore_rl.compiler.frontend.loop_carried import assigned, note_captures
from mindspore_rl.compiler.frontend.loops import Loops
from mindspore_rl.compiler.frontend.msrl_calls import Calls, taken_apart, used_as_numbers
from mindspore_rl.compiler.frontend.perhaps import NUMBER, Again, Carried
from mindspore_rl.compiler.frontend.records import Entries, Listed, is_sequence
from mindspore_rl.compiler.frontend.replay_rows import place_kept
from mindspore_rl.compiler.frontend.scope import (
    MSRL,
    REFUSED,
    SUPPORTED,
    Broken,
    Follows,
    Frame,
    Scope,
    Static,
    Struct,
    Var,
    constant,
    is_array,
    is_plain_value,
    open_frame,
    variables,
)
from mindspore_rl.compiler.frontend.sequences import unroll_ranges
from mindspore_rl.compiler.frontend.shapes import sizes_in_place
from mindspore_rl.compiler.frontend.telling import PLAIN, is_plain, only_tells
from mindspore_rl.compiler.frontend.trajectory_rows import place_rows
from mindspore_rl.compiler.ir.dataflow import first_reads
from mindspore_rl.compiler.ir.ir import Branch, Loop, Op, Program, site_of, walk
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.errors import ProgramError
from mindspore_rl.platform import refused_python
from mindspore_rl.platform.syntax import nodes_of

STATEMENTS = {
    ast.While: "a `while` without a bound",
    ast.ClassDef: "a class inside a function",
    ast.Delete: "`del`",
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
        job: the loop of the job's trainer, which may have another number of environments; None:
            this trainer is the job's, and its loop is read here.

    Raises:
        ProgramError: `train` uses Python that the analysis does not support; names the line.
    """
    marks = (job or read(trainer)).marks
    draft = _reading(trainer, job, marks).draft
    body = draft.scope.items
    kinds = [item.kind for item in body if isinstance(item, Loop)]
    if kinds.count("iterations") != 1:
        raise ProgramError(
            f"{algorithm}: train has {kinds.count('iterations')} loops over msrl.iterations(), "
            "expected one, at the outermost level"
        )
    program = Program(
        algorithm,
        place_kept(place_rows(counted_draws(tuple(body)))),
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


def read(trainer: Any, marks: Implied | None = None) -> "_Builder":
    """Reads `trainer.train` for the marks that its calls imply, or with them.

    Raises:
        ProgramError: `train` uses Python that the analysis does not support; names the line.
    """
    return _reading(trainer, marks=marks)


def _reading(
    trainer: Any, job: "_Builder | None" = None, marks: Implied | None = None
) -> "_Builder":
    """Reads `trainer.train`, again where a loop or condition begins with more than was known."""
    carried: Carried = {} if job is None else copy.deepcopy(job.perhaps.carried)
    while True:
        try:
            return _Builder(trainer, job, marks, carried).read()
        except Again as again:
            carried.setdefault(again.place, set()).update(again.entries)


def _alike(one: Struct, other: Struct) -> str:
    """Says how two values of the branches of a condition become alike."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() ^ other.keys():
        keys = ", ".join(map(repr, sorted(one.keys() ^ other.keys(), key=str)))
        return (
            f"only one branch has {keys}: a dictionary under a condition that is known only at "
            "run time has the same\n  keys in both, with a number such as 0.0 where there is none"
        )
    if any(isinstance(part, Static) and is_array(part.value) for part in (one, other)):
        return (
            "it is a Parameter in one of them, which sees later updates: write 1.0 * "
            "parameter there for its value,\n  or choose with ops.where(condition, a, b)"
        )
    if any(isinstance(part, Static) and part.value is None for part in (one, other)):
        if isinstance(one, dict) or isinstance(other, dict):
            return (
                "it is None in one of them: give an empty dictionary there, {}, of which "
                "msrl.report reports nothing"
            )
        return (
            "it is None in one of them: give it a number or an array of the other's shape there, "
            "such as 0.0 or\n  ops.zeros_like(x)"
        )
    return (
        "under a condition that is known only at run time, assign arrays "
        "or numbers, the same tuple or dictionary of them in both branches"
    )


class _Returned(Exception):  # noqa: N818
    """Ends the reading of a function at its `return`."""

    def __init__(self, value: Struct) -> None:
        super().__init__()
        self.value = value


class _Builder(ExpressionReader):
    """Reads statements.

    Attributes:
        problems: the errors of all statements, by message.
        entered: loops and conditions whose bodies were begun.
        one_sided: variables that one branch of a condition sets, with the place of the statement
            of the function that holds it, and the name there.
    """

    def __init__(
        self,
        trainer: Any,
        job: "_Builder | None" = None,
        marks: Implied | None = None,
        carried: Carried | None = None,
    ) -> None:
        super().__init__(trainer)
        self.perhaps.carried = carried or {}
        self.draft.implied = marks or {}
        num_envs = (job or self).trainer.config.num_envs
        wanted = tuple(job.calls.records.each) if job and job.trainer is not trainer else ()
        self.calls: Calls = Calls(self, num_envs, wanted)
        self.loops, self.changes = Loops(self), Changes(self)
        self.problems: dict[str, ProgramError] = {}
        self.entered: set[ast.stmt] = set()
        self.one_sided: dict[str, tuple[tuple[str, int, int], str]] = {}

    def read(self) -> "_Builder":
        """Reads the training loop."""
        self.inline(self.trainer.train, (Static(MSRL),), {}, top=True)
        if len(self.problems) == 1:
            raise next(iter(self.problems.values()))
        if self.problems:
            raise ProgramError("\n".join(self.problems))
        items = self.draft.scope.items
        for name in first_reads(tuple(items)):
            if name in self.one_sided:
                place, own = self.one_sided[name]
                if (own, NUMBER) not in self.perhaps.carried.get(place, ()):
                    raise Again(place, {(own, NUMBER)})
        items[:] = self.calls.drawing.in_turns(tuple(items))
        return self

    @functools.cached_property
    def marks(self) -> Implied:
        """The marks that the calls imply."""
        return implied_marks(self.draft.scope.items)

    @property
    def draws(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The calls that draw random numbers by these numbers' names: lines, turns an iteration."""
        found = {}
        for op, _ in walk(tuple(self.draft.scope.items)):
            if "purpose" in op.attr and "rows" in op.attr:
                found[op.attr["purpose"]] = self._lines(op.attr["purpose"], op), op.attr["rows"]
            elif op.kind == "permutations":
                found[site_of(op.name)] = self._lines(op.name, op), op.attr["rounds"]
        return found

    @property
    def marked(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The boundaries and the calls of kinds that may have marks, as `draws`."""
        found: dict[str, tuple[tuple[int, ...], int]] = {}
        for op, _ in walk(tuple(self.draft.scope.items)):
            name, row = op.attr.get("site", op.name), OPERATIONS[op.kind]
            if op.kind == "boundary" or row.gives or row.takes:
                found.setdefault(site_of(name), (self._lines(name, op), 0))
        return found

    @property
    def by_priority(self) -> set[str]:
        """The names of the replays that are drawn from by priority."""
        ops = [op.attr for op, _ in walk(tuple(self.draft.scope.items)) if op.kind == "replay_draw"]
        return {attr.get("store", "") for attr in ops if attr["by"] == "priority"}

    def _lines(self, name: str, op: Op) -> tuple[int, ...]:
        """Returns the lines of the calls that lead to an operation; none twice in a row."""
        lines = *self.draft.outer[site_of(name)], op.where.line
        return tuple(line for line, _ in itertools.groupby(lines))

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
        frame.top, frame.facts = top, self.draft
        self.draft.frames.append(frame)
        self._bind_arguments(tree, args, dict(keywords))
        return self._body(tree)

    def inline_inner(
        self, inner: Inner, args: tuple[Struct, ...], keywords: dict[str, Struct], node: ast.Call
    ) -> Struct:
        """Reads a function inside the one being read in place of its call."""
        if any(inner is frame.function for frame in self.draft.frames):
            self.frame.fail(node, f"a function that calls itself ({inner.name})")
        values = self.functions.bound(inner, args, keywords, node, compiled=False)
        for value in values.values():  # see `_bind_arguments`
            self.draft.temporary -= {leaf.name for leaf in variables(value)}
        outer = inner.frame
        frame = Frame(
            inner, outer.file, outer.first_line, outer.lines, outer.namespace, outer.module
        )
        frame.names, frame.around = {**outer.names, **values}, outer.home
        frame.facts = self.draft
        self.draft.frames.append(frame)
        if isinstance(inner.tree, ast.FunctionDef):
            return self._body(copy.deepcopy(inner.tree))
        self.frame.node = inner.tree
        result = self.expression(inner.tree.body)
        self.draft.frames.pop()
        return self._plain_result(result, node)

    def known_result(self, node: ast.Call) -> Struct | None:
        """Reads a function of known numbers whose result is known; else returns None."""
        given = [self.frame.static(a) for a in (*node.args, *(k.value for k in node.keywords))]
        plain = all(known and is_plain_value(value) for known, value in given)
        return self._read_if(node, lambda found: constant(found) is not None) if plain else None

    def opened(self, node: ast.expr) -> Struct | None:
        """Reads a function of the program that gives as many parts as are known; else None."""
        return self._read_if(node, is_sequence) if isinstance(node, ast.Call) else None

    def _read_if(self, node: ast.Call, wanted: Callable[[Struct], bool]) -> Struct | None:
        """Reads a function of the program in place of its call if that gives what is wanted."""
        if self.users_function(node) is None or self.is_read(node):
            return None
        problems, self.problems = self.problems, {}
        try:
            with self.draft.trial():
                result = self._inlined(node, None)
                if self.problems or not wanted(result):
                    raise Follows(ast.unparse(node))
                return result
        except ProgramError:
            return None
        finally:
            self.problems = problems

    def _body(self, tree: ast.FunctionDef) -> Struct:
        """Reads the body of the innermost function and returns its return value."""
        frame, result = self.frame, Static(None)
        for part in nodes_of(tree):
            if isinstance(part, (ast.Nonlocal, ast.Global)):
                frame.fail(part, "`nonlocal` or `global`", "return what the function computes")
        frame.numbers, frame.apart = used_as_numbers(tree), taken_apart(tree)
        compute_by_turns(tree, frame)
        sizes_in_place(tree, frame)
        count_turns(tree, self.loops.kind_of)
        as_assignments(tree, frame)
        note_captures(tree)
        unroll_ranges(tree, frame)
        frame.returned = return_once(tree, frame.holds)
        tree = end_by_flag(tree)
        frame.live = live_behind(tree)
        try:
            for statement in tree.body:
                frame.outermost = statement
                found = self.perhaps.carried.get(frame.place(statement), ())
                for name in sorted(name for name, key in found if key is NUMBER):
                    if name not in frame.names:
                        self.assignments.assign(ast.Name(name, ast.Store()), Static(math.nan))
                self.statement(statement)
        except _Returned as returned:
            result = returned.value
        self.draft.frames.pop()
        return self._plain_result(result, tree) if self.draft.frames else result

    def _plain_result(self, result: Struct, node: ast.AST) -> Struct:
        """Refuses a result that is a function, which would use variables that are gone."""
        parts = [result]
        while parts:
            part = parts.pop()
            if isinstance(part, (tuple, dict)):
                parts += part.values() if isinstance(part, dict) else part
            elif isinstance(part, Static) and isinstance(part.value, (Inner, Partial)):
                self.frame.fail(
                    node, "a function that returns a function", "call it where it is defined"
                )
        return result

    def _bind_arguments(
        self, tree: ast.FunctionDef, args: tuple, keywords: dict[str, Struct]
    ) -> None:
        spec, names = tree.args, self.frame.names
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
        only, others = [arg.arg for arg in spec.kwonlyargs], dict[str, Struct]()
        for name, value in keywords.items():
            if spec.kwarg is not None and name not in positional + only:
                others[name] = value
                continue
            if name not in positional + only or name in names:
                self.frame.fail(tree, f"a call of {tree.name} with the argument {name!r}")
            names[name] = value
        if spec.kwarg is not None:
            names[spec.kwarg.arg] = Entries.of(others)
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

    def statement(self, node: ast.stmt) -> None:
        """Reads a statement; a problem with it is noted, and names that it assigns are broken."""
        try:
            with self.draft.attempt():
                self._read(node)
        except Exception as error:
            if isinstance(error, ProgramError) and not isinstance(error, Follows):
                self.problems[str(error)] = error
            elif isinstance(error, _Returned) or not self.problems:
                raise
            self.choices = 0
            if isinstance(node, (ast.For, ast.If)) and node not in self.entered:
                self._read_refused(node)
            self._refuse([node])
            if isinstance(node, ast.Return) and not self.frame.nested:
                raise _Returned(REFUSED) from None

    def _refuse(self, statements: list[Any]) -> None:
        for name in assigned(statements):
            self.frame.names[name] = REFUSED

    def _read_refused(self, node: ast.For | ast.If) -> None:
        """Reads the body of a loop or condition whose head was refused, for its problems."""
        if self.frame.top and not self.draft.loops:  # what stands in it is perhaps the iteration
            return
        self.frame.nested += 1
        for body in (node.body, node.orelse):
            self._refuse([node])
            with contextlib.suppress(_Returned):
                for statement in body:
                    self.statement(statement)
        self.frame.nested -= 1

    def _read(self, node: ast.stmt) -> None:
        self.frame.node = node
        if hasattr(node, "in_place"):
            if not self.changes.read(node):
                self.statement(node.before)  # type: ignore[attr-defined]
        elif isinstance(node, ast.FunctionDef):
            name = ast.copy_location(ast.Name(node.name, ast.Store()), node)
            self.assignments.assign(name, self.functions.defined(node))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    self.assignments.fail_target(target)
            parts, names = None, getattr(node.targets[0], "elts", [])
            if names:  # `a, b = map(f, xs)`
                parts = self.sequences.starred(node.value)
            if parts is None and any(isinstance(name, ast.Starred) for name in names):
                parts = self.opened(node.value)
            value = self.expression(node.value) if parts is None else parts
            value = self.calls.as_number(node, value)
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
            self.loops.read(node)
        elif isinstance(node, ast.If):
            self.condition_statement(node)
        elif isinstance(node, ast.Return):
            if any(loop.kind == "iterations" for loop in self.draft.loops) and self.frame.top:
                self.frame.fail(
                    node,
                    "`return` in the loop over msrl.iterations()",
                    "a run ends after total_steps, or when --stop-return is reached",
                )
            if self.frame.nested:
                self.frame.fail(
                    node,
                    "`return` inside a loop or under a condition that is known only at run time",
                    "leave a loop with `break`, and return behind it; of nested conditions, let "
                    "each branch return,\n  or assign the result to a name and return that at last",
                )
            raise _Returned(self.expression(node.value) if node.value else Static(None))
        elif isinstance(node, ast.Delete) and all(isinstance(t, ast.Name) for t in node.targets):
            pass  # Python would refuse to read the name
        elif not isinstance(node, (ast.Pass, ast.AnnAssign)):
            text = STATEMENTS.get(type(node), f"`{type(node).__name__.lower()}`")
            if isinstance(node, ast.While) and node.orelse:
                text = "`else` of a `while`"
            hint = BOUND if isinstance(node, ast.While) else SUPPORTED
            if instead := refused_python.INSTEAD.get(type(node)):
                text, _, hint = instead.partition(": ")
            self.frame.fail(node, text, hint, form=not isinstance(node, ast.While))

    def _augmented(self, node: ast.AugAssign, target: ast.Name) -> None:
        """Reads `x += y` as `x = x + y`; fails for lists and such, which change in place."""
        load = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        struct = self.frame.names.get(target.id)
        known = struct.value if isinstance(struct, Static) else None
        changing = (Listed, Entries, list, dict, set, np.ndarray)
        if isinstance(struct, changing) or isinstance(known, changing):
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
        for arg in node.args if isinstance(node, ast.Call) else ():
            if isinstance(arg, ast.Name) and isinstance(self.frame.part(arg), (Entries, Listed)):
                self.frame.fail(
                    node,
                    f"`{arg.id}`, which a function may change in place,",
                    f"let it return the new value: {arg.id} = {ast.unparse(node)}",
                )
        self.frame.fail(
            node,
            "an expression whose result is not used",
            "it would have no effect on the graph and is left out of it: parameters and learner "
            "state change in a\n  method, by ops.assign(parameter, value), that "
            "msrl.update(self.method, ...) calls; msrl.report tells numbers",
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

    def condition_statement(self, node: ast.If) -> None:
        """Reads an `if`."""
        condition = self.condition(node.test)
        self.entered.add(node)
        if isinstance(condition, Static):
            for statement in node.body if condition.value else node.orelse:
                self.statement(statement)
            return
        test, reads = condition
        where = self.frame.where(node)
        changed = assigned(node.body) | assigned(node.orelse)
        own = changed - self.frame.live[node]
        changed -= own
        self.perhaps.begin_condition(node)
        self.load_parameters(changed, node)
        self.assignments.give_homes(sorted(changed), always=True)
        forgotten = self.assignments.forget(own)
        before, ends, scopes = dict(self.frame.names), [], []
        self.draft.conditions += 1
        self.draft.perhaps += 1
        self.frame.nested += 1
        for statements in (node.body, node.orelse):
            outer, self.draft.scope = self.draft.scope, Scope(outer=self.draft.scope)
            self.frame.names = dict(before)
            known = self.perhaps.known_in(node.test, statements is node.body)
            self.frame.names |= known
            for name in known.keys() & changed:
                self.assignments.assign(ast.Name(name, ast.Store()), known[name])
            for statement in statements:
                self.statement(statement)
            for name in known.keys() - changed:
                self.frame.names[name] = before[name]
            scopes.append(self.draft.scope)
            ends.append(self.frame.names)
            self.draft.scope = outer
        self.draft.conditions -= 1
        self.draft.perhaps -= 1
        self.frame.nested -= 1
        taken, other = ends
        for name in changed:
            if any(isinstance(end.get(name), Broken) for end in ends):
                taken[name] = other[name] = REFUSED
            if name not in taken or name not in other:
                if isinstance(only := taken.get(name, other.get(name)), Var):
                    self.one_sided[only.name] = self.frame.place(self.frame.outermost), name
                continue
            if not same(taken[name], other[name]):
                self.frame.node, sides = node, (taken[name], other[name])
                sides = self.perhaps.level(self.frame.rename[name], sides, (scopes[0], scopes[1]))
                taken[name], other[name] = sides
                self.assignments.name_in_source(name, sides[0])
            if not same(taken[name], other[name]):
                self.perhaps.end_condition(node, name)
                called = "the result" if name == self.frame.returned else f"`{name}`"
                self.frame.fail(
                    node,
                    f"{called}, which is something else in each branch,",
                    _alike(taken[name], other[name]),
                )
        self.frame.names = other | taken
        for name in changed & taken.keys() & other.keys():
            self.frame.names[name] = joined(taken[name], other[name])
        self.loops.end_of(own, "a condition")
        self.assignments.remember(forgotten)
        body, orelse = (tuple(scope.items) for scope in scopes)
        branch = Branch(self.draft.name_op("if"), test, reads, body, orelse, where)
        self.draft.scope.items.append(branch)
