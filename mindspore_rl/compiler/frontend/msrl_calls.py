"""Calls of msrl: checks each one and turns it into operations."""

import ast
import inspect
from collections import namedtuple
from typing import Any

from mindspore_rl.compiler.frontend.expressions import ExpressionReader
from mindspore_rl.compiler.frontend.functions import Inner, Partial, width
from mindspore_rl.compiler.frontend.random_calls import Drawing
from mindspore_rl.compiler.frontend.records import Entries, Record, form, named_in, plain
from mindspore_rl.compiler.frontend.replay_calls import RecordCalls
from mindspore_rl.compiler.frontend.scope import MSRL, Static, Struct, Var, is_parameter
from mindspore_rl.compiler.ir.ir import Expr, num_turns
from mindspore_rl.compiler.ir.operations import ENV_STEP_OUTPUTS, LOOPS, OPERATIONS
from mindspore_rl.platform.names import RULE, is_name
from mindspore_rl.platform.syntax import children, nodes_of
from mindspore_rl.programs import modules_of
from mindspore_rl.rl.by_place import Named, named_result, single_arguments

NAMED: tuple[str, ...] = ("replay_insert", "replay_sample", "replay_update")
NAMED += ("agent_act", "agent_learn", "gradient", "update")
"""Calls that take keyword arguments, beside reductions."""


