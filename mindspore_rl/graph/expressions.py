"""Reading expressions: calls of msrl become operations, everything else becomes glue."""

import ast
import copy
import keyword
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mindspore import nn

from mindspore_rl.errors import ProgramError
from mindspore_rl.graph.frame import (
    BUILTINS,
    MSRL,
    Frame,
    Gone,
    Scope,
    Static,
    Struct,
    Var,
    is_array,
    is_literal,
    literal,
)
from mindspore_rl.graph.ir import (
    COMPONENT_OF_KIND,
    ENV_STEP_OUTPUTS,
    ENVIRONMENT,
    PARAMETERS,
    REDUCTIONS,
    REPLAY,
    Loop,
    Op,
)
from mindspore_rl.graph.rewrite import Rewriter

CALLS = (*COMPONENT_OF_KIND, *REDUCTIONS, "agent_learn", "boundary", "env_steps", "report")
EFFECTS_OF = {
    "env_reset": ((), (ENVIRONMENT,)),
    "env_step": ((ENVIRONMENT,), (ENVIRONMENT,)),
    "agent_act": ((PARAMETERS,), ()),
    "replay_insert": ((REPLAY,), (REPLAY,)),
    "replay_sample": ((REPLAY,), (REPLAY,)),
    "gradient": ((PARAMETERS,), ()),
    "update": ((PARAMETERS,), (PARAMETERS,)),
}
UNCONDITIONAL = ("env_reset", "env_step", "agent_act", "replay_insert", "replay_sample")
RESERVED = {
    "trainer",
    "learner",
    "actor",
    "msrl",
    "environment",
    "env_state",
    "self",
    "w",
    "np",
    "ms",
    "nn",
    "parts",
    "operators",
    "reduced",
    *keyword.kwlist,
    *BUILTINS,
}
"""Names that generated modules use themselves."""
GENERATED_ENDINGS = ("_stack", "_flat", "_cell", "_chunk", "_first", "_turn", "_rows")


