"""Lists that grow in a loop that is not unrolled, or in one branch of a condition: an array."""

import ast
import inspect
import math
import statistics
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_rl.compiler.frontend.records import Entries, Listed, Record, parts_of, rebuilt
from mindspore_rl.compiler.frontend.scope import Scope, Static, Struct, Var, variables
from mindspore_rl.compiler.ir.ir import Expr, Op
from mindspore_rl.platform.syntax import nodes_of

GROWS = ("append", "extend")
"""Changes in place that make a list longer."""
ARRAYS = ("stack", "array", "asarray", "Tensor", "tensor")
REDUCTIONS = ("sum", "mean", "fmean", "max", "min", "amax", "amin")
LIBRARIES = ("mindspore", "numpy", "statistics", "builtins")
OPERATORS = "mindspore_rl.rl.operators"


@dataclass(eq=False)
class Grown:
    """A list that grows in a loop.

    Attributes:
        name: its first name.
        count: the variable that counts its parts.
        home: the body in which it was made.
        loops: how many loops were open there.
        conditions: how many run-time conditions were open there.
        form: what was appended, with the variable of an array in place of each number.
        capacity: how many parts it has if all conditions hold.
        certain: whether no condition decides on its length.
    """

    name: str
    count: str
    home: Scope
    loops: int
    conditions: int
    form: Struct = None
    capacity: int = 0
    certain: bool = True


