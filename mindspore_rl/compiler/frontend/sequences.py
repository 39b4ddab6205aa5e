"""Sequences of known length: loops over them and comprehensions are unrolled while reading."""

import ast
import copy
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from mindspore_rl.compiler.frontend.builder import UNROLLED
from mindspore_rl.compiler.frontend.grown import GROWS, Grown
from mindspore_rl.compiler.frontend.records import Listed, is_sequence
from mindspore_rl.compiler.frontend.scope import (
    Frame,
    Rows,
    Static,
    Struct,
    Var,
    constant,
    is_array,
    is_cell,
    variables,
)
from mindspore_rl.compiler.ir.operations import LOOPS, OPERATIONS
from mindspore_rl.platform.syntax import nodes_of, source_lines, statement_in

ITERATORS = (enumerate, filter, list, map, range, reversed, sorted, tuple, zip)
ITERTOOLS = (
    *(itertools.chain, itertools.combinations, itertools.islice, itertools.pairwise),
    *(itertools.permutations, itertools.product, itertools.repeat, itertools.zip_longest),
)
"""Python's own go over the parts of what is known; a number among their arguments is one."""
KNOWN_TYPES = (tuple, list, range, dict, str, enum.EnumMeta)
KNOWN = (
    "its length must be known now: a tuple, a list, range(n), the steps of a batch, or zip, "
    "enumerate,\n  reversed and d.items() of such; unpack first what a function returns: a, b = "
    "...; of another array,\n  take x[t] in a loop over range(n)"
)


