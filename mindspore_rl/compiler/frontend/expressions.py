"""Reads expressions: calls of msrl become operations, everything else becomes glue."""

import ast
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from mindspore_rl.compiler.frontend.assignment import Assignments
from mindspore_rl.compiler.frontend.builder import Draft
from mindspore_rl.compiler.frontend.functions import Functions, Inner, Partial, tree_of
from mindspore_rl.compiler.frontend.grown import Grown, GrownLists
from mindspore_rl.compiler.frontend.paths import Paths, holds_parameters
from mindspore_rl.compiler.frontend.perhaps import Choices
from mindspore_rl.compiler.frontend.records import (
    Entries,
    Listed,
    Record,
    flattened,
    is_record,
    is_sequence,
    own_behaviour,
    rebuilt,
    wrong_field,
)
from mindspore_rl.compiler.frontend.rewrite import Rewriter
from mindspore_rl.compiler.frontend.scope import (
    REFUSED,
    Broken,
    Follows,
    Frame,
    Gone,
    Static,
    Struct,
    Var,
    constant,
    is_array,
    is_literal,
    is_parameter,
    literal,
    member_of,
)
from mindspore_rl.compiler.frontend.sequences import Sequences
from mindspore_rl.compiler.ir.ir import Expr
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.errors import ProgramError
from mindspore_rl.platform.syntax import nodes_of, own_nodes
from mindspore_rl.platform.user_modules import is_users
from mindspore_rl.rl.by_place import named_result
from mindspore_rl.rl.records import defaults_of, fields_of, in_order, is_record_class


