"""Static analysis: the source of `Trainer.train` and `Learner.learn` becomes a `Program`.

The loop is read, never run. Tuples and dictionaries are taken apart while reading, so that every
variable of the graph is one array (or the opaque result of one call); methods that receive `msrl`
are inlined; attributes of `self` that are plain numbers become constants.
"""

import ast
import builtins
import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspore import nn

from mindspore_rl.errors import ProgramError
from mindspore_rl.graph.ir import (
    COMPONENT_OF_KIND,
    ENV_STEP_OUTPUTS,
    ENVIRONMENT,
    PARAMETERS,
    REDUCTIONS,
    REPLAY,
    Branch,
    Item,
    Loop,
    Op,
    Program,
    Where,
)

LOOPS = {"iterations": "iteration", "steps": "step", "epochs": "epoch", "minibatches": "minibatch"}
CALLS = (
    *COMPONENT_OF_KIND,
    *REDUCTIONS,
    "agent_learn",
    "boundary",
    "env_steps",
    "report",
)
SUPPORTED = """supported: assignments, calls of msrl, if/else, `return` at the end, and loops over
msrl.iterations(), msrl.steps(), msrl.epochs(n), msrl.minibatches(n, values) or range(n)"""
EFFECTS_OF = {
    "env_reset": ((), (ENVIRONMENT,)),
    "env_step": ((ENVIRONMENT,), (ENVIRONMENT,)),
    "agent_act": ((PARAMETERS,), ()),
    "replay_insert": ((REPLAY,), (REPLAY,)),
    "replay_sample": ((REPLAY,), (REPLAY,)),
    "gradient": ((PARAMETERS,), ()),
    "update": ((PARAMETERS,), (PARAMETERS,)),
}


@dataclass(frozen=True)
class Var:
    """A variable of the graph."""

    name: str


@dataclass(frozen=True)
class Static:
    """Something known now: a number, a function, `self`."""

    value: Any


Struct = Any  # Var | Static | tuple[Struct, ...] | dict[str, Struct]


def build(trainer: Any, algorithm: str) -> Program:
    """Reads `trainer.train` into a program.

    Raises:
        ProgramError: Python that the analysis does not support, with its line.
    """
    builder = _Builder(trainer)
    builder.inline(trainer.train, trainer, (Static(_MSRL),), top=True)
    body = builder.scope.items
    kinds = [item.kind for item in body if isinstance(item, Loop)]
    if kinds.count("iterations") != 1:
        raise ProgramError(
            f"{algorithm}: train has {kinds.count('iterations')} loops over msrl.iterations(), "
            "expected one, at the outermost level"
        )
    return Program(algorithm, tuple(body), imports=tuple(sorted(builder.imports.items())),
                   locals=tuple(sorted(builder.locals.items())))


class _Msrl:
    """Stands for the `msrl` argument while reading."""


_MSRL = _Msrl()


@dataclass
class _Scope:
    """Items of the loop body being read."""

    items: list[Item] = field(default_factory=list)
    outer: "_Scope | None" = None

    def inside(self, other: "_Scope | None") -> bool:
        """Whether this body lies within another, and is not that one."""
        scope = self.outer
        while scope is not None and scope is not other:
            scope = scope.outer
        return scope is not None


@dataclass
class _Frame:
    """One function being read: its file, its names, its globals."""

    file: str
    first_line: int
    lines: list[str]
    names: dict[str, Struct]
    namespace: dict[str, Any]
    module: str
    top: bool = False
    rename: dict[str, str] = field(default_factory=dict)
    reassigned: frozenset[str] = frozenset()
    created: dict[str, "_Scope"] = field(default_factory=dict)