class Calls:
    """Reads calls of msrl.

    Args:
        reader: the reader of expressions.
        num_envs: environments of the job.
        wanted: see `RecordCalls`.

    Attributes:
        drawing: the reader of random calls.
        records: the reader of calls that insert and draw records.
    """

    def __init__(
        self, reader: ExpressionReader, num_envs: int, wanted: tuple[int, ...] = ()
    ) -> None:
        self.reader, self.draft = reader, reader.draft
        self.drawing = Drawing(reader)
        self.records = RecordCalls(self.drawing, num_envs, wanted)

    def read(self, name: str, node: ast.Call) -> Struct:
        """Reads a call of `msrl.name` and returns its result."""
        outer = self.draft.place
        self.draft.place = (*outer, self.draft.frame.place(node))
        try:
            return self._read(name, node)
        finally:
            self.draft.place = outer

    def _read(self, name: str, node: ast.Call) -> Struct:
        if name in LOOPS:
            self.draft.fail(node, f"msrl.{name} outside the head of a `for`")
        calls = [name for name, kind in OPERATIONS.items() if kind.call]
        if name not in calls:
            self.draft.fail(node, f"msrl.{name}", f"msrl has {', '.join(sorted(calls))}")
        if node.keywords and not (OPERATIONS[name].reduces or name in NAMED):
            self.draft.fail(
                node.keywords[0].value,
                f"a keyword argument of msrl.{name}",
                "its arguments are positional",
            )
        kept = name == "replay_sample" and bool(node.args or node.keywords)
        if self.draft.conditions and OPERATIONS["replay_draw" if kept else name].always:
            self.draft.fail(
                node,
                f"msrl.{name} under a condition that is known only at run time, or in a loop that "
                "`break` may end then,",
                "call it always: what is done with its result may stand under the condition, or "
                "ops.where choose between results",
            )
        if OPERATIONS[name].takes or OPERATIONS[name].gives or name == "boundary":
            self.drawing.check_place(node)
        if name == "boundary":
            return self._boundary(node)
        if name == "agent_learn":
            learn = self.reader.trainer.learner.learn
            beside = self.draft.beside_batch
            named = {key: beside(part) for key, part in self.reader.named(node.keywords).items()}
            return self.reader.inlined(learn, node, (Static(MSRL),), named, beside)
        if name in ("gradient", "update"):
            return self._learner_call(name, node)
        if name == "report":
            return self._report(node)
        if OPERATIONS[name].reduces:
            return self._reduction(name, node)
        if name == "replay_insert":
            return self.records.insert(node)
        if kept:
            return self.records.draw(node)
        if name == "uniform":
            return self.records.uniform(node)
        if name == "dataset_windows":
            return self.records.windows(node)
        if name == "dataset_transitions":
            return self.records.transitions(node)
        return self._component_call(name, node)

    def _component_call(self, name: str, node: ast.Call) -> Struct:
        values = self.draft.taken(name, tuple(self.reader.elements(node.args)))
        structs = values if name == "agent_act" else ()
        values = tuple(map(plain, values)) if name == "agent_act" else values
        texts, reads = self.reader.texts(list(values), node)
        attrs: dict[str, Any] = {}
        result: Named | None = None
        if name == "env_steps":
            if not self.draft.loops:
                self.draft.fail(node, "msrl.env_steps() outside msrl.iterations()")
            index = self.draft.loops[0].index
            return self.draft.result("env_steps", index, (index,))
        kind = OPERATIONS[name]
        wanted = len(texts) if kind.arguments is None else kind.arguments
        if len(texts) != wanted:
            self.draft.fail(node, f"msrl.{name} with {len(texts)} arguments, expected {wanted},")
        if kind.noise:
            owner = kind.noise if self.reader.trainer.spec.teams or kind.noise == "env" else "actor"
            loops = self.drawing.inner_loops()
            table, purpose = f"noise_{name.rpartition('_')[2]}", self.draft.name_op(f"{name}_noise")
            drawn = {"purpose": purpose, "owner": owner, "rows": num_turns(loops)}
            (noise,) = self.drawing.rows("noise", (table,), loops, node, drawn)
            if name == "agent_act":
                texts, reads, attrs, result = self._bound_to_act(node, texts, reads, noise, structs)
            else:
                texts, reads = [*texts, noise], [*reads, noise]
        targets: tuple[str, ...] = ()
        actor = self.reader.trainer.actor
        if name == "env_step":
            # Marked results keep the names that they had with a call of `boundary`.
            prefix = "step_" if self.draft.implies(name) else ""
            targets = tuple(self.draft.new_temporary(prefix + name) for name in ENV_STEP_OUTPUTS)
        elif name == "replay_sample":
            targets = self.records.sampled(node)
        elif name == "replay_update":
            attrs = self.records.updated(node)
        elif result is not None:
            attrs["named"] = True  # a copy of `act` gives tuples
            names = (part if part.isidentifier() else "part" for part, _ in result.parts)
            targets = tuple(map(self.draft.new_temporary, names))
        else:
            targets = (self.draft.new_temporary("value"),)
        more = tuple(attrs.items())
        found: tuple[Struct, ...] = self.draft.emit(name, targets, tuple(texts), reads, attrs=more)
        found = self.draft.given(name, found)
        if name == "agent_act" and result is None and (count := width(actor.act)):
            self.draft.widths[found[0].name] = count  # type: ignore[union-attr]
        if name == "replay_sample":
            return self.records.as_inserted(found)
        if result is not None:
            return self._with_names(result, found)
        return found if name == "env_step" else (*found, Static(None))[0]

    def _with_names(self, result: Named, found: tuple[Struct, ...]) -> Struct:
        """Makes a record or a dictionary of a result whose parts have names."""
        parts: list[Struct] = list(found)
        for place, (_, named) in enumerate(result.parts):
            if named is not None:
                inner = self.draft.unpack(parts[place], len(named.parts))
                parts[place] = self._with_names(named, inner)
        if result.kind is dict:
            return Entries.of(zip((name for name, _ in result.parts), parts, strict=True))
        return tuple(parts) if result.kind is tuple else Record.of(result.kind, parts)

    def _bound_to_act(
        self, node: ast.Call, texts: list[str], reads: list[str], noise: str, values: tuple
    ) -> tuple[list[str], list[str], dict[str, Any], Named | None]:
        """Binds the arguments of `agent_act`, of these values, to the parameters of `act`.

        Returns: the arguments as source texts, the variables that they read, attributes, and what
            is named in the result.
        """
        from mindspore_rl.api import bound_to_act  # noqa: PLC0415  (imports MindSpore)

        actor, named = self.reader.trainer.actor, dict[str, tuple[str, Struct]]()
        for key, value in self.reader.named(node.keywords).items():
            (text,), more = self.reader.texts([plain(value)], node)
            named[key], reads = (text, value), [*reads, *more]
        given = tuple(zip(texts, values, strict=True))
        try:
            bound = bound_to_act(actor.act, given, named, (noise, ()) if actor.noise_size else None)
        except TypeError as error:
            self.draft.fail(
                node,
                f"`{type(actor).__name__}.act` does not take these arguments ({error}), so this",
                "it gets what msrl.agent_act is given, and `noise` if the actor has a noise_size",
            )
        keys = tuple(bound.kwargs)
        reads = [*reads, noise] if actor.noise_size else reads
        attrs: dict[str, Any] = {"keys": keys} if keys else {}
        pairs = [*bound.args, *bound.kwargs.values()]
        forms = tuple(form(value) for _, value in pairs)
        if any(forms):
            attrs |= {"forms": forms, "named": True}
        known = {name: named_in(value) for name, (_, value) in single_arguments(bound).items()}
        return [text for text, _ in pairs], reads, attrs, named_result(actor.act, given=known)

    def _boundary(self, node: ast.Call) -> Struct:
        if len(node.args) != 2:
            self.draft.fail(node, "msrl.boundary with other than a name and a value")
        mark = self.draft.frame.known(node.args[0])
        if not is_name(mark):
            self.draft.fail(node.args[0], f"the mark {mark!r}", f"expected {RULE}")
        return self.draft.marked(mark, self.reader.expression(node.args[1]))

    def _learner_call(self, name: str, node: ast.Call) -> Struct:
        minimum = 2 if name == "gradient" else 1
        if len(node.args) < minimum:
            self.draft.fail(node, f"msrl.{name} with {len(node.args)} arguments")
        functions = self.reader.functions
        values = functions.in_order(node, tuple(self.reader.elements(node.args[minimum:])))
        values = tuple(map(self._with_properties, values))
        if name == "gradient":
            network = functions.network(node.args[1])
            loss, values = functions.loss(node.args[0], values)
            objects: tuple[Expr, ...] = (loss, network)
        else:
            method, values = self._method(node.args[0], tuple(map(self.draft.beside_batch, values)))
            objects = (method,)
        values = self.draft.taken(name, values)
        attrs: dict[str, Any] = {"objects": objects}
        if name == "gradient":
            forms, values = tuple(map(form, values)), tuple(map(plain, values))
            attrs |= {"forms": forms} if any(forms) else {}
        texts, reads = self.reader.texts(list(values), node)
        results = ("grads", "means", "sample_loss") if name == "gradient" else ()
        found = self.draft.emit(
            name,
            tuple(map(self.draft.new_temporary, results)),
            tuple(texts),
            reads=reads,
            attrs=tuple(attrs.items()),
        )
        found = self.draft.given(name, found)
        self.draft.tuples |= {part.name for part in found if isinstance(part, Var)}
        if name == "gradient" and functions.width:
            self.draft.widths |= {part.name: functions.width for part in found[1:]}
        return found[: 3 if self._wants_rows(node) else 2] or Static(None)

    def _with_properties(self, value: Struct) -> Struct:
        """Adds to a record, as fields, the properties of its class that the program reads."""
        if not isinstance(value, Record):
            return value
        own = {n: one for n, one in vars(value.kind).items() if isinstance(one, property)}
        text = "".join(map(inspect.getsource, modules_of(self.reader.trainer))) if own else ""
        found = {name: one for name, one in own.items() if f".{name}" in text}
        if not found:
            return value
        made = namedtuple(value.kind.__name__, (*value.fields, *found))  # type: ignore[misc]
        more = (self.reader.inline(one.fget, (value,), {}) for one in found.values())
        return Record.of(made, (*value, *more))

    def as_number(self, node: ast.Assign, value: Struct) -> Struct:
        """Makes a number of the one mean of `grads, loss = msrl.gradient(...)`."""
        frame = self.draft.frame
        if not isinstance(node.value, ast.Call) or frame.msrl_call(node.value) != "gradient":
            return value
        if not isinstance(value, tuple) or len(node.targets) != 1:
            return value
        means = getattr(node.targets[0], "elts", [])[1:2]
        names = {name.id for name in means if isinstance(name, ast.Name)}
        whole = names - frame.apart if self.reader.functions.is_one else set()
        if not names & frame.numbers | whole:
            return value
        if value[1].name in self.draft.widths:  # type: ignore[union-attr]  # it is a tuple
            return value
        (given,), reads = self.reader.texts([value[1]], node)
        only = self.draft.imported("mindspore_rl.rl.operators", "only")
        number = self.draft.result("glue", f"{only}({given})", reads)
        self.draft.arrays.add(number.name)
        self.draft.singles.add(number.name)
        return (value[0], number, *value[2:])

    def _method(self, node: ast.expr, values: tuple) -> tuple[Expr, tuple[Struct, ...]]:
        """Reads the method that an update calls, and its arguments."""
        path = self.reader.paths.written(node, self.draft.frame)
        others = tuple(one for one in values if not is_parameter(getattr(one, "value", None)))
        if path is not None and self.reader.functions.takes_objects(others):
            return self.reader.functions.loss(node, values, "an update")
        if path is None:
            struct = self.reader.expression(node)
            value = struct.value if isinstance(struct, Static) else None
            path = self.reader.paths.of(value)
            if path is None and (callable(value) or isinstance(value, (Inner, Partial))):
                return self.reader.functions.loss(node, values, "an update")
        if path is None:
            self.draft.fail(
                node,
                "msrl.update of something that is not a function or an optimiser of the learner",
                "write a method of the learner, and name it here: msrl.update(self.method, ...); "
                "or a function\n  of the file, or a `def` or `lambda` in this function",
            )
        return path, values

    def _wants_rows(self, node: ast.Call) -> bool:
        named = (item for item in node.keywords if item.arg == "rows")
        return any(self.draft.frame.known(item.value) for item in named)

    def _report(self, node: ast.Call) -> Struct:
        value = self.reader.expression(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(value, dict):
            self.draft.fail(node, "msrl.report of something that is not a dictionary of scalars")
        parts = [self.draft.beside_batch(part) for part in value.values()]
        self.reader.perhaps.reported(dict(zip(value, parts, strict=True)))
        return Static(None)

    def _reduction(self, name: str, node: ast.Call) -> Struct:
        values = list(self.reader.elements(node.args))
        keep = 0
        for item in node.keywords:
            if item.arg != "keep":
                self.draft.fail(item.value, f"the argument {item.arg!r} of msrl.{name}")
            keep = self.draft.frame.known(item.value)
        values = list(map(self.reader.loaded, values))
        for value in values:
            if not isinstance(value, Var):
                self.draft.fail(node, f"msrl.{name} of what is not an array")
        texts, reads = self.reader.texts(values, node)
        targets = tuple(self.draft.new_temporary("value") for _ in texts)
        attrs = (("keep", keep),)
        found = self.draft.emit(name, targets, tuple(texts), reads=tuple(reads), attrs=attrs)
        return found if len(found) > 1 else found[0]


def used_as_numbers(function: ast.FunctionDef) -> set[str]:
    """Returns names that a function computes with, puts into a list or dictionary or appends."""
    names, others, other_names = set[str](), set[str](), list[tuple[str, str]]()
    for node in nodes_of(function):
        numbers = _numbers(node)
        for child in _used(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                (names if child in numbers else others).add(child.id)
                if isinstance(node, ast.Assign):
                    found = [target for target in node.targets if isinstance(target, ast.Name)]
                    other_names += [(child.id, target.id) for target in found]
    while more := {name for name, other in other_names if other in others} - others:
        others |= more
    return names - others


def taken_apart(function: ast.FunctionDef) -> set[str]:
    """Returns names that a function unpacks, goes over, reads by place or gives to a call."""
    found: list[Any] = []
    for node in nodes_of(function):
        match node:
            case ast.Subscript(value) | ast.Starred(value) | ast.For(iter=value):
                found.append(value)
            case ast.comprehension(iter=value):
                found.append(value)
            case ast.Assign([ast.Tuple() | ast.List()], value):
                found.append(value)
            case ast.Call(ast.Name("isinstance")):
                pass
            case ast.Call(_, args, keywords):
                found += [*args, *(item.value for item in keywords)]
    return {value.id for value in found if isinstance(value, ast.Name)}


def _used(node: ast.AST) -> list[ast.AST]:
    """Returns the parts of a node; the named arguments of a call are its own parts."""
    if isinstance(node, ast.keyword):
        return []
    parts = children(node)
    return [part.value if isinstance(part, ast.keyword) else part for part in parts]


def _numbers(node: ast.AST) -> list[ast.expr]:
    """Returns the parts of a node that may be numbers, and are not taken apart."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.UnaryOp(operand=value) | ast.AugAssign(value=value):
            return [value]
        case ast.Dict(values=values) | ast.List(elts=values):
            return values
        case ast.Assign(targets=targets, value=value):
            plain = all(isinstance(target, (ast.Name, ast.Subscript)) for target in targets)
            return [value] if plain else []
        case ast.Call(func=ast.Name(id="float") | ast.Attribute(attr="append"), args=args):
            return args
        case ast.Call(func=ast.Name(id="dict") | ast.Attribute(attr="update"), keywords=named):
            return [part.value for part in named]
    return []