class ExpressionReader:
    """Reads expressions into a scope's operations; `graph.build` adds the statements."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.roots = {id(trainer): "trainer", id(trainer.actor): "actor"}
        self.roots[id(trainer.learner)] = "learner"
        self.scope = Scope()
        self.top_of_iteration: list[Op] | None = None
        self.loops: list[Loop] = []
        self.conditions = 0
        self.counters: dict[str, int] = {}
        self.used: set[str] = set(RESERVED)
        self.temporary: set[str] = set()
        self.frames: list[Frame] = []
        self.frame: Frame = None  # type: ignore[assignment]  (set by `inline`)
        self.node: ast.AST = ast.Pass()
        self.replay_width: int | None = None
        self.replay_rows = self.sampled_rows = 0
        self.imports: dict[str, tuple[str, str]] = {}
        self.locals: dict[str, str] = {}

    def inline(
        self, method: Any, args: tuple[Struct, ...], keywords: dict[str, Struct], top: bool = False
    ) -> Struct:
        """Reads a function in place of its call."""
        raise NotImplementedError

    # ---- expressions -----------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Struct:
        """What an expression stands for; emits the operations that compute it."""
        struct = self._structure(node)
        if struct is not None:
            return struct
        known, value = self.frame.static(node)
        if known and not is_array(value):
            return Static(value)
        return self._glue(node)

    def _structure(self, node: ast.expr) -> Struct | None:
        """Names, tuples, dictionaries, their parts and calls of msrl; None for anything else."""
        if isinstance(node, ast.Name) and node.id in self.frame.names:
            struct = self.frame.names[node.id]
            if isinstance(struct, Gone):
                self.frame.fail(node, f"{struct.why} (`{node.id}`)")
            return None if isinstance(struct, Static) and is_array(struct.value) else struct
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self._elements(node.elts))
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Subscript):
            return self.part_of(node)
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)
            and self.is_tuple(node.left)
            and self.is_tuple(node.right)
        ):
            return self.expression(node.left) + self.expression(node.right)
        if isinstance(node, ast.IfExp):
            known, value = self.frame.static(node.test)
            return self.expression(node.body if value else node.orelse) if known else None
        if isinstance(node, ast.Call):
            name = self.msrl_call(node)
            if name is not None:
                return self._call(name, node)
            if self.gets_msrl(node):
                return self._inlined(node)
        return None

    def is_tuple(self, node: ast.expr) -> bool:
        """Whether an expression is a tuple whose parts are known one by one."""
        return isinstance(node, ast.Tuple) or (
            isinstance(node, ast.Name) and isinstance(self.frame.names.get(node.id), tuple)
        )

    def part_of(self, node: ast.Subscript) -> Struct | None:
        """A part of a tuple, a dictionary or a result just computed; None for anything else."""
        base = None
        if isinstance(node.value, (ast.Name, ast.Subscript, ast.Call)):
            base = self._structure(node.value)
        if isinstance(base, Static):
            return None
        if isinstance(base, Var) and not isinstance(node.value, ast.Name):
            # Computed just now: its operation must not be emitted a second time.
            reads = [base.name]
            key = ast.unparse(self._substitute(node.slice, reads))
            return self._emit_glue(f"{base.name}[{key}]", reads)
        if not isinstance(base, (tuple, dict)):
            return None
        key = node.slice
        if isinstance(key, ast.Slice):
            bounds = [
                None if p is None else self.known(p) for p in (key.lower, key.upper, key.step)
            ]
            index: Any = slice(*bounds)
        else:
            index = self.known(key)
        try:
            return base[index]
        except (KeyError, IndexError, TypeError):
            has = (
                f"the keys {', '.join(map(repr, base))}"
                if isinstance(base, dict)
                else (f"{len(base)} parts")
            )
            self.frame.fail(node, f"element {index!r} of what has {has}")

    def _glue(self, node: ast.expr) -> Var:
        reads: list[str] = []
        return self._emit_glue(ast.unparse(self._substitute(node, reads)), reads)

    def _emit_glue(self, text: str, reads: list[str]) -> Var:
        target = self._temporary("value")
        self.emit("glue", (target,), (text,), reads=tuple(reads))
        return Var(target)

    def condition(self, test: ast.expr) -> Static | tuple[str, tuple[str, ...]]:
        """A condition known now, or its text over variables and what it reads.

        What only depends on loop indices stays an expression; anything else is computed first, so
        that one decision holds wherever it is looked at.
        """
        reads: list[str] = []
        rewritten = self._substitute(test, reads)
        if isinstance(rewritten, ast.Constant):
            return Static(rewritten.value)
        text = ast.unparse(rewritten)
        indices = {loop.index for loop in self.loops}
        simple = not any(isinstance(n, (ast.Call, ast.Attribute)) for n in ast.walk(rewritten))
        if not (simple and set(reads) <= indices) and text not in reads:
            text = self._emit_glue(text, reads).name
            reads = [text]
        return text, tuple(dict.fromkeys(reads))

    def _elements(self, nodes: list[ast.expr]) -> Iterator[Struct]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.expression(node.value)
                if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
                    value = tuple(map(Static, value.value))
                if not isinstance(value, tuple):
                    self.frame.fail(
                        node,
                        "`*` of something that is not a tuple of known length",
                        "unpack it first: a, b = value",
                    )
                yield from value
            else:
                yield self.expression(node)

    def _dict(self, node: ast.Dict) -> dict[str, Struct]:
        result: dict[str, Struct] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            part = self.expression(value)
            if key is None:
                if not isinstance(part, dict):
                    self.frame.fail(value, "`**` of something that is not a dictionary")
                result |= part
            else:
                result[str(self.known(key))] = part
        return result

    # ---- calls -----------------------------------------------------------------------------

    def msrl_call(self, call: ast.Call) -> str | None:
        """The name of the called method of msrl, if it is one."""
        func = call.func
        if isinstance(func, ast.Attribute) and self.frame.is_msrl(func.value):
            return func.attr
        return None

    def gets_msrl(self, call: ast.Call) -> bool:
        """Whether a call passes msrl on, so that the function is inlined."""
        values = [*call.args, *(k.value for k in call.keywords)]
        return any(self.frame.is_msrl(value) for value in values)

    def _inlined(self, node: ast.Call) -> Struct:
        keywords = {}
        for item in node.keywords:
            if item.arg is None:
                self.frame.fail(item.value, "`**` in a call that passes msrl on")
            keywords[item.arg] = self.expression(item.value)
        method = self._method(node.func)
        if method is None:
            self.frame.fail(
                node,
                f"passing msrl to `{ast.unparse(node.func)}`, which is not a "
                "method or a function that can be found now",
            )
        return self.inline(method, tuple(self._elements(node.args)), keywords)

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

    def _call(self, name: str, node: ast.Call) -> Struct:
        if name in ("iterations", "steps", "epochs", "minibatches"):
            self.frame.fail(node, f"msrl.{name} outside the head of a `for`")
        if name not in CALLS:
            self.frame.fail(node, f"msrl.{name}", f"msrl has {', '.join(sorted(CALLS))}")
        if node.keywords and name not in REDUCTIONS:
            self.frame.fail(
                node.keywords[0].value,
                f"a keyword argument of msrl.{name}",
                "its arguments are positional",
            )
        if self.conditions and name in UNCONDITIONAL:
            self.frame.fail(
                node,
                f"msrl.{name} under a condition that is known only at run time",
                "call it always and choose between results with ops.where",
            )
        if name == "boundary":
            return self._boundary(node)
        if name == "agent_learn":
            args = tuple(self._elements(node.args))
            return self.inline(self.trainer.learner.learn, (Static(MSRL), *args), {})
        if name in ("gradient", "update"):
            return self._learner_call(name, node)
        if name == "report":
            return self._report(node)
        if name in REDUCTIONS:
            return self._reduction(name, node)
        texts, reads = self._texts(list(self._elements(node.args)), node)
        return self._component_call(name, texts, reads, node)

    def _component_call(self, name: str, texts: list, reads: list, node: ast.Call) -> Struct:
        if name == "env_steps":
            if not self.loops:
                self.frame.fail(node, "msrl.env_steps() outside msrl.iterations()")
            index, target = self.loops[0].index, self._temporary("value")
            self.emit("env_steps", (target,), (index,), reads=(index,))
            return Var(target)
        wanted = {"env_reset": 0, "env_step": 1, "replay_sample": 0}.get(name, len(texts))
        if len(texts) != wanted:
            self.frame.fail(node, f"msrl.{name} with {len(texts)} arguments, expected {wanted},")
        noisy = {"env_reset": "env", "env_step": "env", "agent_act": "actor"}.get(name)
        if noisy:
            noise = self._noise(name, noisy, node)
            texts, reads = [*texts, noise], [*reads, noise]
        effects, writes = EFFECTS_OF[name]
        attrs: tuple = ()
        targets: tuple[str, ...] = ()
        if name == "env_step":
            targets = tuple(self._temporary(output) for output in ENV_STEP_OUTPUTS)
        elif name == "replay_sample":
            if self.replay_width is None:
                self.frame.fail(node, "msrl.replay_sample() before any msrl.replay_insert()")
            targets = tuple(self._temporary("sample") for _ in range(self.replay_width))
            attrs = (("rows", self.sampled_rows),)
            self.replay_rows = 0
        elif name == "replay_insert":
            index_reads, attrs = self._insert(texts, node)
            reads = [*reads, *index_reads]
        else:
            targets = (self._temporary("value"),)
        self.emit(name, targets, tuple(texts), reads=(*reads, *effects), writes=writes, attrs=attrs)
        if name in ("env_step", "replay_sample"):
            return tuple(Var(target) for target in targets)
        return Var(targets[0]) if targets else Static(None)

    def _insert(self, texts: list[str], node: ast.Call) -> tuple[list[str], tuple]:
        if self.replay_width not in (None, len(texts)) or not texts:
            self.frame.fail(node, f"inserting {len(texts)} values, elsewhere {self.replay_width},")
        self.replay_width = len(texts)
        loops = self._table_loops()
        index = _flat_index(loops)
        if self.replay_rows:
            index = f"{self.replay_rows} + {index}"
        self.replay_rows += _product(loops)
        self.sampled_rows = self.replay_rows
        return [loop.index for loop in loops], (("index", index), ("rows", _product(loops)))

    def _noise(self, name: str, owner: str, node: ast.AST) -> str:
        """Random numbers of all turns are drawn in one operation at the top of the iteration."""
        loops = self._table_loops()
        table = self.fresh(f"noise_{name.rsplit('_', maxsplit=1)[-1]}")
        self._at_top(
            Op(
                self.name_op("noise"),
                "noise",
                (table,),
                (),
                (),
                self.frame.where(node),
                attrs=(
                    ("purpose", self.name_op(f"{name}_noise")),
                    ("owner", owner),
                    ("rows", _product(loops)),
                ),
            )
        )
        return self._row_of(table, loops)

    def _row_of(self, table: str, loops: list[Loop]) -> str:
        row = self.fresh(f"{table}_row")
        self.emit(
            "index",
            (row,),
            (table, _flat_index(loops)),
            reads=(table, *(loop.index for loop in loops)),
        )
        return row

    def _at_top(self, op: Op) -> None:
        if self.top_of_iteration is None:
            self.scope.items.append(op)
        else:
            index = self.loops[0].index
            self.top_of_iteration.append(replace(op, args=(index,), reads=(index,)))

    def _table_loops(self, exclude: Loop | None = None) -> list[Loop]:
        return [loop for loop in self.loops if loop.kind != "iterations" and loop is not exclude]

    def minibatch(self, loop: Loop, values: Struct, node: ast.AST) -> Struct:
        """The permutations of a loop over minibatches, and the minibatch of this turn."""
        if not isinstance(values, tuple) or not all(isinstance(v, Var) for v in values):
            self.frame.fail(node, "minibatches of something that is not a tuple of arrays")
        if self.conditions or not self.loops or self.loops[0].kind != "iterations":
            self.frame.fail(
                node,
                "msrl.minibatches outside msrl.iterations() or under a condition "
                "that is known only at run time",
            )
        count, num_steps = loop.count, self.trainer.config.num_steps
        assert count is not None
        if num_steps % count:
            raise ProgramError(
                f"{self.frame.where(node)}\n  {count} minibatches of {num_steps} steps: the number "
                f"of minibatches must divide num_steps (for example {_divisor(num_steps, count)})"
            )
        table = self.fresh("permutation")
        rounds = self._table_loops(exclude=loop)
        self._at_top(
            Op(
                self.name_op("permutations"),
                "permutations",
                (table,),
                (),
                (),
                self.frame.where(node),
                attrs=(("rounds", _product(rounds)),),
            )
        )
        row = self._row_of(table, rounds)
        targets = tuple(self._temporary(f"minibatch_{value.name}") for value in values)
        names = tuple(value.name for value in values)
        self.emit(
            "minibatch",
            targets,
            (row, loop.index, *names),
            reads=(row, loop.index, *names),
            attrs=(("count", count),),
        )
        return tuple(Var(target) for target in targets)

    def _boundary(self, node: ast.Call) -> Struct:
        if len(node.args) != 2:
            self.frame.fail(node, "msrl.boundary with other than a name and a value")
        mark = self.known(node.args[0])
        if not isinstance(mark, str):
            self.frame.fail(node.args[0], "a boundary name that is not a constant string")
        site = self.name_op(f"boundary:{mark}")
        value = self.expression(node.args[1])

        def pass_through(part: Struct) -> Struct:
            if isinstance(part, tuple):
                return tuple(pass_through(p) for p in part)
            if isinstance(part, dict):
                return {key: pass_through(p) for key, p in part.items()}
            if isinstance(part, Static):
                return part
            target = self._temporary(
                "".join(c if c.isalnum() else "_" for c in mark) + f"_{part.name}"
            )
            self.emit(
                "boundary",
                (target,),
                (part.name,),
                reads=(part.name,),
                mark=mark,
                attrs=(("site", site),),
            )
            return Var(target)

        return pass_through(value)

    def _learner_call(self, name: str, node: ast.Call) -> Struct:
        minimum = 2 if name == "gradient" else 1
        if len(node.args) < minimum:
            self.frame.fail(node, f"msrl.{name} with {len(node.args)} arguments")
        methods = []
        for arg in node.args[:minimum]:
            path = self._object_path(arg)
            if path is None:
                self.frame.fail(
                    arg,
                    f"msrl.{name} of something that is not `self.name`",
                    "pass a method or a network of the learner by its name",
                )
            methods.append(path)
        texts, reads = self._texts(list(self._elements(node.args[minimum:])), node)
        effects, writes = EFFECTS_OF[name]
        targets = (self._temporary("grads"), self._temporary("means")) if name == "gradient" else ()
        self.emit(
            name,
            targets,
            tuple(texts),
            reads=(*reads, *effects),
            writes=writes,
            attrs=(("objects", tuple(methods)),),
        )
        return tuple(Var(target) for target in targets) if targets else Static(None)

    def _report(self, node: ast.Call) -> Struct:
        value = self.expression(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(value, dict):
            self.frame.fail(node, "msrl.report of something that is not a dictionary of scalars")
        texts, reads = self._texts(list(value.values()), node)
        self.emit("report", (), tuple(texts), reads=tuple(reads), attrs=(("keys", tuple(value)),))
        return Static(None)

    def _reduction(self, name: str, node: ast.Call) -> Struct:
        values = list(self._elements(node.args))
        keep = 0
        for item in node.keywords:
            if item.arg != "keep":
                self.frame.fail(item.value, f"the argument {item.arg!r} of msrl.{name}")
            keep = self.known(item.value)
        for value in values:
            if not isinstance(value, Var):
                self.frame.fail(node, f"msrl.{name} of what is not an array")
        texts, reads = self._texts(values, node)
        targets = tuple(self._temporary("value") for _ in texts)
        self.emit(name, targets, tuple(texts), reads=tuple(reads), attrs=(("keep", keep),))
        return tuple(Var(t) for t in targets) if len(targets) > 1 else Var(targets[0])

    # ---- expressions over variables --------------------------------------------------------

    def _texts(self, values: list[Struct], node: ast.AST) -> tuple[list[str], list[str]]:
        texts, reads = [], []
        for value in values:
            if isinstance(value, Var):
                texts.append(value.name)
                reads.append(value.name)
            elif isinstance(value, Static) and is_literal(value.value):
                texts.append(literal(value.value))
            elif isinstance(value, tuple):
                parts, part_reads = self._texts(list(value), node)
                texts.append(f"({', '.join(parts)},)" if parts else "()")
                reads.extend(part_reads)
            else:
                what = (
                    "a dictionary"
                    if isinstance(value, dict)
                    else (f"a {type(value.value).__name__} in a variable")
                )
                self.frame.fail(
                    node,
                    f"{what} as an operand",
                    "operands are arrays, numbers and tuples of them; call functions "
                    "and methods by their own names",
                )
        return texts, reads

    def _substitute(self, node: ast.expr, reads: list[str]) -> ast.expr:
        return Rewriter(self, reads).visit(copy.deepcopy(node))

    def operand(self, struct: Struct, node: ast.AST, reads: list[str]) -> ast.expr:
        """A value as an expression, adding to `reads` what it uses."""
        texts, used = self._texts([struct], node)
        reads.extend(used)
        return ast.parse(texts[0], mode="eval").body

    def global_name(self, node: ast.Name) -> ast.expr:
        """A global of the function being read, as the generated module will know it."""
        frame = self.frame
        if node.id not in frame.namespace:
            if node.id not in BUILTINS:
                self.frame.fail(node, f"the unknown name {node.id!r}")
            return node
        module = vars(sys.modules[frame.module])
        if node.id not in module:
            self.frame.fail(node, f"{node.id!r}, a name of an enclosing function,")
        for alias, (home, name) in self.imports.items():
            if name == node.id and vars(sys.modules[home])[name] is module[node.id]:
                return ast.Name(alias, ast.Load())
        alias = self.fresh(node.id)
        self.imports[alias] = (frame.module, node.id)
        return ast.Name(alias, ast.Load())

    def import_list(self) -> tuple[tuple[str, str, str], ...]:
        """For each global that expressions use: its name there, its module, its name in that."""
        return tuple((alias, *source) for alias, source in sorted(self.imports.items()))

    def object_path(self, node: ast.expr, reads: list[str]) -> ast.expr | None:
        """`self.network.value` as an expression on the trainer, the actor or the learner."""
        path = self._object_path(node)
        if path is None:
            return None
        known, value = self.frame.static(node)
        if known and (isinstance(getattr(value, "__self__", value), nn.Cell) or is_array(value)):
            reads.append(PARAMETERS)
        return ast.parse(path, mode="eval").body

    def _object_path(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        base = node
        while isinstance(base, ast.Attribute):
            parts.insert(0, base.attr)
            base = base.value
        struct = self.frame.names.get(base.id) if isinstance(base, ast.Name) else None
        if not isinstance(struct, Static):
            return None
        owner, path = struct.value, self.roots.get(id(struct.value))
        if path is None:
            return None
        for part in parts:
            if not hasattr(owner, part):
                self.frame.fail(node, f"`{type(owner).__name__}` has no `{part}`, so this")
            owner = getattr(owner, part)
            path = self.roots.get(id(owner), f"{path}.{part}")
        return path

    def known(self, node: ast.expr) -> Any:
        """The value of an expression that must be known now."""
        known, value = self.frame.static(node)
        if not known:
            self.frame.fail(
                node,
                "a value that is only known at run time, where configuration or "
                "a constant is expected,",
            )
        return value

    # ---- emitting --------------------------------------------------------------------------

    def constant(self, number: Any) -> Var:
        """A number in a variable that changes later, such as a sum that starts at 0."""
        target = self._temporary("value")
        self.emit("constant", (target,), (literal(number),))
        return Var(target)

    def copy(self, value: Var) -> Var:
        """A variable of its own for a value."""
        name = self._temporary(value.name)
        self.emit("copy", (name,), (value.name,), reads=(value.name,))
        return Var(name)

    def unpack(self, value: Var, count: int) -> tuple[Var, ...]:
        """The parts of the result of an operation."""
        last = self.scope.items[-1] if self.scope.items else None
        names = tuple(self._temporary("part") for _ in range(count))
        if isinstance(last, Op) and last.targets == (value.name,) and value.name in self.temporary:
            self.scope.items[-1] = replace(last, targets=names)
        else:
            self.emit("glue", names, (value.name,), reads=(value.name,))
        return tuple(map(Var, names))

    def variables(self, struct: Struct) -> Iterator[Var]:
        """The variables in a structure."""
        if isinstance(struct, Var):
            yield struct
        elif isinstance(struct, (tuple, dict)):
            for part in struct.values() if isinstance(struct, dict) else struct:
                yield from self.variables(part)

    def emit(self, kind: str, targets: tuple, args: tuple, **rest: Any) -> None:
        """Appends an operation to the body being read."""
        rest["reads"] = tuple(dict.fromkeys(rest.get("reads", ())))
        self.scope.items.append(
            Op(self.name_op(kind), kind, targets, args, where=self.frame.where(self.node), **rest)
        )

    def name_op(self, kind: str) -> str:
        """The next name of a kind of operation, `gradient#2`."""
        self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"{kind}#{self.counters[kind]}"

    def fresh(self, name: str) -> str:
        """A name that no variable has yet."""
        if name.endswith(("_", *GENERATED_ENDINGS)):
            name = f"{name.rstrip('_')}_1"
        candidate, number = name, 1
        while candidate in self.used:
            number += 1
            candidate = f"{name}_{number}"
        self.used.add(candidate)
        return candidate

    def _temporary(self, name: str) -> str:
        name = self.fresh(name)
        self.temporary.add(name)
        return name


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
        text = (
            f"({text}) * {loop.count} + {loop.index}"
            if "+" in text
            else (f"{text} * {loop.count} + {loop.index}")
        )
    return text


def _divisor(total: int, near: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - near))