class ExpressionReader:
    """Reads expressions into a draft; `frontend.build` adds the statements.

    Attributes:
        paths: the names of the trainer's objects.
        choices: how many conditionally evaluated sides of `x if c else y`, `and` and `or` enclose
            the expression being read.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.paths = Paths(trainer)
        config = trainer.config
        self.draft = Draft(num_steps=int(config.num_steps), num_envs=int(config.num_envs))
        self.draft.known_result = self.known_result
        self.assignments = Assignments(self.draft)
        self.sequences = Sequences(self)
        self.functions = Functions(self, self.paths)
        self.grown = GrownLists(self)
        self.perhaps = Choices(self)
        self.choices = 0

    @property
    def frame(self) -> Frame:
        """The function being read."""
        return self.draft.frame

    def inline(
        self, method: Any, args: tuple[Struct, ...], keywords: dict[str, Struct], top: bool = False
    ) -> Struct:
        """Reads a function in place of its call."""
        raise NotImplementedError

    def inline_inner(
        self, inner: Inner, args: tuple[Struct, ...], keywords: dict[str, Struct], node: ast.Call
    ) -> Struct:
        """Reads a function inside the one being read in place of its call."""
        raise NotImplementedError

    def known_result(self, node: ast.Call) -> Struct | None:
        """Reads a function of known numbers whose result is known; else returns None."""
        raise NotImplementedError

    def opened(self, node: ast.expr) -> Struct | None:
        """Reads a function of the program that gives as many parts as are known; else None."""
        raise NotImplementedError

    def call(self, name: str, node: ast.Call) -> Struct:
        """Reads a call of `msrl.name`."""
        raise NotImplementedError

    # ---- expressions -----------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Struct:
        """Reads an expression: emits the operations that compute it and returns its value."""
        with self.owner_read(node) as named:
            return self._expression(named)

    def _expression(self, node: ast.expr) -> Struct:
        struct = self._structure(node)
        if isinstance(struct, Broken):  # the result of a function
            raise Follows(ast.unparse(node))
        if struct is not None:
            return struct
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.List):
            node = self.frame.with_sizes(node)  # `[None] * len(batch.reward)`
        known, value = self.frame.static(node)
        if known and isinstance(node, (ast.BinOp, ast.Call)) and isinstance(value, list):
            return Listed.of(map(Static, value))  # `[0.0] * 3`, `sorted(names)`
        if known and isinstance(node, ast.Call) and isinstance(value, dict):
            return Entries.of({key: Static(part) for key, part in value.items()})
        if known and (not is_array(value) or self._is_parameter(value)):
            return Static(value)  # a Parameter is an object: a name of it sees its updates
        return self._glue(node)

    @contextlib.contextmanager
    def owner_read(self, node: ast.expr) -> Iterator[ast.expr]:
        """Context: the call in `call(...).field` or `call(...).method(...)` is read, and named.

        Yields: the expression, with a name in place of a call that may give a record: its text.
        """
        names, before = self.frame.names, dict[str, Struct | None]()
        try:
            yield self._with_owner(node, before)
        finally:
            for name, struct in before.items():
                names.pop(name)
                if struct is not None:
                    names[name] = struct

    def _with_owner(self, node: ast.expr, before: dict[str, Struct | None]) -> ast.expr:
        func = node.func if isinstance(node, ast.Call) else node
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Call):
            return node
        call = self._with_owner(func.value, before)
        assert isinstance(call, ast.Call)
        owner: ast.expr = call
        called = self.frame.msrl_call(call) is not None or self.is_read(call)
        if called or self._is_record(call):
            name, struct = ast.unparse(func.value), self.expression(call)
            before.setdefault(name, self.frame.names.get(name))
            self.frame.names[name] = struct
            owner = ast.copy_location(ast.Name(name), call)
        func = ast.copy_location(ast.Attribute(owner, func.attr), func)
        if not isinstance(node, ast.Call):
            return func
        return ast.copy_location(ast.Call(func, node.args, node.keywords), node)

    def _is_parameter(self, value: Any) -> bool:
        """Returns whether a value is a Parameter of the trainer."""
        return is_parameter(value) and self.paths.of(value) is not None

    def _structure(self, node: ast.expr) -> Struct | None:
        """Reads names, tuples, dictionaries, their parts and calls of msrl; else returns None."""
        if isinstance(node, ast.Name) and node.id in self.frame.names:
            struct = self.frame.names[node.id]
            if isinstance(struct, Gone):
                self.frame.fail(node, f"{struct.why} (`{node.id}`)", struct.way)
            constant_array = isinstance(struct, Static) and is_array(struct.value)
            return None if constant_array and not is_parameter(struct.value) else struct
        if isinstance(node, ast.Tuple) and (joined := self._joined(node)) is not None:
            return joined
        if isinstance(node, (ast.Tuple, ast.List)):
            elements = tuple(self.elements(node.elts))
            return elements if isinstance(node, ast.Tuple) else Listed.of(elements)
        if isinstance(node, ast.Subscript):
            return self.part_of(node)
        if isinstance(node, ast.Attribute):
            made = self.property_of(node)
            return self.frame.part(node) if made is None else made
        if isinstance(node, ast.BinOp) and self.is_tuple(node):
            left, right = self.expression(node.left), self.expression(node.right)
            both = isinstance(left, Listed) and isinstance(right, Listed)
            return Listed.of(left + right) if both else left + right
        if (each := self.each(node)) is not None:
            return each
        if isinstance(node, ast.IfExp):
            holds = self.frame.holds(node.test)
            return None if holds is None else self.expression(node.body if holds else node.orelse)
        if isinstance(node, ast.BoolOp):
            parts = self.operands(node)
            return self.expression(parts[0]) if len(parts) == 1 else None
        if isinstance(node, ast.Lambda):
            return self.functions.defined(node)
        if isinstance(node, ast.Call):
            made = (
                self.grown.called(node),
                self.record(node),
                self.field_by_name(node),
                self.sequences.made(node),
                self.sequences.chosen(node),
                self._from_keys(node),
                self._with_defaults(node),
                self.perhaps.got(node),
                self.functions.partial(node),
            )
            if (struct := next((one for one in made if one is not None), None)) is not None:
                return struct
            name, inner = self.frame.msrl_call(node), self.functions.inner(node.func)
            read = self.is_read(node)
            if self.choices and (name is not None or read):
                self.frame.fail(
                    node,
                    f"`{ast.unparse(node.func)}` in one side of `x if c else y`, `and` or `or`, "
                    "with a condition that is known only at run time,",
                    "it would be computed whatever the condition says: call it before, or use an "
                    "`if` statement",
                )
            if name is not None:
                return self.call(name, node)
            if read:
                return self._inlined(node, inner)
            if (result := self.known_result(node)) is not None:
                return result
        if isinstance(node, ast.DictComp):
            return Entries.of(self.sequences.comprehended(node))
        entries = self._entries(node)
        return None if entries is None else Entries.of(self.dictionary(entries))

    def property_of(self, node: ast.Attribute) -> Struct | None:
        """Reads a property that a record's class has; returns None for anything else."""
        record = self.frame.part(node.value)
        found = member_of(record, node.attr)
        return self.inline(found.fget, (record,), {}) if isinstance(found, property) else None

    def _joined(self, node: ast.Tuple) -> Var | None:
        """Reads `(loss, *others)` of what a loss returns; returns None for any other tuple."""
        last = node.elts[-1] if node.elts else None
        others = self.frame.part(last.value) if isinstance(last, ast.Starred) else None
        if not isinstance(others, Var) or others.name not in self.draft.tuples:
            return None
        (first,), reads = self.texts([tuple(self.elements(node.elts[:-1]))], node)
        joined = self.draft.result("glue", f"{first} + {others.name}", (*reads, others.name))
        self.draft.tuples.add(joined.name)
        return joined

    def is_tuple(self, node: ast.expr) -> bool:
        """Returns whether an expression is a tuple whose parts are known one by one."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice) and self.is_tuple(node.value)
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Add) and all(map(self.is_tuple, (node.left, node.right)))
        return isinstance(node, (ast.Tuple, ast.List)) or isinstance(self.frame.part(node), tuple)

    def _entries(self, node: ast.expr) -> list[tuple[Any, ast.expr]] | None:
        """Lists the entries of `{"a": x}`, `dict(a=x)` or `first | second`; else returns None.

        An entry is a key and an expression. With the key None the expression is a dictionary whose
        entries are all included.
        """
        if isinstance(node, ast.Dict):
            known = self.frame.known
            keys = (None if key is None else known(key) for key in node.keys)
            return list(zip(keys, node.values, strict=True))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            return [(None, side) for side in sides] if any(map(self.is_dictionary, sides)) else None
        if isinstance(node, ast.Call) and self.frame.static(node.func)[1] is dict:
            given = [(None, arg) for arg in node.args]
            return given + [(item.arg, item.value) for item in node.keywords]
        match node:
            case ast.Call(ast.Attribute(owner, "copy"), [], []):
                return [(None, owner)] if isinstance(self.frame.part(owner), dict) else None
        return None

    def _from_keys(self, node: ast.Call) -> Entries | None:
        """Reads `dict.fromkeys(names, 0.0)`; returns None for any other call."""
        match node:
            case ast.Call(ast.Attribute(ast.Name("dict"), "fromkeys"), [keys, *values], []):
                value = self.expression(values[0]) if values else Static(None)
                found = self.sequences.of(keys, "`dict.fromkeys` of this")
                if all(isinstance(key, Static) for key in found):
                    return Entries.of((key.value, value) for key in found)
        return None

    def _with_defaults(self, node: ast.Call) -> Entries | None:
        """Reads `defaultdict(list)`; returns None for any other call."""
        if self.frame.static(node.func)[1] is not collections.defaultdict or not node.args:
            return None
        given = [(None, arg) for arg in node.args[1:]]
        made = Entries.of(self.dictionary(given + [(k.arg, k.value) for k in node.keywords]))
        made.default = node.args[0]
        return made

    def default(self, entries: Entries) -> Struct:
        """Reads the value of an entry that a `defaultdict` makes."""
        call = ast.copy_location(ast.Call(entries.default, [], []), entries.default)
        return self.expression(ast.fix_missing_locations(call))

    def is_dictionary(self, node: ast.expr) -> bool:
        """Returns whether an expression is a dictionary whose keys are known now."""
        of_name = isinstance(node, ast.Name) and isinstance(self.frame.names.get(node.id), dict)
        called = self.users_function(node) if isinstance(node, ast.Call) else None
        made = called is not None and makes_dict(called)
        return of_name or made or self._entries(node) is not None

    def each(self, node: ast.expr) -> Struct | None:
        """Unrolls `tuple(f(x) for x in xs)` or `[f(x) for x in xs]`; else returns None.

        Over the result of a function, whose length is not known, it stays a comprehension.
        """
        made = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
            made = node.args[0] if node.func.id in ("tuple", "list") else node
        if not isinstance(made, ast.ListComp) and (
            not isinstance(made, ast.GeneratorExp) or made is node
        ):
            return None
        if (whole := self.sequences.unread(made)) is not None:
            return whole
        grown = self.grown.of(made)
        if grown is not None and self.grown.length(grown) is None:
            return self.grown.copied(grown)
        found = self.sequences.comprehended(made)
        as_list = isinstance(made, ast.ListComp) and made is node
        as_list = as_list or (isinstance(node, ast.Call) and ast.unparse(node.func) == "list")
        return Listed.of(found) if as_list else found

    def record(self, node: ast.Call) -> Record | None:
        """Reads `Step(obs=obs)`, `step._replace(obs=obs)` and `dataclasses.replace(step, obs=obs)`.

        Returns: None for anything else.
        """
        func, given = node.func, dict[str, Struct]()
        base = self.frame.part(func.value) if isinstance(func, ast.Attribute) else None
        args = node.args
        if isinstance(base, Record):
            if ast.unparse(func).rpartition(".")[2] != "_replace" or not is_sequence(base):
                return None
        else:
            kind = self.frame.static(func)[1]
            if kind is dataclasses.replace and args:
                base, args = self.frame.part(args[0]), args[1:]
                if not isinstance(base, Record) or is_sequence(base):
                    return None
            elif not is_record_class(kind):
                return None
        if isinstance(base, Record):
            kind, given = base.kind, dict(zip(base.fields, base, strict=True))
        else:
            if own := own_behaviour(kind):
                hint = "use a NamedTuple or a frozen dataclass of fields alone"
                self.frame.fail(node, f"a {kind.__name__} with {own}", hint)
            given = {name: Static(value) for name, value in defaults_of(kind).items()}
        fields = fields_of(kind)
        parts, places = dict(enumerate(self.elements(args))), in_order(kind)
        if len(parts) > len(places) or (parts and isinstance(base, Record)):
            self.frame.fail(node, f"a {kind.__name__} with {len(parts)} values in order")
        named = [(places[place], part) for place, part in parts.items()]
        for item in node.keywords:
            value = self.expression(item.value)
            entries = value if item.arg is None and isinstance(value, dict) else {item.arg: value}
            named += [(name or "**", part) for name, part in entries.items()]
        if wrong := wrong_field(fields, [name for name, _ in named], given):
            has = f"its fields are {', '.join(fields)}"
            self.frame.fail(node, f"a {kind.__name__} {wrong}", has)
        given |= dict(named)
        return Record.of(kind, [given[name] for name in fields])

    def field_by_name(self, node: ast.Call) -> Struct | None:
        """Reads `getattr(batch, "obs")` and `batch._asdict()`; None for anything else."""
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "_asdict" and not node.args:
            base = self.frame.part(func.value)
            if isinstance(base, Record) and is_sequence(base):
                return Entries.of(zip(base.fields, base, strict=True))
        if self.frame.static(func)[1] is not getattr or len(node.args) != 2:
            return None
        base, (known, name) = self.frame.part(node.args[0]), self.frame.static(node.args[1])
        if not isinstance(base, Record) or not known:
            return None
        return self.frame.part(ast.copy_location(ast.Attribute(node.args[0], name), node))

    def part_of(self, node: ast.Subscript) -> Struct | None:
        """Reads a part of a tuple, a dictionary or a result just computed; else returns None."""
        base = None
        if isinstance(node.value, (ast.Name, ast.Subscript, ast.Call, ast.Attribute)):
            base = self._structure(node.value)
        if isinstance(base, Grown):
            return self._part_of_grown(base, node)
        if (entry := self._entry(base, node)) is not None:
            return entry
        if isinstance(base, Static):
            return None
        if isinstance(node.slice, ast.Slice):
            base = self.draft.apart(base)  # `means[1:]`
        if isinstance(base, Var) and base.name in self.draft.singles and _is_first(node.slice):
            return base
        if isinstance(base, Var) and not isinstance(node.value, ast.Name):
            # Its operation was emitted just now and must not be emitted a second time.
            reads = [base.name]
            place = self.substituted(node.slice, reads)
            part = ast.Subscript(ast.Name(base.name, ast.Load()), place, ast.Load())
            return self.draft.result("glue", part, reads)
        if not isinstance(base, (tuple, dict)):
            return None
        if isinstance(base, Record) and not is_sequence(base):
            has = f"write its fields: {', '.join(base.fields)}"
            self.frame.fail(node, f"a part by its place of a {base.kind.__name__}", has)
        key = node.slice
        if isinstance(key, ast.Slice):
            ends = (key.lower, key.upper, key.step)
            bounds = [None if end is None else self.frame.known(end) for end in ends]
            index: Any = slice(*bounds)
        else:
            index = self.frame.known(key)
        try:
            if isinstance(base, dict):
                self.frame.check_given({index: base[index]}, node.value)
            return base[index]
        except (KeyError, IndexError, TypeError):
            if isinstance(base, Entries) and base.default and hasattr(node, "in_change"):
                return self.default(base)
            has = (
                f"the keys {', '.join(map(repr, base))}"
                if isinstance(base, dict)
                else (f"{len(base)} parts")
            )
            self.frame.fail(node, f"element {index!r} of what has {has}")

    def _part_of_grown(self, grown: Grown, node: ast.Subscript) -> Struct:
        key = node.slice
        if isinstance(key, ast.Slice):
            ends = (key.lower, key.upper, key.step)
            bounds = [None if end is None else self.frame.known(end) for end in ends]
            return self.grown.parts(grown, node)[slice(*bounds)]
        return self.grown.part(grown, self.frame.known(key), node)

    def _entry(self, base: Struct | None, node: ast.Subscript) -> Var | None:
        """Reads a run-time index into a tuple of known numbers; None for anything else."""
        if isinstance(node.slice, ast.Slice) or self.frame.static(node.slice)[0]:
            return None
        numbers = constant(base)
        if base is None and isinstance(node.value, (ast.Name, ast.Attribute)):
            numbers = self.frame.static(node.value)[1]
        if not isinstance(numbers, (tuple, list)) or not all(
            type(number) in (bool, int, float) for number in numbers
        ):
            return None
        reads: list[str] = []
        place = self.substituted(node.slice, reads)
        function = ast.Name(self.draft.imported("mindspore_rl.rl.operators", "entry"), ast.Load())
        part = ast.Call(function, [literal(tuple(numbers)), place], [])
        return self.draft.result("glue", part, reads)

    def _glue(self, node: ast.expr) -> Var:
        reads: list[str] = []
        return self.draft.result("glue", self.substituted(node, reads), reads)

    def condition(self, test: ast.expr) -> Static | tuple[Expr, tuple[str, ...]]:
        """Reads a condition.

        A condition on loop indices alone stays an expression. Any other is stored in a variable
        first, so that every use sees the same decision.

        Returns:
            the condition's known value, or an expression over variables and what it reads.
        """
        reads: list[str] = []
        rewritten = Rewriter(self, reads).condition(copy.deepcopy(self.frame.of_entries(test)))
        if isinstance(rewritten, ast.Constant):
            return Static(rewritten.value)
        condition = Expr(rewritten)
        indices = {loop.index for loop in self.draft.loops}
        simple = not any(isinstance(n, (ast.Call, ast.Attribute)) for n in nodes_of(rewritten))
        if not (simple and set(reads) <= indices) and condition not in reads:
            if isinstance(rewritten, ast.UnaryOp) and isinstance(rewritten.op, ast.Not):
                condition = Expr(self.opposite(rewritten.operand))  # of an array an array
            reads = [self.draft.result("glue", condition, reads).name]
            condition = Expr(reads[0])
        return condition, tuple(dict.fromkeys(reads))

    def opposite(self, operand: ast.expr) -> ast.expr:
        """Returns a call that computes `not operand`."""
        name = self.draft.imported("mindspore_rl.rl.operators", "opposite")
        return ast.Call(ast.Name(name, ast.Load()), [operand], [])

    def operands(self, node: ast.BoolOp) -> list[ast.expr]:
        """Returns the operands of `and` or `or` that may be its value, given what is known."""
        parts: list[ast.expr] = []
        for part in node.values:
            holds = self.frame.holds(part)
            if holds is isinstance(node.op, ast.Or):  # decides; later operands are not evaluated
                return [*parts, part]
            if holds is None or part is node.values[-1]:
                parts.append(part)
        return parts

    def elements(self, nodes: list[ast.expr]) -> Iterator[Struct]:
        """Reads the elements of a tuple or the arguments of a call; `*` is expanded."""
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.sequences.starred(node.value)
                construct = "`*` of something that is not a tuple of known length"
                yield from self.sequences.of(node.value, construct) if value is None else value
            else:
                yield self.expression(node)

    def named(self, given: list[ast.keyword]) -> dict[str, Struct]:
        """Reads the arguments of a call that are given by name; `**` is expanded."""
        found = self.dictionary([(item.arg, item.value) for item in given])
        for item in given:
            self.frame.check_given(found, item.value)
        return found

    def dictionary(self, entries: list[tuple[Any, ast.expr]]) -> dict[Any, Struct]:
        """Reads the entries of a dictionary, see `_entries`."""
        result: dict[Any, Struct] = {}
        for key, value in entries:
            part = self._entry_value(key, value)
            if key is None and isinstance(part, Static) and isinstance(part.value, dict):
                part = {name: Static(one) for name, one in part.value.items()}
            if key is None and isinstance(part, tuple) and all(map(_is_pair, part)):
                part = {first.value: second for first, second in part}
            if key is not None:
                result[key] = part
            elif isinstance(part, dict):
                result = self.perhaps.merged(result, part)
            else:
                self.frame.fail(value, "`**` or `|` of something that is not a dictionary")
        return result

    def _entry_value(self, key: Any, value: ast.expr) -> Struct:
        if key is None and isinstance(value, ast.Call):
            pairs = self.sequences.iterated(value)
            return self.expression(value) if pairs is None else pairs
        return self.expression(value)

    # ---- calls -----------------------------------------------------------------------------

    def is_read(self, node: ast.Call) -> bool:
        """Returns whether a call is of a function that is read in place of it.

        It is one inside this function, or gets msrl, or it is of the program and gets a record, a
        dictionary or a function inside this one, or makes a record, which MindSpore does not
        compile.
        """
        if self.frame.gets_msrl(node) or self.functions.inner(node.func) is not None:
            return True
        if self._member(node) is not None:
            return True
        if (function := self.users_function(node)) is None:
            return False
        given = (*node.args, *(item.value for item in node.keywords))
        return (
            any(self._is_record(arg) or self._is_inner(arg) for arg in given)
            or _makes_record(function)
            or makes_dict(function)
        )

    def users_function(self, node: ast.Call) -> Any:
        """Returns the function of the program that a call calls; None for any other call."""
        method = self._method(node.func)
        function = inspect.unwrap(getattr(method, "__func__", method))
        users = inspect.isfunction(function) and is_users(function.__module__)
        return function if users else None

    def _member(self, node: ast.Call) -> Any:
        """Returns the method of a record's class that a call calls; None for any other call."""
        func = node.func
        if not isinstance(func, ast.Attribute):
            return None
        found = member_of(self.frame.part(func.value), func.attr)
        return None if isinstance(found, property) else found

    def _is_inner(self, node: ast.expr) -> bool:
        """Returns whether an argument is a function inside the one being read."""
        struct = self.frame.part(node)
        value = struct.value if isinstance(struct, Static) else None
        return isinstance(node, ast.Lambda) or isinstance(value, (Inner, Partial))

    def _is_record(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return is_record(self.frame.part(node))
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "_replace":
            return isinstance(self.frame.part(func.value), Record)
        return is_record_class(self.frame.static(func)[1])

    def _inlined(self, node: ast.Call, inner: Inner | Partial | None) -> Struct:
        outer = self.draft.place
        self.draft.place = (*outer, self.frame.place(node))
        try:
            return self._read_inlined(node, inner)
        finally:
            self.draft.place = outer

    def _read_inlined(self, node: ast.Call, inner: Inner | Partial | None) -> Struct:
        keywords = self.named(node.keywords)
        if inner is not None:
            args = tuple(self.elements(node.args))
            if isinstance(inner, Inner):
                return self.inline_inner(inner, args, keywords, node)
            args, keywords = (*inner.args, *args), {**inner.keywords, **keywords}
            return self.inline_inner(inner.function, args, keywords, node)
        if (member := self._member(node)) is not None:
            assert isinstance(node.func, ast.Attribute)
            return self.inlined(member, node, (self.frame.part(node.func.value),), keywords)
        method = self._method(node.func)
        if not inspect.isfunction(inspect.unwrap(getattr(method, "__func__", method))):
            self.frame.fail(
                node,
                f"passing msrl to `{ast.unparse(node.func)}`, which is not a "
                "method or a function of yours that can be found now,",
                "give msrl to functions written with `def`, and call what it has by its own name: "
                "msrl.mean(...)",
            )
        return self.inlined(method, node, (), keywords)

    def inlined(
        self,
        method: Any,
        node: ast.Call,
        first: tuple[Struct, ...],
        keywords: dict[str, Struct],
        passed: Callable[[Struct], Struct] | None = None,
    ) -> Struct:
        """Reads a function in place of its call; if an argument is refused, for its problems only.

        Args:
            method: the function.
            node: the call, whose positional arguments are read here.
            first: arguments before these.
            keywords: the arguments by name.
            passed: makes the argument of a positional one.
        """
        args, refused = list(first), None
        for arg in node.args:
            try:
                parts = self.elements([arg])
                args += map(passed, parts) if passed else parts
            except ProgramError as error:
                kinds = [one.kind for one in inspect.signature(method).parameters.values()]
                if inspect.Parameter.VAR_POSITIONAL in kinds:
                    raise
                refused = refused or error
                left = sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
                count = left - len(args) - len(keywords) if isinstance(arg, ast.Starred) else 1
                args += [REFUSED] * count
        result = self.inline(method, tuple(args), keywords)
        if refused is not None:
            raise refused
        return result

    def _method(self, func: ast.expr) -> Any:
        if (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Call)
            and isinstance(func.value.func, ast.Name)
            and func.value.func.id == "super"
        ):
            owner = self.frame.names.get("self")
            defined_in = self.frame.namespace.get("__class__")
            if isinstance(owner, Static) and defined_in is not None:
                return getattr(super(defined_in, owner.value), func.attr, None)
        known, value = self.frame.static(func)
        return value if known else None

    # ---- expressions over variables --------------------------------------------------------

    def texts(self, values: list[Struct], node: ast.AST) -> tuple[list[str], list[str]]:
        """Returns operands as expressions, and the variables that they use."""
        reads: list[str] = []
        values = list(map(self.loaded, values))
        for leaf in flattened(tuple(values)):
            if isinstance(leaf, Static) and not is_literal(leaf.value):
                self._no_operand(leaf, node)
        return [Expr(self.operand(value, node, reads)) for value in values], reads

    def load_parameters(self, names: set[str], node: ast.For | ast.If) -> None:
        """Reads the Parameters that names stand for, because a statement assigns to the names.

        A name of a Parameter sees updates; a variable does not.
        """
        for name in sorted(names & self.frame.names.keys()):
            struct = self.frame.names[name]
            if not any(isinstance(s, Static) and is_parameter(s.value) for s in flattened(struct)):
                continue
            for call in nodes_of(node):
                if isinstance(call, ast.Call) and (
                    self.frame.msrl_call(call) == "update" or self.frame.gets_msrl(call)
                ):
                    self.frame.fail(
                        node,
                        f"`{name}`, a Parameter here and another value later,",
                        f"copy it before: {name} = {name}.copy()",
                    )
            self.assignments.assign(ast.Name(name, ast.Store()), self.loaded(struct))

    def loaded(self, struct: Struct) -> Struct:
        """Reads the Parameters in an argument, as they are now."""
        if isinstance(struct, tuple):
            return rebuilt(struct, map(self.loaded, struct))
        if isinstance(struct, Static) and is_parameter(struct.value):
            path = self.paths.of(struct.value)
            return struct if path is None else self.draft.result("glue", path, [PARAMETERS])
        return struct

    def substituted(self, node: ast.expr, reads: list[str]) -> ast.expr:
        """Returns an expression over the graph's variables, and adds these to `reads`."""
        return Rewriter(self, reads).visit(copy.deepcopy(node))

    def operand(self, struct: Struct, node: ast.AST, reads: list[str]) -> ast.expr:
        """Returns a value as an expression and adds the variables that it uses to `reads`."""
        if isinstance(struct, Var):
            reads.append(struct.name)
            return ast.Name(struct.name, ast.Load())
        if isinstance(struct, Static) and is_literal(struct.value):
            return literal(struct.value)
        if isinstance(struct, Static) and (path := self.paths.of(struct.value)) is not None:
            if holds_parameters(struct.value):
                reads.append(PARAMETERS)
            return path.tree
        if isinstance(struct, Static) and (home := _home(struct.value)):
            return ast.Name(self.draft.imported(*home), ast.Load())
        if isinstance(struct, Grown):
            struct = self.grown.parts(struct, node)
        if isinstance(struct, Record):
            self.frame.fail(
                node,
                f"a {struct.kind.__name__} as an operand",
                "MindSpore compiles no NamedTuple and no dataclass: pass its fields; a function or "
                "method of yours\n  that is called by its own name may take it",
            )
        if not isinstance(struct, tuple):
            self._no_operand(struct, node)
        return ast.Tuple([self.operand(part, node, reads) for part in struct], ast.Load())

    def _no_operand(self, struct: Struct, node: ast.AST) -> NoReturn:
        entries = isinstance(struct, dict)
        what = "a dictionary" if entries else f"a {type(struct.value).__name__} in a variable"
        self.frame.fail(
            node,
            f"{what} as an operand",
            "operands are arrays, numbers and tuples of them; call functions "
            "and methods by their own names",
        )

    def object_path(self, node: ast.expr, reads: list[str]) -> ast.expr | None:
        """Returns `self.network.value` as an expression on the trainer, actor or learner.

        None for anything else. A cell, an array, or a holder of one adds `$parameters` to `reads`.
        """
        path = self.paths.written(node, self.frame)
        if path is None:
            return None
        known, value = self.frame.static(node)
        if known and holds_parameters(value):
            reads.append(PARAMETERS)
        return path.tree