class Sequences:
    """Reads the expressions that loops and comprehensions go over.

    Args:
        reader: the reader of expressions.

    Attributes:
        bound: variables of the comprehensions being read.
        passes: whether the one being read passes the entries of a dictionary on as they are.
    """

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft
        self.bound: set[str] = set()
        self.passes = False

    def of(self, node: ast.expr, construct: str) -> tuple[Struct, ...]:
        """Reads an expression as the tuple of what a loop over it gives in its turns.

        Args:
            node: the expression.
            construct: of what it is part, for the error if its length is not known.
        """
        if isinstance(node, ast.Call):
            found = self._of_dictionary(node) if not node.args else self.iterated(node)
            if found is not None:
                return found
        if (opened := self.reader.opened(node)) is not None:
            return opened
        value = self.draft.apart(self.reader.expression(node))
        if isinstance(value, Grown):
            return self.reader.grown.parts(value, node)
        if isinstance(value, Static) and (isinstance(value.value, KNOWN_TYPES) or is_cells(value)):
            return tuple(map(Static, value.value))
        if isinstance(value, dict):
            self.draft.frame.check_given(value, node)
            return tuple(map(Static, value))
        if isinstance(value, Var) and (rows := self._rows(value)) is not None:
            return rows
        if not is_sequence(value):
            self.draft.fail(node, construct, KNOWN)
        return value

    def _rows(self, array: Var) -> tuple[Var, ...] | None:
        """Returns `x[0], x[1], ...` of an array whose number of rows is known, such as steps."""
        sizes = self.draft.sizes_of(array.name)
        if not sizes or isinstance(sizes[0], Rows):
            return None
        self.draft.temporary.discard(array.name)  # it is read several times
        reads = (array.name,)
        return tuple(
            self.draft.result("glue", f"{array.name}[{row}]", reads) for row in range(sizes[0])
        )

    def starred(self, node: ast.expr) -> tuple[Struct, ...] | None:
        """Reads `*(f(x) for x in xs)` and `*map(f, xs)`; returns None for anything else."""
        if isinstance(node, ast.GeneratorExp):
            return self.comprehended(node)
        return self.iterated(node) if isinstance(node, ast.Call) and node.args else None

    def made(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `d.values()` and `list(zip(a, b))` as tuples; returns None for any other call.

        An iterator itself is no tuple: it would be empty the second time.
        """
        if not call.args:
            match call:
                case ast.Call(ast.Attribute(owner, "copy"), [], []):
                    given = self.draft.frame.part(owner)
                    return Listed.of(given) if isinstance(given, Listed) else None
            return self._of_dictionary(call)
        if not any(self.draft.frame.static(call.func)[1] is kind for kind in (list, tuple)):
            return None
        inner = call.args[0]
        if not isinstance(inner, ast.Call):
            given = self.draft.frame.part(inner)
            if len(call.args) > 1 or not is_sequence(given):
                return None
            made = self.draft.frame.static(call.func)[1] is list
            return Listed.of(given) if made else tuple(given)
        return self.iterated(inner) if inner.args else self._of_dictionary(inner)

    def iterated(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `zip(a, b)` and such; returns None for any other call."""
        kind = self.draft.frame.static(call.func)[1]
        if any(kind is one for one in ITERTOOLS) or kind == itertools.chain.from_iterable:
            return self._by_python(kind, call)
        if not any(kind is one for one in ITERATORS):
            return None
        if kind is sorted:
            return self._sorted(call)
        named = {item.arg: self.draft.frame.known(item.value) for item in call.keywords}
        if kind is range:
            return tuple(map(Static, range(*map(self.draft.frame.known, call.args))))
        if kind is zip:
            if (columns := self._columns(call)) is not None:
                return columns
            parts = self._zipped(call, bool(named.get("strict")))
            if named.get("strict") and len({*map(len, parts)}) > 1:
                lengths = ", ".join(str(len(part)) for part in parts)
                self.draft.fail(call, f"strict `zip` of {lengths} parts", "give equally many")
            return tuple(zip(*parts, strict=False))
        if kind is enumerate:
            first = self.draft.frame.known(call.args[1]) if call.args[1:] else named.get("start", 0)
            parts_of = self.of(call.args[0], "`enumerate` of this")
            return tuple((Static(place), part) for place, part in enumerate(parts_of, first))
        if isinstance(call.args[0], ast.GeneratorExp):
            return self.comprehended(call.args[0])
        if kind is map:
            return self._mapped(call)
        if kind is filter:
            return self._filtered(call)
        found = self.of(call.args[0], f"`{kind.__name__}` of this in a loop")
        return found[::-1] if kind is reversed else found

    def _columns(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `zip(*history)` of a list that grows by tuples; returns None for anything else."""
        given = call.args[0]
        grown = self.reader.grown.of(given.value) if isinstance(given, ast.Starred) else None
        if len(call.args) > 1 or grown is None or not isinstance(grown.form, tuple):
            return None
        return tuple(replace(grown, form=part) for part in grown.form)

    def _by_python(self, kind: Any, call: ast.Call) -> tuple[Struct, ...]:
        """Reads `chain(a, b)` and others of itertools over parts."""
        frame, what = self.draft.frame, f"`{ast.unparse(call.func)}` of this"
        named = {str(item.arg): frame.known(item.value) for item in call.keywords}
        args: list[Any] = []
        for place, arg in enumerate(call.args):
            known, value = frame.static(arg)
            if kind is itertools.repeat and not place:
                args.append(self.reader.expression(arg))
            elif known and (value is None or isinstance(value, int)):
                args.append(value)
            else:
                args.append(self.of(arg, what))
        self.draft.temporary -= {var.name for var in variables(tuple(args))}  # read several times
        if kind == itertools.chain.from_iterable:
            args = [[self._parts_of(part, call, what) for part in args[0]]]
        if kind is itertools.repeat and len(args) < 2 and not named:
            self.draft.fail(call, "`repeat` without an end", "say how often: repeat(x, n)")
        found = kind(*args, **named)
        return tuple(part if part is not None else Static(None) for part in found)

    def _parts_of(self, value: Struct, node: ast.expr, construct: str) -> tuple[Struct, ...]:
        if isinstance(value, Static) and isinstance(value.value, KNOWN_TYPES):
            return tuple(map(Static, value.value))
        if not is_sequence(value):
            self.draft.fail(node, construct, KNOWN)
        return value  # type: ignore[no-any-return]

    def caller(self, function: ast.expr) -> Callable[..., Struct]:
        """Returns what reads a call of a function with some values."""
        frame = self.draft.frame
        own = self.reader.expression(function) if isinstance(function, ast.Lambda) else None
        called = function if own is None else ast.Name("mapped", ast.Load())

        def call(*values: Struct) -> Struct:
            before, given = frame.names, {f"part_{k}": value for k, value in enumerate(values)}
            frame.names = {**before, **given} | ({} if own is None else {"mapped": own})
            args: list[ast.expr] = [ast.Name(name, ast.Load()) for name in given]
            made = ast.copy_location(ast.Call(called, args, []), function)
            try:
                return self.reader.expression(ast.fix_missing_locations(made))
            finally:
                frame.names = before

        return call

    def _mapped(self, call: ast.Call) -> tuple[Struct, ...]:
        """Reads `map(f, xs)` as a call of f for each part."""
        parts = [self.of(arg, "`map` over this") for arg in call.args[1:]]
        read = self.caller(call.args[0])
        with self.draft.turns(min(map(len, parts), default=0)):
            return tuple(read(*each) for each in zip(*parts, strict=False))

    def _filtered(self, call: ast.Call) -> tuple[Struct, ...]:
        """Reads `filter(f, xs)` by what f gives now."""
        parts, function = self.of(call.args[1], "`filter` of this"), call.args[0]
        itself = ast.parse("lambda part: part", mode="eval").body
        plain = isinstance(function, ast.Constant)  # `filter(None, xs)`
        function = ast.copy_location(itself, function) if plain else function
        keys = self._known_of(ast.fix_missing_locations(function), parts, "`filter` by")
        return tuple(itertools.compress(parts, keys))

    def _known_of(self, function: ast.expr, parts: tuple[Struct, ...], what: str) -> list[Any]:
        """Returns what a function gives for each part, which must be known now."""
        found = tuple(map(self.caller(function), parts))
        if not all(isinstance(one, Static) or constant(one) is not None for one in found):
            self.draft.fail(function, f"{what} what is known only at run time", KNOWN)
        return list(map(constant, found))

    def _keys(self, call: ast.Call, parts: tuple[Struct, ...], name: str) -> list[Any]:
        """Returns what `sorted`, `max` and `min` compare: by `key`, or the parts themselves."""
        key = next((item.value for item in call.keywords if item.arg == "key"), None)
        if key is not None and not isinstance(key, ast.Constant):
            return self._known_of(key, parts, f"`{name}` by")
        firsts = [part[0] if _is_pair(part) else part for part in parts]  # of `d.items()`
        found = [one.value for one in firsts if isinstance(one, Static)]
        if len(found) < len(parts) or (firsts != list(parts) and len({*found}) < len(parts)):
            self.draft.fail(call, f"`{name}` of what is known only at run time", KNOWN)
        return found

    def _sorted(self, call: ast.Call) -> tuple[Struct, ...]:
        """Reads `sorted(xs, key=f)`, whose order is known now."""
        parts = self.of(call.args[0], "`sorted` of this")
        keys = self._keys(call, parts, "sorted")
        turned = (self.draft.frame.known(k.value) for k in call.keywords if k.arg == "reverse")
        order = sorted(range(len(parts)), key=keys.__getitem__, reverse=next(turned, False))
        return tuple(parts[place] for place in order)

    def chosen(self, call: ast.Call) -> Struct | None:
        """Reads `reduce(f, xs)`, and `max` and `min` by a key; returns None for any other call."""
        kind = self.draft.frame.static(call.func)[1]
        if kind is functools.reduce and not call.keywords:
            return self._reduced(call)
        if kind not in (max, min) or not any(item.arg == "key" for item in call.keywords):
            return None
        parts = self.of(call.args[0], f"`{kind.__name__}` of this")
        keys = self._keys(call, parts, kind.__name__)
        return parts[kind(range(len(parts)), key=keys.__getitem__)]

    def _reduced(self, call: ast.Call) -> Struct:
        """Reads `reduce(f, xs, first)`: as calls of f, but over what a function returns."""
        function, over, *first = call.args
        made = isinstance(over, (ast.ListComp, ast.GeneratorExp))
        whole = self.unread(over) if made else None  # type: ignore[arg-type]
        if whole is not None:
            (text,), reads = self.reader.texts([(whole, *map(self.reader.expression, first))], call)
            called = ast.unparse(self.reader.substituted(function, reads))
            folded = self.draft.imported("mindspore_rl.rl.operators", "folded")
            return self.draft.result("glue", f"{folded}({called}, *{text})", reads)
        if (parts := self.starred(over)) is None:
            parts = self.of(over, "`reduce` of this")
        found = [*map(self.reader.expression, first), *parts]
        if not found:
            self.draft.fail(call, "`reduce` of no parts, without a first value,", KNOWN)
        read = self.caller(function)
        with self.draft.turns(len(found)):
            return functools.reduce(read, found)

    def _zipped(self, call: ast.Call, strict: bool) -> list[tuple[Struct, ...]]:
        """Reads the arguments of `zip`.

        A loss's results, and an array with an unknown number of rows, are as long as the others.
        """
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            given = tuple(self.reader.elements(call.args))
            self.draft.temporary -= {var.name for var in variables(given)}
            return [self._parts_of(part, call, "`zip` of this") for part in given]
        frame, uncounted = self.draft.frame, dict[ast.expr, tuple[Var, bool]]()
        for arg in call.args:
            inner = arg
            if isinstance(arg, ast.Call) and len(arg.args) == 1:
                inner = arg.args[0] if frame.static(arg.func)[1] is reversed else arg
            value, turned = frame.part(inner), inner is not arg
            if isinstance(value, Var) and self._is_uncounted(value, turned, strict):
                uncounted[arg] = value, turned
        found = {arg: self.of(arg, "`zip` of this") for arg in call.args if arg not in uncounted}
        if not found:
            return [self.of(arg, "`zip` of this") for arg in call.args]
        least = min(map(len, found.values()))
        for arg, (value, turned) in uncounted.items():
            self.draft.temporary.discard(value.name)  # it is read several times
            places = (-1 - k if turned else k for k in range(least))
            each = (self.draft.result("glue", f"{value.name}[{k}]", (value.name,)) for k in places)
            found[arg] = self.draft.unpack(value, least) if strict else tuple(each)
        return [found[arg] for arg in call.args]

    def _is_uncounted(self, value: Var, turned: bool, strict: bool) -> bool:
        """Returns whether nothing tells now how many parts a result or an array has."""
        if value.name in self.draft.tuples:
            return not turned
        return not strict and not self.draft.sizes_of(value.name)

    def _of_dictionary(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `d.items()`, `d.keys()` and `d.values()`; returns None for any other call."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("items", "keys", "values"):
            return None
        given = self.draft.frame.part(func.value)
        made = isinstance(func.value, (ast.Dict, ast.DictComp))
        if isinstance(func.value, ast.Call):
            made = self.reader.is_read(func.value) or self.reader.is_dictionary(func.value)
        if given is None and (made or self.draft.frame.static(func.value)[0]):
            given = self.reader.expression(func.value)
        if isinstance(given, Static) and isinstance(given.value, dict):
            given = {key: Static(value) for key, value in given.value.items()}
        if not isinstance(given, dict):
            return None
        if not self.passes:
            self.draft.frame.check_given(given, func.value)
        pairs = tuple((Static(key), part) for key, part in given.items())
        return pairs if func.attr == "items" else tuple(p[func.attr == "values"] for p in pairs)

    def unread(self, made: ast.ListComp | ast.GeneratorExp) -> Var | None:
        """Reads a comprehension over tuples that functions return, which stays one.

        None if it goes over anything else.
        """
        loop, frame = made.generators[0], self.draft.frame
        zipped = isinstance(loop.iter, ast.Call) and frame.static(loop.iter.func)[1] is zip
        over = loop.iter.args if zipped else [loop.iter]  # type: ignore[attr-defined]
        values = [frame.part(node) for node in over]
        if len(made.generators) > 1 or loop.ifs or not over:
            return None
        tuples, arrays = self.draft.tuples, self.draft.arrays
        if not all(isinstance(v, Var) and v.name not in arrays - tuples for v in values):
            return None
        if any(self.draft.sizes_of(value.name) for value in values):  # an array, see `_rows`
            return None
        before, items, reads = dict(frame.names), len(self.draft.scope.items), list[str]()
        gone_over = self.reader.substituted(loop.iter, reads)
        names = [node.id for node in nodes_of(loop.target) if isinstance(node, ast.Name)]
        targets = {name: self.draft.fresh(name) for name in names}
        frame.names |= {name: Var(own) for name, own in targets.items()}
        elements = self.reader.substituted(made.elt, reads)
        frame.names = before
        added = self.draft.scope.items[items:]
        if any({*targets.values()} & {*getattr(item, "reads", ())} for item in added):
            self.draft.fail(loop.iter, "a comprehension over this", KNOWN)
        target = copy.deepcopy(loop.target)
        for part in nodes_of(target):
            if isinstance(part, ast.Name):
                part.id = targets[part.id]
        whole = ast.ListComp(elements, [ast.comprehension(target, gone_over, [], 0)])
        function = ast.Name("tuple", ast.Load())
        found = [name for name in reads if name not in targets.values()]
        return self.draft.result("glue", ast.Call(function, [whole], []), found)

    def comprehended(
        self, made: ast.ListComp | ast.GeneratorExp | ast.DictComp
    ) -> tuple[Struct, ...]:
        """Unrolls a comprehension. Returns: its elements; of a dictionary, keys and values."""
        before, bound = dict(self.draft.frame.names), self.bound
        targets = [node for loop in made.generators for node in nodes_of(loop.target)]
        self.bound = bound | {node.id for node in targets if isinstance(node, ast.Name)}
        try:
            return tuple(self._elements(made, made.generators))
        finally:
            self.draft.frame.names, self.bound = before, bound

    def _elements(self, made: Any, loops: list[ast.comprehension]) -> Iterator[Struct]:
        if not loops:
            if isinstance(made, ast.DictComp):
                yield self.draft.frame.known(made.key), self.reader.expression(made.value)
            else:
                yield self.reader.expression(made.elt)
            return
        loop = loops[0]
        names = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
        given = isinstance(made, ast.DictComp) and len(names) == 2 and len(made.generators) == 1
        self.passes = given and ast.unparse(made.value) == ast.unparse(names[1])
        parts = self.of(loop.iter, "a comprehension over this")
        self.passes = False
        with self.draft.turns(len(parts)):
            for part in parts:
                for name, value in self.reader.assignments.bindings(loop.target, part):
                    self.draft.frame.names[name] = value
                holds = [self.draft.frame.holds(condition) for condition in loop.ifs]
                if None in holds and False not in holds:
                    self.draft.fail(
                        made,
                        "a comprehension with a condition that is known only at run time",
                        "its length must be known now: choose values with ops.where",
                    )
                if all(holds):
                    yield from self._elements(made, loops[1:])


def _is_pair(struct: Struct) -> bool:
    """Returns whether a value is a known key with any other value, as in `d.items()`."""
    pair = isinstance(struct, tuple) and len(struct) == 2
    return pair and isinstance(struct[0], Static)


def is_cells(struct: Struct) -> bool:
    """Returns whether a structure is a known `nn.CellList` or another cell that has a length."""
    value = struct.value if isinstance(struct, Static) else None
    return is_cell(value) and hasattr(value, "__len__")


def is_unrolled(loop: ast.For) -> bool:
    """Returns whether a loop goes over a sequence, so that it may have no turns."""
    first = together(loop.iter)[0]
    func = first.func if isinstance(first, ast.Call) else None
    if isinstance(func, ast.Name):
        return func.id != "range" or hasattr(loop, "by_index")
    return not isinstance(func, ast.Attribute) or func.attr not in LOOPS


def together(over: ast.expr) -> list[ast.expr]:
    """Returns the loops over minibatches that `zip(msrl.minibatches(...), ...)` goes over at once.

    Anything else is one loop.
    """
    match over:
        case ast.Call(ast.Name("zip"), args, []) if args:
            calls = [arg.func for arg in args if isinstance(arg, ast.Call)]
            if [getattr(func, "attr", "") for func in calls] == ["minibatches"] * len(args):
                return args
    return [over]


def unroll_ranges(function: ast.FunctionDef, frame: Frame) -> None:
    """Notes, as `by_index`, the loops over `range` that need their index while reading.

    They pick networks or other objects by it (`self.critics[i]`), write it into a text, change a
    list or dictionary in place, or go backwards and decide by it: what `if t < T - 1:` leaves out,
    `x[t + 1]`, cannot be tried at the first turn. Or their first turn makes a variable what it is:
    a sum of rows, `x[t]`, that starts at a number, or a name that `if t == 0:` sets.
    """
    statements = list(_statements(function))
    for loop, _ in statements:
        if isinstance(loop, ast.For):
            _turn_round(loop, frame)
        if isinstance(loop, ast.For) and not is_unrolled(loop) and is_range(loop):
            given = list(_assigned_before(loop, statements))
            made = {name for name, value in given if _is_display(value)}
            changed = {name for name, value in given if _is_container(value)}
            nodes = [node for statement in loop.body for node in nodes_of(statement)]
            if any(isinstance(node, ast.For) and not is_range(node) for node in nodes if node):
                inner = [n for n in nodes if isinstance(n, ast.For)]
                if not all(is_unrolled(n) or is_range(n) for n in inner):
                    continue
            index = loop.target.id if isinstance(loop.target, ast.Name) else ""
            changes = {getattr(node, "in_place", ("", ""))[1] for node in nodes} & changed
            every = (*nodes, *_in_called(nodes, function))
            calls = [node for node in every if isinstance(node, ast.Call)]
            in_place = bool(
                (changes or (_goes_back(loop) and any(_decides(node, index) for node in nodes)))
                and not _grows_until(nodes, changes, frame)
                and not any(_draws(frame.msrl_call(call)) for call in calls)
                and not any(_draws_inside(call, frame) for call in calls if frame.gets_msrl(call))
                and not any(_keeps_marks(inner, made, frame) for inner in nodes)
            )
            if not any(isinstance(node, ast.Name) and frame.is_msrl(node) for node in nodes):
                known = _set_before(loop, statements) | {*frame.names}
                in_place |= _sums_rows(nodes, index, given)
                in_place |= _first_set(nodes, index, known, function)
            if in_place or any(_needs(node, index, made, frame) for node in nodes):
                loop.by_index = True  # type: ignore[attr-defined]


def _in_called(nodes: list[ast.AST], function: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of the functions inside a function that some of its nodes name."""
    named = _names(nodes, ast.Load)
    for node in nodes_of(function):
        if isinstance(node, ast.FunctionDef) and node.name in named:
            yield from nodes_of(node)


def _grows_until(nodes: list[ast.AST], changes: set[str], frame: Frame) -> bool:
    """Returns whether a loop with marks, which `break` may end, only appends to these lists."""
    if not any(isinstance(node, ast.Break) for node in nodes):
        return False
    made = [getattr(node, "in_place", ("", "")) for node in nodes]
    calls = {frame.msrl_call(node) for node in nodes if isinstance(node, ast.Call)}
    grows = all(kind in GROWS for kind, name in made if name in changes)
    return grows and not calls.isdisjoint(UNROLLED)


def _goes_back(loop: Any) -> bool:
    """Returns whether a loop over `range` has a negative step."""
    return isinstance(loop.iter.args[-1], ast.UnaryOp) and len(loop.iter.args) == 3


def _decides(node: ast.AST, index: str) -> bool:
    return isinstance(node, (ast.If, ast.IfExp)) and index in loaded_names(node.test)


def _sums_rows(nodes: list[ast.AST], index: str, given: list[tuple[str, ast.expr]]) -> bool:
    """Returns whether a loop adds rows of an array, `x[t]`, to what was a number before it."""
    numbers = {n for n, v in given if isinstance(v, ast.Constant) and type(v.value) in (int, float)}
    rows = any(isinstance(n, ast.Subscript) and index in loaded_names(n.slice) for n in nodes)
    sums = {
        target.id
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
        and (isinstance(node, ast.AugAssign) or target.id in loaded_names(node.value))
    }
    return rows and not numbers.isdisjoint(sums)


def _first_set(nodes: list[ast.AST], index: str, known: set[str], function: ast.AST) -> bool:
    """Returns whether a condition on a loop's index sets a name first that others read.

    Args:
        nodes: the nodes of the loop's body.
        index: the loop's index.
        known: the names that are set before the loop.
        function: the function around it.
    """
    for node in nodes:
        if not isinstance(node, ast.If) or not _decides(node, index):
            continue
        for half, other in ((node.body, node.orelse), (node.orelse, node.body)):
            here = {part for statement in half for part in nodes_of(statement)}
            others = {part for statement in other for part in nodes_of(statement)}
            elsewhere = _names(set(nodes_of(function)) - here, ast.Load)
            both = _names(others, ast.Store) - _names(others, ast.Load)
            if (_names(here, ast.Store) - known - both) & elsewhere:
                return True
    return False


def _set_before(loop: ast.For, statements: list[tuple[ast.stmt, "Block"]]) -> set[str]:
    """Returns the names that statements before a loop set, also those around it."""
    before = itertools.takewhile(lambda pair: pair[0] is not loop, statements)
    simple = (getattr(s, "target", ast.Pass()) if hasattr(s, "body") else s for s, _ in before)
    return _names((part for one in simple for part in nodes_of(one)), ast.Store)


def _names(nodes: Iterable[ast.AST], kind: type) -> set[str]:
    """Returns the names that nodes load or store."""
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def _keeps_marks(node: ast.AST, made: set[str], frame: Frame) -> bool:
    """Returns whether a node is a loop with marks, and so with none around it that is unrolled."""
    if not isinstance(node, ast.For) or is_unrolled(node):
        return False
    index = node.target.id if isinstance(node.target, ast.Name) else ""
    nodes = [part for statement in node.body for part in nodes_of(statement)]
    calls = {frame.msrl_call(part) for part in nodes if isinstance(part, ast.Call)}
    marked = not calls.isdisjoint(UNROLLED)
    return marked and not any(_needs(part, index, made, frame) for part in nodes)


def _draws(name: str | None) -> bool:
    """Returns whether a call of `msrl` draws random numbers or has a mark, for unrolled loops."""
    if name not in OPERATIONS:
        return name == "minibatches"
    row = OPERATIONS[name]
    return row.draws or (name not in UNROLLED and bool(row.takes or row.gives))


def _draws_inside(call: ast.Call, frame: Frame) -> bool:
    """Returns whether a function of the program that gets msrl draws so."""
    function = getattr(frame.static(call.func)[1], "__func__", frame.static(call.func)[1])
    try:
        tree = statement_in(source_lines(function)[0])
    except (OSError, TypeError, SyntaxError):
        return False
    names = {part.arg for part in nodes_of(tree) if isinstance(part, ast.arg)}
    return any(
        part.value.id in names and _draws(part.attr)
        for part in nodes_of(tree)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
    )


Block = tuple[tuple[ast.AST, str], ...]
"""The statements around a statement, each with the name of its part: `body`, `orelse`."""


def _statements(around: ast.AST, block: Block = ()) -> Iterator[tuple[ast.stmt, Block]]:
    """Yields all statements in a statement, in order, each with its block."""
    for part in ("body", "orelse"):
        here = (*block, (around, part))
        for statement in getattr(around, part, ()):
            yield statement, here
            yield from _statements(statement, here)


def _assigned_before(
    loop: ast.For, statements: list[tuple[ast.stmt, Block]]
) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names, and what was assigned to them, that a loop and its body may see.

    An assignment on the way to the loop hides those before it.
    """
    found: dict[str, list[ast.expr]] = {}
    hiding: dict[str, set[ast.AST]] = {}  # the statements around the last one on the way
    place = next(block for statement, block in statements if statement is loop)
    around = {part for part, _ in place[1:]}
    before = True
    for statement, block in statements:
        parts = {part for part, _ in block}
        before = before and statement is not loop
        if not isinstance(statement, ast.Assign):
            continue
        for name, value in _names_and_values(statement):
            if before and block == place[: len(block)]:
                found[name], hiding[name] = [], parts
            if not before and loop not in parts and not around & parts - hiding.get(name, set()):
                continue  # no turn of a loop around both leads from here to the loop
            found.setdefault(name, []).append(value)
    return ((name, value) for name, values in found.items() for value in values)


def _names_and_values(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names that an assignment sets, each with its value; also of `a, xs = 0.0, []`."""
    for target in statement.targets:
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, statement.value)]
        parts = [getattr(side, "elts", ()) for side in pairs[0]]
        if len(parts[0]) == len(parts[1]) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(*parts, strict=True))
        yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def _turn_round(loop: ast.For, frame: Frame) -> None:
    """Makes `range(n - 1, -1, -1)` of `reversed(range(n))` where a loop cannot be unrolled."""
    over: Any = loop.iter
    if not _calls(over, "reversed") or len(over.args) != 1 or not _calls(over.args[0], "range"):
        return
    calls = (node for node in nodes_of(loop) if isinstance(node, ast.Call))
    if not any(_draws(frame.msrl_call(call)) for call in calls):
        return
    inner = over.args[0]
    ends = [ast.unparse(end) for end in inner.args]
    start, stop, step = ("0", *ends, "1") if len(ends) == 1 else (*ends, "1")[:3]
    turns = f"(({stop}) - ({start}) - (1 if ({step}) > 0 else -1)) // ({step})"
    last = f"({start}) + {turns} * ({step})"
    text = f"range({last}, ({start}) - ({step}), -({step}))"
    made = ast.parse(text, mode="eval").body
    for part in nodes_of(made):
        ast.copy_location(part, over)
    loop.iter = made