class _Builder:
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.roots = {id(trainer): "trainer", id(trainer.actor): "actor"}
        self.roots[id(trainer.learner)] = "learner"
        self.scope = _Scope()
        self.top_of_iteration: list[Op] | None = None
        self.loops: list[Loop] = []
        self.counters: dict[str, int] = {}
        self.used: set[str] = {"trainer", "learner", "actor", "msrl"}
        self.temporary: set[str] = set()
        self.frame: _Frame
        self.node: ast.AST
        self.replay_width: int | None = None
        self.replay_rows = 0
        self.imports: dict[str, str] = {}
        self.locals: dict[str, str] = {}

    # ---- functions -------------------------------------------------------------------------

    def inline(self, method: Any, owner: Any, args: tuple[Struct, ...], top: bool = False) -> Struct:
        """Reads a function's body in place of its call. Returns what it returns."""
        function = inspect.unwrap(getattr(method, "__func__", method))
        try:
            source, first_line = inspect.getsourcelines(function)
        except OSError as error:
            raise ProgramError(f"the source of {function.__qualname__} cannot be read") from error
        tree = ast.parse(textwrap.dedent("".join(source))).body[0]
        file = inspect.getsourcefile(function) or "?"
        outer = getattr(self, "frame", None)
        self.frame = _Frame(file, first_line, source, {}, _namespace(function),
                            function.__module__)
        self.node = tree
        if not isinstance(tree, ast.FunctionDef):
            self._fail(tree, "a function that is not a plain `def`")
        self.frame.top = top
        self.frame.reassigned = _reassigned(tree)
        self._bind_arguments(tree, owner, args)
        result: Struct = Static(None)
        for position, statement in enumerate(tree.body):
            if isinstance(statement, ast.Return):
                if position != len(tree.body) - 1:
                    self._fail(statement, "`return` before the end")
                result = self._expression(statement.value) if statement.value else Static(None)
            else:
                self._statement(statement)
        if outer is not None:
            self.frame = outer
        return result

    def _bind_arguments(self, tree: ast.FunctionDef, owner: Any, args: tuple) -> None:
        parameters = [arg.arg for arg in tree.args.args]
        given = ((Static(owner),) if parameters[:1] == ["self"] else ()) + args
        if tree.args.vararg is not None:
            extra = given[len(parameters) :]
            given = given[: len(parameters)]
            self.frame.names[tree.args.vararg.arg] = tuple(extra)
        defaults = tree.args.defaults
        missing = len(parameters) - len(given)
        if missing < 0 or missing > len(defaults):
            self._fail(tree, f"a call of {tree.name} with {len(given)} arguments, expected "
                             f"{len(parameters)}")
        for name, value in zip(parameters, given, strict=False):
            self.frame.names[name] = value
        for name, node in zip(parameters[len(given) :], defaults[len(defaults) - missing :],
                              strict=True):
            self.frame.names[name] = Static(self._static(node))

    # ---- statements ------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        self.node = node
        if isinstance(node, ast.Assign):
            if len(node.targets) != 1:
                self._fail(node, "an assignment to several names at once (`a = b = ...`)")
            self._assign(node.targets[0], self._expression(node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._expression(node.value))
        elif isinstance(node, ast.AugAssign):
            load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node) if isinstance(
                node.target, ast.Name) else self._fail(node, "an augmented assignment to a part")
            value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
            self._assign(node.target, self._expression(value))
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self._expression(node.value)
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.If):
            self._if(node)
        elif not isinstance(node, ast.Pass):
            self._fail(node, f"`{type(node).__name__.lower()}`")

    def _for(self, node: ast.For) -> None:
        if node.orelse:
            self._fail(node, "`else` of a loop")
        call = node.iter
        kind, args = self._loop_call(call)
        if kind is None:
            self._fail(call, "a loop over something else")
        if kind == "iterations":
            if self.loops:
                self._fail(call, "msrl.iterations() inside another loop")
            count = None
        elif kind == "steps":
            count = self.trainer.config.num_steps
        else:
            count = self._static(args[0])
            if not isinstance(count, int) or count < 1:
                self._fail(args[0], f"a loop count of {count!r}, expected a positive integer")
        values = self._expression(args[1]) if kind == "minibatches" else None
        index = LOOPS.get(kind, "i")
        if isinstance(node.target, ast.Name) and kind != "minibatches" and node.target.id != "_":
            index = node.target.id
        index = self._fresh(index)
        loop = Loop(self._name(kind), kind, index, count, (), self._where(node))
        outer, self.scope = self.scope, _Scope(outer=self.scope)
        self.loops.append(loop)
        if kind == "iterations":
            self.top_of_iteration = []
        if kind != "minibatches":
            if isinstance(node.target, ast.Name):
                self.frame.names[node.target.id] = Var(index)
            else:
                self._fail(node.target, "a loop target that is not a name")
        else:
            self._assign(node.target, self._minibatch(loop, count, values, args[1]))
        for statement in node.body:
            self._statement(statement)
        body = self.scope.items
        if kind == "iterations":
            body = [*(self.top_of_iteration or ()), *body]
            self.top_of_iteration = None
        self.loops.pop()
        self.scope = outer
        self.scope.items.append(replace(loop, body=tuple(body)))

    def _loop_call(self, call: ast.expr) -> tuple[str | None, list[ast.expr]]:
        if isinstance(call, ast.Call):
            name = self._msrl_call(call)
            if name in LOOPS:
                return name, call.args
            if isinstance(call.func, ast.Name) and call.func.id == "range":
                if len(call.args) != 1:
                    self._fail(call, "range() with a start or a step")
                return "range", call.args
        return None, []

    def _minibatch(self, loop: Loop, count: int, values: Struct, node: ast.AST) -> Struct:
        if not isinstance(values, tuple) or not all(isinstance(v, Var) for v in values):
            self._fail(node, "minibatches of something that is not a tuple of arrays")
        num_steps = self.trainer.config.num_steps
        if num_steps % count:
            raise ProgramError(
                f"{self._where(node)}\n  {count} minibatches of {num_steps} steps: the number of "
                f"minibatches must divide num_steps (for example {_divisor(num_steps, count)})"
            )
        table = self._fresh("permutation")
        rounds = self._table_loops(exclude=loop)
        self._at_top(Op(self._name("permutations"), "permutations", (table,), (), (),
                        self._where(node), attrs=(("rounds", _product(rounds)),)))
        row = self._fresh(f"{table}_row")
        self._emit("index", (row,), (table, _flat_index(rounds)), reads=(
            table, *(outer.index for outer in rounds)))
        targets = tuple(self._temporary(f"minibatch_{value.name}") for value in values)
        names = tuple(value.name for value in values)
        self._emit("minibatch", targets, (row, loop.index, *names), reads=(
            row, loop.index, *names), attrs=(("count", count),))
        return tuple(Var(target) for target in targets)

    def _if(self, node: ast.If) -> None:
        known, value = self._try_static(node.test)
        if known:
            for statement in node.body if value else node.orelse:
                self._statement(statement)
            return
        reads: list[str] = []
        test = ast.unparse(self._substitute(node.test, reads))
        bodies = []
        before = dict(self.frame.names)
        for statements in (node.body, node.orelse):
            outer, self.scope = self.scope, _Scope(outer=self.scope)
            self.frame.names = dict(before)
            for statement in statements:
                self._statement(statement)
            bodies.append(tuple(self.scope.items))
            created = self.frame.created
            created |= {n: outer for n, s in created.items() if s is self.scope}
            self.scope = outer
            before |= {n: s for n, s in self.frame.names.items() if n not in before}
        self.frame.names = before
        self.scope.items.append(Branch(self._name("if"), test, tuple(dict.fromkeys(reads)),
                                       bodies[0], bodies[1], self._where(node)))

    # ---- assignment ------------------------------------------------------------------------

    def _assign(self, target: ast.expr, value: Struct) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, Var):
                self._unpack(target, value)
                return
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                got = len(value) if isinstance(value, (tuple, dict)) else "one"
                self._fail(target, f"{len(target.elts)} names for {got} value(s)")
            values = [self._detach(v, target.elts[:i]) for i, v in enumerate(value)]
            for element, part in zip(target.elts, values, strict=True):
                self._assign(element, part)
        elif isinstance(target, ast.Name):
            if not self.scope.inside(self.frame.created.get(target.id)):
                # An assignment in an inner body updates the outer variable; any other makes a new
                # variable, which may have another shape.
                self.frame.rename[target.id] = self._fresh(target.id)
                self.frame.created[target.id] = self.scope
            if target.id in self.frame.reassigned and _is_number(value):
                value = self._constant(value.value)
            self.frame.names[target.id] = self._name_struct(self.frame.rename[target.id], value)
            if self.frame.top:
                self._remember(target.id, self.frame.names[target.id])
        else:
            self._fail(target, "an assignment to an attribute or an element")

    def _constant(self, number: float) -> Var:
        """A number in a variable that changes later, such as a sum that starts at 0."""
        target = self._temporary("value")
        self._emit("constant", (target,), (repr(number),))
        return Var(target)

    def _remember(self, local: str, struct: Struct) -> None:
        if isinstance(struct, Var):
            self.locals[struct.name] = local
        elif isinstance(struct, (tuple, dict)):
            items = struct.items() if isinstance(struct, dict) else enumerate(struct)
            for key, part in items:
                if isinstance(part, Var):
                    self.locals[part.name] = f"{local}[{key!r}]"

    def _detach(self, value: Struct, earlier: list[ast.expr]) -> Struct:
        """Keeps `a, b = b, a` right: copies a value whose name is assigned earlier in the tuple."""
        taken = {self.frame.rename.get(e.id) for e in earlier if isinstance(e, ast.Name)}
        if isinstance(value, Var) and value.name in taken:
            copy = self._fresh(value.name)
            self._emit("copy", (copy,), (value.name,), reads=(value.name,))
            return Var(copy)
        return value

    def _unpack(self, target: ast.Tuple | ast.List, value: Var) -> None:
        last = self.scope.items[-1] if self.scope.items else None
        names = tuple(self._temporary("part") for _ in target.elts)
        if isinstance(last, Op) and last.targets == (value.name,) and value.name in self.temporary:
            self.scope.items[-1] = replace(last, targets=names)
        else:
            self._emit("glue", names, (value.name,), reads=(value.name,))
        for element, name in zip(target.elts, names, strict=True):
            self._assign(element, Var(name))

    def _name_struct(self, name: str, value: Struct) -> Struct:
        """Gives a value its variable's name: renames the operation just read, or copies."""
        if isinstance(value, tuple):
            return tuple(self._name_struct(f"{name}_{i}", part) for i, part in enumerate(value))
        if isinstance(value, dict):
            return {key: self._name_struct(f"{name}_{key}", part) for key, part in value.items()}
        if isinstance(value, Static):
            return value
        if value.name == name:
            return value
        if value.name in self.temporary and self._rename(value.name, name):
            self.temporary.discard(value.name)
            self.used.discard(value.name)
            return Var(name)
        self._emit("copy", (name,), (value.name,), reads=(value.name,))
        return Var(name)

    def _rename(self, old: str, new: str) -> bool:
        items = self.scope.items
        for position in range(len(items) - 1, -1, -1):
            item = items[position]
            if not isinstance(item, Op):
                return False
            if old in item.targets:
                targets = tuple(new if t == old else t for t in item.targets)
                items[position] = replace(item, targets=targets)
                return True
            if old in item.reads or new in item.reads or new in item.targets:
                return False
        return False

    # ---- expressions -----------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> Struct:
        if isinstance(node, ast.Name) and node.id in self.frame.names:
            return self.frame.names[node.id]
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self._elements(node.elts))
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Subscript):
            known, key = self._try_static(node.slice)
            base = self._expression(node.value) if isinstance(node.value, ast.Name) else None
            if known and isinstance(base, (tuple, dict)):
                try:
                    return base[key]
                except (KeyError, IndexError, TypeError):
                    self._fail(node, f"element {key!r} of {len(base)}")
        if isinstance(node, ast.Call):
            name = self._msrl_call(node)
            if name is not None:
                return self._call(name, node)
            owner, method = self._method(node.func)
            if method is not None and any(self._is_msrl(arg) for arg in node.args):
                return self.inline(method, owner, tuple(self._elements(node.args)))
        known, value = self._try_static(node)
        if known:
            return Static(value)
        reads: list[str] = []
        text = ast.unparse(self._substitute(node, reads))
        target = self._temporary("value")
        self._emit("glue", (target,), (text,), reads=tuple(dict.fromkeys(reads)))
        return Var(target)

    def _elements(self, nodes: list[ast.expr]) -> Iterator[Struct]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self._expression(node.value)
                if not isinstance(value, tuple):
                    self._fail(node, "`*` of something that is not a tuple")
                yield from value
            else:
                yield self._expression(node)

    def _dict(self, node: ast.Dict) -> dict[str, Struct]:
        result: dict[str, Struct] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            part = self._expression(value)
            if key is None:
                if not isinstance(part, dict):
                    self._fail(value, "`**` of something that is not a dictionary")
                result |= part
            else:
                result[str(self._static(key))] = part
        return result

    def _call(self, name: str, node: ast.Call) -> Struct:
        if name not in CALLS:
            self._fail(node, f"msrl.{name}" + (" outside a `for`" if name in LOOPS else ""))
        if node.keywords and name not in REDUCTIONS:
            self._fail(node, f"keyword arguments of msrl.{name}")
        if name == "boundary":
            return self._boundary(node)
        if name == "agent_learn":
            args = tuple(self._elements(node.args))
            learner = self.trainer.learner
            return self.inline(learner.learn, learner, (Static(_MSRL), *args))
        if name in ("gradient", "update"):
            return self._learner_call(name, node)
        if name == "report":
            return self._report(node)
        if name in REDUCTIONS:
            return self._reduction(name, node)
        args = list(self._elements(node.args))
        texts, reads = self._texts(args, node)
        return self._component_call(name, texts, reads, node)

    def _component_call(self, name: str, texts: list, reads: list, node: ast.Call) -> Struct:
        if name == "env_steps":
            index = self.loops[0].index if self.loops else self._fail(
                node, "msrl.env_steps() outside msrl.iterations()")
            target = self._temporary("value")
            self._emit("env_steps", (target,), (index,), reads=(index,))
            return Var(target)
        noisy = {"env_reset": "env", "env_step": "env", "agent_act": "actor"}.get(name)
        if noisy:
            noise = self._noise(name, noisy, node)
            texts, reads = [*texts, noise], [*reads, noise]
        effects, writes = EFFECTS_OF[name]
        if name == "env_step":
            targets = tuple(self._temporary(f"{output}") for output in ENV_STEP_OUTPUTS)
        elif name == "replay_sample":
            if self.replay_width is None:
                self._fail(node, "msrl.replay_sample() before any msrl.replay_insert()")
            targets = tuple(self._temporary("sample") for _ in range(self.replay_width))
        elif name == "replay_insert":
            if self.replay_width not in (None, len(texts)):
                self._fail(node, f"{len(texts)} values inserted, elsewhere {self.replay_width}")
            self.replay_width = len(texts)
            targets = ()
        else:
            targets = (self._temporary("value"),)
        attrs: tuple = ()
        if name == "replay_insert":
            loops = self._table_loops()
            index = _flat_index(loops)
            if self.replay_rows:
                index = f"{self.replay_rows} + {index}"
            reads = [*reads, *(loop.index for loop in loops)]
            attrs = (("index", index), ("rows", _product(loops)))
            self.replay_rows += _product(loops)
            self.sampled_rows = self.replay_rows
        elif name == "replay_sample":
            attrs = (("rows", self.sampled_rows),)
            self.replay_rows = 0
        self._emit(name, targets, tuple(texts), reads=(*reads, *effects), writes=writes, attrs=attrs)
        if name in ("env_step", "replay_sample"):
            return tuple(Var(target) for target in targets)
        return Var(targets[0]) if targets else Static(None)

    def _noise(self, name: str, owner: str, node: ast.AST) -> str:
        """Random numbers of all turns are drawn in one operation at the top of the iteration."""
        loops = self._table_loops()
        table = self._fresh(f"noise_{name.split('_')[-1]}")
        op = Op(self._name("noise"), "noise", (table,), (), (), self._where(node), attrs=(
            ("purpose", self._name(f"{name}_noise")), ("owner", owner), ("rows", _product(loops))))
        self._at_top(op)
        row = self._fresh(f"{table}_row")
        self._emit("index", (row,), (table, _flat_index(loops)), reads=(
            table, *(loop.index for loop in loops)))
        return row

    def _at_top(self, op: Op) -> None:
        if self.top_of_iteration is None:
            self.scope.items.append(op)
        else:
            index = self.loops[0].index
            self.top_of_iteration.append(replace(op, args=(index,), reads=(index,)))

    def _table_loops(self, exclude: Loop | None = None) -> list[Loop]:
        return [loop for loop in self.loops if loop.kind != "iterations" and loop is not exclude]

    def _boundary(self, node: ast.Call) -> Struct:
        if len(node.args) != 2:
            self._fail(node, "msrl.boundary with other than a name and a value")
        mark = self._static(node.args[0])
        if not isinstance(mark, str):
            self._fail(node.args[0], "a boundary name that is not a constant string")
        site = self._name(f"boundary:{mark}")
        value = self._expression(node.args[1])

        def pass_through(part: Struct) -> Struct:
            if isinstance(part, tuple):
                return tuple(pass_through(p) for p in part)
            if isinstance(part, dict):
                return {key: pass_through(p) for key, p in part.items()}
            if isinstance(part, Static):
                return part
            target = self._temporary(f"{mark}_{part.name}")
            self._emit("boundary", (target,), (part.name,), reads=(part.name,), mark=mark,
                       attrs=(("site", site),))
            return Var(target)

        return pass_through(value)

    def _learner_call(self, name: str, node: ast.Call) -> Struct:
        minimum = 2 if name == "gradient" else 1
        if len(node.args) < minimum:
            self._fail(node, f"msrl.{name} with {len(node.args)} arguments")
        methods = []
        for arg in node.args[:minimum]:
            path = self._object_path(arg)
            if path is None:
                self._fail(arg, f"msrl.{name} of something that is not `self.name`")
            methods.append(path)
        texts, reads = self._texts(list(self._elements(node.args[minimum:])), node)
        effects, writes = EFFECTS_OF[name]
        targets = (self._temporary("grads"), self._temporary("means")) if name == "gradient" else ()
        self._emit(name, targets, tuple(texts), reads=(*reads, *effects), writes=writes,
                   attrs=(("objects", tuple(methods)),))
        return tuple(Var(target) for target in targets) if targets else Static(None)

    def _report(self, node: ast.Call) -> Struct:
        value = self._expression(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(value, dict):
            self._fail(node, "msrl.report of something that is not a dictionary of scalars")
        texts, reads = self._texts(list(value.values()), node)
        self._emit("report", (), tuple(texts), reads=tuple(reads), attrs=(("keys", tuple(value)),))
        return Static(None)

    def _reduction(self, name: str, node: ast.Call) -> Struct:
        values = tuple(self._elements(node.args))
        keep = 0
        for keyword in node.keywords:
            if keyword.arg != "keep":
                self._fail(keyword.value, f"the argument {keyword.arg!r} of msrl.{name}")
            keep = self._static(keyword.value)
        texts, reads = self._texts(list(values), node)
        targets = tuple(self._temporary("value") for _ in texts)
        self._emit(name, targets, tuple(texts), reads=tuple(reads), attrs=(("keep", keep),))
        return tuple(Var(t) for t in targets) if len(targets) > 1 else Var(targets[0])

    def _texts(self, values: list[Struct], node: ast.AST) -> tuple[list[str], list[str]]:
        texts, reads = [], []
        for value in values:
            if isinstance(value, Var):
                texts.append(value.name)
                reads.append(value.name)
            elif isinstance(value, Static) and isinstance(value.value, (int, float, bool)):
                texts.append(repr(value.value))
            elif isinstance(value, tuple):
                parts, part_reads = self._texts(list(value), node)
                texts.append(f"({', '.join(parts)},)")
                reads.extend(part_reads)
            else:
                self._fail(node, "an argument that is neither an array nor a number")
        return texts, reads

    # ---- names, constants, errors ----------------------------------------------------------

    def _substitute(self, node: ast.expr, reads: list[str]) -> ast.expr:
        """Rewrites an expression over graph variables, adding to `reads` what it uses."""
        builder = self

        class Rewriter(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                if name.id in builder.frame.names:
                    struct = builder.frame.names[name.id]
                    texts, used = builder._texts([struct], name)
                    reads.extend(used)
                    return ast.parse(texts[0], mode="eval").body
                if name.id not in builder.frame.namespace and name.id not in _BUILTINS:
                    builder._fail(name, f"the unknown name {name.id!r}")
                builder._import(name)
                return name

            def visit_Attribute(self, attribute: ast.Attribute) -> ast.expr:
                known, value = builder._try_static(attribute)
                if known and isinstance(value, (int, float, bool, str, type(None))):
                    return ast.Constant(value)
                path = builder._object_path(attribute)
                if path is not None:
                    if _holds_parameters(value if known else None):
                        reads.append(PARAMETERS)
                    return ast.parse(path, mode="eval").body
                return self.generic_visit(attribute)

            def visit_Subscript(self, part: ast.Subscript) -> ast.expr:
                base = builder.frame.names.get(part.value.id) if isinstance(
                    part.value, ast.Name) else None
                if isinstance(base, (tuple, dict)):
                    texts, used = builder._texts([builder._expression(part)], part)
                    reads.extend(used)
                    return ast.parse(texts[0], mode="eval").body
                return self.generic_visit(part)

            def visit_Call(self, call: ast.Call) -> ast.expr:
                nested = builder._msrl_call(call)
                inlined = nested is None and any(builder._is_msrl(a) for a in call.args)
                if nested is not None or inlined:
                    texts, used = builder._texts([builder._expression(call)], call)
                    reads.extend(used)
                    return ast.parse(texts[0], mode="eval").body
                return self.generic_visit(call)

            def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
                builder._fail(node, "a lambda")

            visit_ListComp = visit_GeneratorExp = visit_DictComp = visit_Lambda

        return Rewriter().visit(copy.deepcopy(node))

    def _import(self, node: ast.Name) -> None:
        frame = self.frame
        if node.id in frame.namespace:
            if node.id not in vars(sys.modules[frame.module]):
                self._fail(node, f"{node.id!r}, a name of an enclosing function,")
            if self.imports.setdefault(node.id, frame.module) != frame.module:
                other = vars(sys.modules[self.imports[node.id]])[node.id]
                if other is not frame.namespace[node.id]:
                    self._fail(node, f"{node.id!r}, which means something else in "
                                     f"{self.imports[node.id]},")

    def _msrl_call(self, call: ast.Call) -> str | None:
        func = call.func
        if isinstance(func, ast.Attribute) and self._is_msrl(func.value):
            return func.attr
        return None

    def _is_msrl(self, node: ast.expr) -> bool:
        struct = self.frame.names.get(node.id) if isinstance(node, ast.Name) else None
        return isinstance(struct, Static) and struct.value is _MSRL

    def _method(self, func: ast.expr) -> tuple[Any, Any]:
        if isinstance(func, ast.Name):
            return None, self.frame.namespace.get(func.id)
        if isinstance(func, ast.Attribute):
            known, owner = self._try_static(func.value)
            if known:
                return owner, getattr(owner, func.attr, None)
        return None, None

    def _object_path(self, node: ast.expr) -> str | None:
        """`self.network.value` as a path from the trainer, the actor or the learner."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        struct = self.frame.names.get(node.id)
        if isinstance(struct, Static) and id(struct.value) in self.roots:
            owner = struct.value
            for part in parts:
                if not hasattr(owner, part):
                    self._fail(node, f"`{type(struct.value).__name__}` has no `{'.'.join(parts)}`")
                owner = getattr(owner, part)
            return ".".join((self.roots[id(struct.value)], *parts))
        return None

    def _try_static(self, node: ast.expr) -> tuple[bool, Any]:
        names = {}
        for name in ast.walk(node):
            if isinstance(name, (ast.Call, ast.Lambda)):
                return False, None
            if isinstance(name, ast.Name):
                struct = self.frame.names.get(name.id)
                if isinstance(struct, Static) and struct.value is not _MSRL:
                    names[name.id] = struct.value
                elif struct is not None or name.id not in self.frame.namespace:
                    return False, None
        code = compile(ast.Expression(body=node), self.frame.file, "eval")
        try:
            return True, eval(code, self.frame.namespace, names)  # noqa: S307
        except AttributeError as error:
            self._fail(node, str(error))

    def _static(self, node: ast.expr) -> Any:
        known, value = self._try_static(node)
        if not known:
            self._fail(node, "a value that is only known at run time, where configuration or a "
                             "constant is expected")
        return value

    def _emit(self, kind: str, targets: tuple, args: tuple, **rest: Any) -> None:
        rest["reads"] = tuple(dict.fromkeys(rest.get("reads", ())))
        self.scope.items.append(
            Op(self._name(kind), kind, targets, args, where=self._where(self.node), **rest))

    def _name(self, kind: str) -> str:
        self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"{kind}#{self.counters[kind]}"

    def _fresh(self, name: str) -> str:
        candidate, number = name if not name.endswith("_") else f"{name}1", 1
        while candidate in self.used:
            number += 1
            candidate = f"{name.removesuffix('_')}_{number}"
        self.used.add(candidate)
        return candidate

    def _temporary(self, name: str) -> str:
        name = self._fresh(name)
        self.temporary.add(name)
        return name

    def _where(self, node: ast.AST) -> Where:
        line = getattr(node, "lineno", getattr(self.node, "lineno", 1))
        text = self.frame.lines[line - 1].rstrip() if line <= len(self.frame.lines) else ""
        return Where(_short(self.frame.file), self.frame.first_line + line - 1, text)

    def _fail(self, node: ast.AST, construct: str) -> Any:
        where = self._where(node if hasattr(node, "lineno") else self.node)
        indent = len(where.text) - len(where.text.lstrip())
        dedent = len(self.frame.lines[0]) - len(self.frame.lines[0].lstrip())
        column = max(getattr(node, "col_offset", 0) + dedent - indent, 0)
        raise ProgramError(f"{where.file}:{where.line}: {construct} is not supported here\n"
                           f"    {where.text.strip()}\n    {' ' * column}^\n  {SUPPORTED}")


_BUILTINS = frozenset(dir(builtins))


def _is_number(value: Struct) -> bool:
    return isinstance(value, Static) and isinstance(value.value, (int, float))


def _holds_parameters(value: Any) -> bool:
    """Whether something reached from `self` is a cell or a method of one."""
    return isinstance(getattr(value, "__self__", value), nn.Cell)


def _reassigned(tree: ast.FunctionDef) -> frozenset[str]:
    """Names that a function assigns more than once."""
    stores = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)
              and isinstance(n.ctx, ast.Store)]
    stores += [n.target.id for n in ast.walk(tree) if isinstance(n, ast.AugAssign)
               and isinstance(n.target, ast.Name)]
    return frozenset(name for name in stores if stores.count(name) > 1)


def _namespace(function: Any) -> dict[str, Any]:
    closure = inspect.getclosurevars(function)
    return {**function.__globals__, **closure.nonlocals}


def _product(loops: list[Loop]) -> int:
    rows = 1
    for loop in loops:
        assert loop.count is not None
        rows *= loop.count
    return rows


def _flat_index(loops: list[Loop]) -> str:
    """Row of a table over nested loops, `epoch * 4 + minibatch`."""
    if not loops:
        return "0"
    text = loops[0].index
    for loop in loops[1:]:
        text = f"({text}) * {loop.count} + {loop.index}" if "+" in text else (
            f"{text} * {loop.count} + {loop.index}")
    return text


def _divisor(total: int, near: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - near))


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