@functools.cache
def _makes_record(function: Any) -> bool:
    """Returns whether a function returns a record, or a tuple with one in it."""
    result = named_result(function)
    return result is not None and result.kind is not dict and result.has_names


def _is_first(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value == 0


@functools.cache
def makes_dict(function: Any) -> bool:
    """Returns whether a function returns a dictionary that it makes, also as part of a tuple."""
    if (tree := tree_of(function)) is None:
        return False
    nodes = list(own_nodes(tree))
    made = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_dict(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    results = [node.value for node in nodes if isinstance(node, ast.Return)]
    found = [p for one in results for p in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return any(_is_dict(one) or (isinstance(one, ast.Name) and one.id in made) for one in found)


def _is_dict(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_dict(node.left) or _is_dict(node.right)
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return isinstance(node, (ast.Dict, ast.DictComp)) or called in ("dict", "defaultdict")


def _home(value: Any) -> tuple[str, str] | None:
    """Returns the module of a function and its name there; None for anything else."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not callable(value) or not isinstance(module, str) or not isinstance(name, str):
        return None
    there = getattr(sys.modules.get(module), name, None)
    return (module, name) if there is value else None


def _is_pair(struct: Struct) -> bool:
    """Returns whether a value is a known key with any other value, as in `d.items()`."""
    pair = isinstance(struct, tuple) and len(struct) == 2
    return pair and isinstance(struct[0], Static)