class GrownLists:
    """Reads lists that grow in loops.

    Args:
        reader: the reader of expressions.
    """

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft

    # ---- changes ---------------------------------------------------------------------------

    def begin(
        self,
        node: ast.stmt,
        holders: Callable[[frozenset], Iterator[str]],
        chosen: Container[str] | None = None,
    ) -> None:
        """Makes arrays of the lists that a loop or a condition appends to.

        Args:
            node: the loop or condition.
            holders: what else holds a list with a mark, see `in_place`; such a list is left.
            chosen: names of the lists, or of dictionaries of them; None: all.
        """
        names = self.draft.frame.names
        for part in self._appending(node):
            name = _appended(part)
            if chosen is not None and name not in chosen:
                continue
            struct = names.get(name)
            if isinstance(struct, Listed) and self._is_own(struct, holders):
                names[name] = self._made(name, struct)
            elif isinstance(struct, Entries) and hasattr(part, "part"):
                own = [isinstance(p, Listed) and self._is_own(p, holders) for p in struct.values()]
                parts = [
                    self._made(f"{name}_{key}", p) if mine else p
                    for mine, (key, p) in zip(own, struct.items(), strict=True)
                ]
                names[name] = rebuilt(struct, parts)

    def appends(self, node: ast.stmt, name: str) -> bool:
        """Returns whether a statement appends to the list with a name, or to one in it."""
        return any(_appended(part) == name for part in self._appending(node))

    def _appending(self, node: ast.AST) -> Iterator[Any]:
        """Yields what appends to a list in a loop, also in functions inside that it calls."""
        for part in nodes_of(node):
            if getattr(part, "in_place", ("", ""))[0] in GROWS:
                yield part
            struct = self.draft.frame.names.get(part.id) if isinstance(part, ast.Name) else None
            tree = getattr(struct.value, "tree", None) if isinstance(struct, Static) else None
            for call in nodes_of(tree) if isinstance(tree, ast.FunctionDef) else ():
                func = call.func if isinstance(call, ast.Call) else None
                grows = isinstance(func, ast.Attribute) and func.attr in GROWS
                if grows and isinstance(func.value, ast.Name):  # type: ignore[union-attr]
                    yield call

    def _is_own(self, struct: Listed, holders: Callable[[frozenset], Iterator[str]]) -> bool:
        return bool(struct.mark) and next(holders(struct.mark), None) is None

    def _made(self, name: str, struct: Listed) -> Grown:
        draft = self.draft
        text = "".join(c if c.isalnum() else "_" for c in name)
        count = draft.fresh(f"{text}_count")
        draft.emit("constant", (count,), ("0",))
        draft.arrays.add(count)
        grown = Grown(name, count, draft.scope, len(draft.loops), draft.conditions)
        for part in struct:
            self.append(grown, part, draft.frame.node)
        return grown

    def append(self, grown: Grown, value: Struct, node: ast.AST) -> None:
        """Reads `xs.append(value)`."""
        draft = self.draft
        value = self._unpacked(value)
        around = draft.loops[grown.loops :]
        if isinstance(value, Record) and any(loop.kind == "steps" for loop in around):
            given = ast.unparse(getattr(node, "given", [node])[0])
            draft.fail(
                node,
                f"`{grown.name}`, a list of the steps of all environments,",
                f"the replay keeps them on the rank that has them: msrl.replay_insert({given}),\n"
                "  and behind the loop msrl.replay_sample(), which gives them as [T, B, ...]",
            )
        if not (draft.scope is grown.home or draft.scope.inside(grown.home)) or any(
            loop.count is None for loop in around
        ):
            draft.fail(
                node,
                f"`{grown.name}`, which gets more numbers here than where it was made,",
                "append to it in the same function and under the same condition, in one iteration",
            )
        grown.capacity += math.prod(loop.count for loop in around)
        grown.certain &= draft.conditions == grown.conditions
        put = draft.imported(OPERATORS, "put")
        if grown.form is None:
            grown.form = self._arrays(grown, value)
        for buffer, part in self._pairs(grown, grown.form, value, node):
            (text,), reads = self.reader.texts([part], node)
            used = (buffer, grown.count, *reads)
            draft.emit("glue", (buffer,), (f"{put}({buffer}, {grown.count}, {text})",), used)
        draft.emit("glue", (grown.count,), (f"{grown.count} + 1",), (grown.count,))
        items, buffers = grown.home.items, {var.name for var in variables(grown.form)}
        for place, item in enumerate(items):
            if isinstance(item, Op) and buffers & {*item.targets} and not item.reads:
                function = item.args[0].partition("(")[0]
                items[place] = replace(item, args=(Expr(f"{function}({grown.capacity})"),))

    def _unpacked(self, value: Struct) -> Struct:
        """Takes apart what a loss returns, also in a tuple or a dictionary."""
        if isinstance(value, (tuple, dict)):
            return rebuilt(value, map(self._unpacked, parts_of(value)))
        return self.draft.apart(value)

    def _arrays(self, grown: Grown, value: Struct) -> Struct:
        """Makes an array for each number of a value, before the loop."""
        if isinstance(value, (tuple, dict)):
            parts = value.values() if isinstance(value, dict) else value
            return rebuilt(value, [self._arrays(grown, part) for part in parts])
        draft, text = self.draft, "".join(c if c.isalnum() else "_" for c in grown.name)
        outer, draft.scope = draft.scope, grown.home
        name = draft.fresh(f"{text}_numbers")
        draft.arrays.add(name)
        made = draft.emit("glue", (name,), (f"{draft.imported(OPERATORS, 'numbers')}(1)",))
        draft.scope = outer
        return made[0]

    def _pairs(
        self, grown: Grown, form: Struct, value: Struct, node: ast.AST
    ) -> Iterator[tuple[str, Struct]]:
        several = isinstance(form, (tuple, dict))
        alike = isinstance(value, dict if isinstance(form, dict) else tuple) if several else True
        if several and alike:
            alike = len(form) == len(value) and (not isinstance(form, dict) or form == value | form)
        if not alike or (not several and isinstance(value, (tuple, dict))):
            self.draft.fail(
                node,
                f"a part of `{grown.name}` of another form than the first",
                "append the same tuple or dictionary of numbers each time",
            )
        if not several:
            yield form.name, value
            return
        for key in form if isinstance(form, dict) else range(len(form)):
            yield from self._pairs(grown, form[key], value[key], node)

    # ---- reads -----------------------------------------------------------------------------

    def of(self, node: ast.AST) -> Grown | None:
        """Returns the list that an expression stands for, or the same part of each of its parts.

        That is a name, an entry of a dictionary, or `[m["loss"] for m in history]`.
        """
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._selected(node)
        if not isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)):
            return None
        struct = self.draft.frame.part(node)
        if isinstance(node, ast.Subscript):
            base = self.draft.frame.part(node.value)
            known, key = self.draft.frame.static(node.slice) if base is not None else (False, None)
            struct = base.get(key) if known and isinstance(base, dict) else None
        return struct if isinstance(struct, Grown) else None

    def _selected(self, made: Any) -> Grown | None:
        loop = made.generators[0]
        grown = self.of(loop.iter)
        if grown is None or len(made.generators) > 1 or loop.ifs or grown.form is None:
            return None
        before = dict(self.draft.frame.names)
        self.draft.frame.names |= dict(self.reader.assignments.bindings(loop.target, grown.form))
        node = made.elt
        picked = self.draft.frame.part(node)
        if isinstance(node, ast.Subscript):
            base = self.draft.frame.part(node.value)
            known, key = self.draft.frame.static(node.slice)
            if known and isinstance(base, (tuple, dict)):
                picked = self.reader.part_of(node)
        self.draft.frame.names = before
        parts = {var.name for var in variables(grown.form)}
        if picked is None or not {var.name for var in variables(picked)} <= parts:
            return None
        return replace(grown, form=picked)

    def copied(self, grown: Grown) -> Grown:
        """Returns a list like another one, which does not grow with it."""
        draft = self.draft

        def copy(struct: Struct) -> Struct:
            if isinstance(struct, (tuple, dict)):
                return rebuilt(struct, map(copy, parts_of(struct)))
            made = draft.result("copy", struct.name, (struct.name,))
            draft.follow(struct.name, made.name)
            return made

        count = copy(Var(grown.count)).name
        return replace(grown, count=count, form=copy(grown.form), home=Scope())

    def length(self, grown: Grown) -> int | None:
        """Returns the number of its parts; None if that is known only at run time."""
        known = grown.certain and len(self.draft.loops) == grown.loops
        return grown.capacity if known else None

    def parts(self, grown: Grown, node: ast.AST) -> tuple[Struct, ...]:
        """Returns its parts."""
        length = self.length(grown)
        if length is None:
            length = 0
            self.draft.fail(
                node,
                f"`{grown.name}`, a list whose length is known only at run time,",
                f"take sum({grown.name}), max, min, len or {grown.name}[-1] of it, or count in it "
                "behind the loop,\n  without a `break` that may end it before",
            )
        return tuple(self._at(grown.form, str(place)) for place in range(length))

    def part(self, grown: Grown, key: Any, node: ast.AST) -> Struct:
        """Reads `xs[key]`."""
        if self.length(grown) is not None:
            try:
                return self.parts(grown, node)[key]
            except (IndexError, TypeError):
                has = f"{grown.capacity} parts"
                self.draft.fail(node, f"element {key!r} of what has {has}", "")
        if key != -1:
            self.parts(grown, node)
        return self._at(grown.form, f"{grown.count} - 1", grown.count)

    def _at(self, form: Struct, place: str, *reads: str) -> Struct:
        if isinstance(form, (tuple, dict)):
            parts = form.values() if isinstance(form, dict) else form
            return rebuilt(form, [self._at(part, place, *reads) for part in parts])
        return self.draft.result("glue", f"{form.name}[{place}]", (form.name, *reads))

    def called(self, call: ast.Call) -> Struct | None:
        """Reads `len(xs)`, `sum(xs)`, `np.mean(xs)`, `ops.stack(xs)`; None for any other call."""
        if len(call.args) != 1:
            return None
        if (grown := self.of(call.args[0])) is None:
            return self._mean_of_known(call)
        function = self.draft.frame.static(call.func)[1]
        home = inspect.getmodule(function) if callable(function) else None
        library = getattr(home, "__name__", "builtins").partition(".")[0]
        name = getattr(function, "__name__", "")
        if library not in LIBRARIES or call.keywords:
            return None
        length = self.length(grown)
        if name == "len":
            return Var(grown.count) if length is None else Static(length)
        leaf = grown.form if isinstance(grown.form, Var) else None
        if name in ARRAYS and leaf is not None and length is not None:
            return leaf
        if name not in REDUCTIONS or leaf is None:
            return None
        kind = name[-4:] if name.endswith("mean") else name[-3:]
        function = self.draft.imported(OPERATORS, "reduce_numbers")
        reads = (leaf.name, grown.count) if length is None else (leaf.name,)
        count = grown.count if length is None else length
        return self.draft.result("glue", f"{function}({kind!r}, {leaf.name}, {count})", reads)

    def _mean_of_known(self, call: ast.Call) -> Struct | None:
        """Reads `np.mean(xs)` of variables in a tuple or list; None for anything else."""
        function, (given,) = self.draft.frame.static(call.func)[1], call.args
        means = (np.mean, statistics.mean, statistics.fmean)
        if not any(function is one for one in means) or call.keywords:
            return None
        parts = self.draft.frame.part(given)
        if isinstance(given, (ast.List, ast.Tuple, ast.ListComp)):
            parts = self.reader.expression(given)
        elif isinstance(given, ast.Subscript):
            parts = self.reader.part_of(given)
        if not isinstance(parts, tuple) or not any(isinstance(part, Var) for part in parts):
            return None
        before, name = self.draft.frame.names, "parts_of_mean"
        self.draft.frame.names = {**before, name: parts}
        total = ast.Call(ast.Name("sum", ast.Load()), [ast.Name(name, ast.Load())], [])
        mean = ast.BinOp(total, ast.Div(), ast.Constant(len(parts)))
        try:
            return self.reader.expression(ast.fix_missing_locations(ast.copy_location(mean, call)))
        finally:
            self.draft.frame.names = before

    def condition(self, node: ast.expr, reads: list[str]) -> ast.expr | None:
        """Reads `if xs:`, and adds what it reads to `reads`; None for anything else."""
        if (grown := self.of(node)) is None:
            return None
        if (length := self.length(grown)) is not None:
            return ast.Constant(length > 0)
        reads.append(grown.count)
        count = ast.Name(grown.count, ast.Load())
        return ast.Compare(count, [ast.Gt()], [ast.Constant(0)])


def _appended(part: Any) -> str:
    """Returns the name of the list that something appends to."""
    return part.in_place[1] if hasattr(part, "in_place") else part.func.value.id