def is_range(loop: ast.For) -> bool:
    """Returns whether a loop goes over `range`."""
    return _calls(loop.iter, "range")


def _calls(node: ast.expr, name: str) -> bool:
    """Returns whether an expression calls a function by its name."""
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Name) and func.id == name


def _is_display(value: ast.expr) -> bool:
    """Returns whether a value is a list, tuple or dictionary of more than constants."""
    if isinstance(value, ast.Dict):
        return True
    if isinstance(value, (ast.List, ast.Tuple)):
        return not all(isinstance(part, ast.Constant) for part in value.elts)
    return isinstance(value, (ast.ListComp, ast.DictComp))


def _is_container(value: ast.expr) -> bool:
    """Returns whether a value is a new list or dictionary."""
    if isinstance(value, ast.BinOp):
        return _is_container(value.left) or _is_container(value.right)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("list", "dict", "defaultdict")
    return isinstance(value, (ast.List, ast.Dict, ast.ListComp, ast.DictComp))


def _needs(node: ast.AST, index: str, made: set[str], frame: Frame) -> bool:
    """Returns whether a node of a loop's body needs the loop's index as a number."""
    uses = any(isinstance(part, ast.Name) and part.id == index for part in nodes_of(node))
    if not uses or index in ("", "_"):
        return False
    if isinstance(node, ast.JoinedStr):
        return True
    if not isinstance(node, ast.Subscript):
        return False
    if not any(isinstance(part, ast.Name) and part.id == index for part in nodes_of(node.slice)):
        return False
    base = node.value
    if isinstance(base, ast.Name) and base.id in made:
        return True
    if not isinstance(base, (ast.Name, ast.Attribute)) or index in loaded_names(base):
        return False
    root: ast.expr = base
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or root.id not in frame.names:
        return False
    if isinstance(parts := frame.part(base), tuple):
        return not all(isinstance(part, Static) for part in parts)
    known, value = frame.static(base)
    if not known or is_array(value):
        return False
    parts = list(value.values()) if isinstance(value, dict) else value
    return hasattr(value, "__len__") and not all(type(p) in (bool, int, float) for p in parts)


def loaded_names(node: ast.expr) -> set[str]:
    """Returns all names in an expression."""
    return {part.id for part in nodes_of(node) if isinstance(part, ast.Name)}
