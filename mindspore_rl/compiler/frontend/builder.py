"""Program builder: operations, names and open bodies read so far."""

import ast
import contextlib
import copy
import importlib
import keyword
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn

from mindspore_rl.compiler.frontend.implied import Implied
from mindspore_rl.compiler.frontend.records import parts_of, rebuilt
from mindspore_rl.compiler.frontend.scope import (
    BUILTINS,
    SUPPORTED,
    THROWN_AWAY,
    Frame,
    Rows,
    Scope,
    Struct,
    Var,
)
from mindspore_rl.compiler.ir.ir import REGIONS, Expr, Loop, Op, Where, num_turns, site_of, walk
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.platform.names import unused

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
    "run",
    "serve",
    "sender",
    *keyword.kwlist,
    *BUILTINS,
}
"""Names that are reserved for generated modules."""
CLASSES = re.compile(f"({'|'.join(name.capitalize() for name in REGIONS)})[0-9]*")
"""Class names of generated cells."""
ARRAYS: tuple[str, ...] = ("env_reset", "env_step", "env_index", "agent_index", "gradient")
ARRAYS += ("uniform", "constant", "minibatch", "replay_sample", "replay_draw")
"""Kinds of operations, beside reductions, whose results are never None."""
UNROLLED = ("gradient", "update", "boundary", "replay_sample", "uniform", "minibatches")
"""Calls with a mark or with random numbers that may stand in an unrolled loop."""
_BY_TURN = ("gradient", "update", "boundary", "replay_draw")
"""Kinds of operations that have a number by place and turn in an unrolled loop."""
GENERATED_ENDINGS = ("_stack", "_flat", "_cell", "_bundle", "_first", "_turn", "_rows", "_team")

SAME_SIZES: tuple[str, ...] = ("abs", "astype", "bool", "clamp", "exp", "float", "int", "log")
SAME_SIZES += ("ones_like", "relu", "sigmoid", "sign", "softplus", "sqrt", "square")
SAME_SIZES += ("stop_gradient", "tanh", "zeros_like")
"""Operators and methods whose result has the sizes of their first argument."""
REDUCES_LAST = ("amax", "amin", "mean", "prod", "squeeze", "std", "sum", "var")
"""Operators that leave an axis out, which they get."""
BY_ELEMENT = ("logical_and", "logical_not", "logical_or", "maximum", "minimum", "where")
"""Operators whose result has the sizes of their arguments."""
ONE_ARRAY = (*SAME_SIZES, *REDUCES_LAST, *BY_ELEMENT)
ONE_ARRAY += ("cat", "concat", "gather", "matmul", "one_hot", "pow", "softmax", "stack")
"""Operators whose result is one array."""
_POSITION: tuple[str, ...] = ("scope", "conditions", "perhaps", "place")
_POSITION += ("unrolled", "unrolled_in", "unrolled_apart")


@dataclass
class Draft:
    """A program under construction, with the reader's position in it.

    Attributes:
        frames: the functions being read, the innermost last.
        scope: the body to which operations are added.
        loops: the open loops, outermost first.
        conditions: how many run-time conditions are open, including flags of loops that may end
            early.
        perhaps: how many `if` on a run-time condition are open.
        unrolled: how many unrolled loops and comprehensions of several turns are open.
        unrolled_in: the number of loops and of run-time conditions around the outermost unrolled
            loop; None outside of one.
        unrolled_apart: how many open unrolled loops have another loop between them and that one.
        arrays: variables that hold an array or a tuple, and never None.
        tuples: variables that hold tuples of a length not known now: gradients, and what a loss
            returns.
        singles: variables that hold the one mean of a loss as a number, also its first part.
        widths: how many parts those have of which it is written, see `functions.width`; also what
            `act` returns.
        place: the places in the file of the calls being read, outermost first.
        used: names that are taken.
        temporary: names of results, which an assignment may replace.
        imports: globals that expressions use: name in the graph to (module, name in the module).
        locals: variables of `train` and the names they have in its source.
        implied: marks that are set where the program has none.
        left_out: see `Program`, without values.
        num_steps: steps of an iteration.
        outer: the lines of `place` at each operation and boundary, by name.
        num_envs: environments.
        known_result: reads a call of known numbers whose result is known; else returns None.
    """

    frames: list[Frame] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)
    loops: list[Loop] = field(default_factory=list)
    conditions: int = 0
    perhaps: int = 0
    unrolled: int = 0
    unrolled_in: tuple[int, int] | None = None
    unrolled_apart: int = 0
    arrays: set[str] = field(default_factory=set)
    tuples: set[str] = field(default_factory=set)
    singles: set[str] = field(default_factory=set)
    widths: dict[str, int] = field(default_factory=dict)
    place: tuple[tuple[str, int, int], ...] = ()
    used: set[str] = field(default_factory=lambda: set(RESERVED))
    temporary: set[str] = field(default_factory=set)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    implied: Implied = field(default_factory=dict)
    left_out: dict[Where, None] = field(default_factory=dict)
    num_steps: int = 0
    outer: dict[str, tuple[int, ...]] = field(default_factory=dict)
    num_envs: int = 0
    known_result: Callable[[ast.Call], Struct | None] = lambda _: None
    _counters: dict[str, int] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)
    _turns: dict[tuple, list[int]] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        """The function being read."""
        return self.frames[-1]

    def fail(self, node: ast.AST, construct: str, hint: str = SUPPORTED) -> NoReturn:
        """Calls `Frame.fail` of the function being read."""
        self.frame.fail(node, construct, hint)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Restores the reader's position if a statement is refused."""
        frames = [(frame, frame.nested) for frame in self.frames]
        position = {name: getattr(self, name) for name in _POSITION}
        loops = list(self.loops)
        try:
            yield
        except Exception:
            self.frames[:] = [frame for frame, _ in frames]
            for frame, nested in frames:
                frame.nested = nested
            for name, value in position.items():
                setattr(self, name, value)
            self.loops[:] = loops
            raise

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Leaves nothing of what was read if it is refused."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "scope"}
        before = {name: copy.copy(value) for name, value in values.items()}
        items, kept = self.scope.items, list(self.scope.items)
        try:
            with self.attempt():
                yield
        except Exception:
            for name, value in before.items():
                setattr(self, name, value)
            items[:] = kept
            raise

    @contextlib.contextmanager
    def turns(self, count: int) -> Iterator[None]:
        """Reads the turns of an unrolled loop or comprehension; one turn is read as if alone."""
        outer, several = self.unrolled_in, count > 1
        if several and outer is None:
            self.unrolled_in = (len(self.loops), self.conditions)
        apart = several and outer is not None and outer[0] != len(self.loops)
        self.unrolled += several
        self.unrolled_apart += apart
        try:
            yield
        finally:  # also at a `return`
            self.unrolled -= several
            self.unrolled_apart -= apart
            self.unrolled_in = outer

    # ---- operations ------------------------------------------------------------------------

    def emit(
        self, kind: str, targets: tuple, args: tuple, reads: Sequence[str] = (), **rest: Any
    ) -> tuple[Var, ...]:
        """Adds an operation, with the effects of its kind. Returns: its results."""
        if kind in ARRAYS or OPERATIONS[kind].reduces:
            self.arrays |= set(targets)
        row, where = OPERATIONS[kind], self.frame.where(self.frame.node)
        read, name = tuple(dict.fromkeys((*reads, *row.reads))), self.name_op(kind)
        given = tuple(map(Expr, args))
        self.scope.items.append(Op(name, kind, targets, given, read, where, row.writes, **rest))
        return tuple(map(Var, targets))

    def result(
        self, kind: str, given: str | ast.expr, reads: Sequence[str], name: str = "value"
    ) -> Var:
        """Adds an operation with one result, a new variable."""
        target = self.new_temporary(name)
        computed = isinstance(given, (ast.BinOp, ast.UnaryOp, ast.Compare))
        if computed or (isinstance(given, ast.expr) and is_operators(given)):
            self.arrays.add(target)
        return self.emit(kind, (target,), (given,), reads=tuple(reads))[0]

    def unpack(self, value: Var, count: int) -> tuple[Var, ...]:
        """Splits the result of an operation into `count` variables."""
        if count == 1 and value.name in self.singles:
            return (value,)
        if count == 1:
            return (self.result("glue", f"{value.name}[0]", (value.name,)),)
        last = self.scope.items[-1] if self.scope.items else None
        names = tuple(self.new_temporary("part") for _ in range(count))
        if value.name in self.arrays - self.tuples:
            called = self.imported("mindspore_rl.rl.operators", "rows")
            self.emit("glue", names, (f"{called}({value.name}, {count})",), reads=(value.name,))
        elif (
            isinstance(last, Op)
            and OPERATIONS[last.kind].splits
            and last.targets == (value.name,)
            and value.name in self.temporary
        ):
            self.scope.items[-1] = replace(last, targets=names)
        else:
            self.emit("glue", names, (value.name,), reads=(value.name,))
        return tuple(map(Var, names))

    def apart(self, value: Struct) -> Struct:
        """Splits what a loss or `act` returns if its number of parts is written."""
        if not isinstance(value, Var) or value.name not in self.widths:
            return value
        self.temporary.discard(value.name)  # it is read several times
        return self.unpack(value, self.widths[value.name])

    def kept(self, struct: Struct, only: Container[str] | None = None) -> Struct:
        """Copies the variables of a value, which assignments may change later.

        Args:
            struct: the value.
            only: the variables that change; None: all may.
        """
        if isinstance(struct, (tuple, dict)):
            return rebuilt(struct, (self.kept(part, only) for part in parts_of(struct)))
        if not isinstance(struct, Var) or not (only is None or struct.name in only):
            return struct
        name = (struct.name,)
        (copied,) = self.emit("copy", (self.fresh(struct.name),), name, reads=name)
        self.follow(struct.name, copied.name)
        return copied

    def marked(self, mark: str, value: Struct) -> Struct:
        """Adds the boundary of a mark around every array of a value.

        The site of a turn of an unrolled loop has the number of passes there at a time, by the
        loops inside: `boundary:gradient#1.2.40`; 0: it is known only in the run.
        """
        site = self.name_op(f"boundary:{mark}")
        if self.unrolled_in is not None and (inside := self.loops[self.unrolled_in[0] :]):
            site += f".{num_turns(inside) if self.conditions == self.unrolled_in[1] else 0}"

        def pass_through(part: Struct) -> Struct:
            if isinstance(part, tuple):
                return rebuilt(part, map(pass_through, part))
            if isinstance(part, dict):
                return {key: pass_through(p) for key, p in part.items()}
            if not isinstance(part, Var):
                return part
            text = "".join(c if c.isalnum() else "_" for c in mark)
            # A turn of an unrolled loop keeps its own variable: records go by variables.
            named = self.fresh if self.unrolled else self.new_temporary
            target, name = named(f"{text}_{part.name}"), (part.name,)
            self.follow(part.name, target)
            (passed,) = self.emit(
                "boundary", (target,), name, reads=name, mark=mark, attrs=(("site", site),)
            )
            return passed

        return pass_through(value)

    def taken(self, kind: str, values: tuple[Struct, ...]) -> tuple[Struct, ...]:
        """The arguments of the next operation of a kind, with the mark that it implies."""
        return self._implied(self._next(kind), OPERATIONS[kind].takes, values)

    def implies(self, kind: str) -> bool:
        """Returns whether results of the next operation of a kind will have its implied mark."""
        return (self._next(kind), OPERATIONS[kind].gives) in self.implied

    def _next(self, kind: str) -> str:
        number, turn = self._counters.get(kind, 0) + 1, 1
        if not self._has_turns(kind):
            return f"{kind}#{number}"
        if (kind, self.place) in self._turns:
            number, turn = self._turns[kind, self.place]
            turn += 1
        return f"{kind}#{number}.{turn}"

    def _has_turns(self, kind: str) -> bool:
        """Returns whether operations of a kind are numbered by their place and turn now."""
        by_turn = kind.partition(":")[0] in _BY_TURN or kind.endswith("_noise")
        return self.unrolled > 0 and by_turn

    def given(self, kind: str, values: tuple[Struct, ...]) -> tuple[Struct, ...]:
        """The results of the last operation of a kind, with the mark that it implies."""
        return self._implied(self._last[kind], OPERATIONS[kind].gives, values)

    def _implied(self, op: str, mark: str, values: tuple[Struct, ...]) -> tuple[Struct, ...]:
        places = self.implied.get((op, mark), ())
        if not places:
            return values
        passed = self.marked(mark, tuple(values[place] for place in places))
        chosen = dict(zip(places, passed, strict=True))
        return tuple(chosen.get(place, value) for place, value in enumerate(values))

    def sizes_of(self, name: str, seen: tuple[str, ...] = ()) -> tuple[int, ...] | None:
        """Returns the first sizes of a sample, a minibatch, or what operators make of them.

        `()` for one number; None: none is known now. A variable keeps its sizes.
        """
        made = () if name in seen else self._makers(name)
        return _longest(self._sizes_made(op, (*seen, name)) for op in made)

    def _sizes_made(self, op: Op, seen: tuple[str, ...]) -> tuple[int, ...] | None:
        steps = op.attr.get("steps", 0)
        windows = (steps,) if steps else ()
        if op.kind == "replay_sample":
            return self.num_steps, Rows(self.num_envs)
        if op.kind == "replay_draw":
            count = op.attr.get("count") or op.attr["per_env"] * self.num_envs
            return Rows(count), *windows
        if op.kind == "minibatch":
            count = self.num_steps * self.num_envs // op.attr["count"] // (steps or 1)
            return Rows(count), *windows
        if OPERATIONS[op.kind].reduces:
            return None if op.attr["keep"] else ()
        passes = op.kind in ("boundary", "copy", "glue")
        return self._sizes(op.args[0].tree, seen) if passes else None

    def _sizes(self, node: ast.expr, seen: tuple[str, ...]) -> tuple[int, ...] | None:
        """Returns the first sizes of an expression, see `sizes_of`."""
        match node:
            case ast.Constant(int() | float()):
                return ()
            case ast.Name(name):
                return self.sizes_of(name, seen)
            case ast.UnaryOp(operand=operand):
                return self._sizes(operand, seen)
            case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
                return self._sizes_of_all([left, right], seen)
            case ast.Call(ast.Attribute(_, name), args, []) if name in BY_ELEMENT:
                return self._sizes_of_all(args, seen)
            case ast.Call(ast.Attribute(owner, name), args) if name in SAME_SIZES:
                return _longest(self._sizes(part, seen) for part in (owner, *args[:1]))
            case ast.Call(ast.Attribute(owner, name), args):
                return self._sizes_by_axes(name, owner, args, seen)
        return None

    def _sizes_by_axes(
        self, name: str, owner: ast.expr, args: list[ast.expr], seen: tuple[str, ...]
    ) -> tuple[int, ...] | None:
        """Returns the sizes of `x.sum(-1)` and `x.swapaxes(0, 1)`, also as `ops.sum(x, -1)`."""
        sizes = self._sizes(owner, seen)
        if sizes is None and args:
            sizes, args = self._sizes(args[0], seen), args[1:]
        try:
            axes = tuple(map(ast.literal_eval, args))
        except ValueError:
            return None
        if not sizes:
            return None
        if name in REDUCES_LAST and axes in ((-1,), (-1, False)):
            return sizes[:-1] or None  # the last axis may be the last of the known ones
        if name == "swapaxes" and set(axes) == {0, 1} and len(sizes) > 1:
            return sizes[1], sizes[0], *sizes[2:]
        return None

    def _sizes_of_all(self, nodes: list[ast.expr], seen: tuple[str, ...]) -> tuple[int, ...] | None:
        """Returns the sizes of what an operator makes of expressions, element by element."""
        found = {self._sizes(node, seen) for node in nodes}
        longest = _longest(found)
        return longest if found <= {longest, ()} else None

    def beside_batch(self, value: Struct) -> Struct:
        """Marks what `agent_learn` or `report` gets that comes from the environments or the actor.

        Values that come through the replay have their marks.
        """
        if isinstance(value, (tuple, dict)):
            return rebuilt(value, map(self.beside_batch, parts_of(value)))
        if isinstance(value, Var) and self._components(value.name) <= {"environment", "actor"}:
            return self.marked("transition", value)
        return value

    def _components(self, name: str) -> set[str]:
        """Returns the components that a variable comes from; its mark, if it has passed one."""
        found, seen, waiting = set(), {name}, [name]
        while waiting:
            for op in self._makers(waiting.pop()):
                if op.component != "glue":
                    found.add(op.component)
                elif op.mark == "transition":
                    found.add(op.mark)
                else:
                    waiting += set(op.reads) - seen
                    seen |= set(op.reads)
        return found or {"glue"}

    def _makers(self, name: str) -> list[Op]:
        """Returns the operations read so far that give a variable."""
        made: list[Op] = []
        scope: Scope | None = self.scope
        while scope is not None:
            made += [op for op, _ in walk(tuple(scope.items)) if name in op.targets]
            scope = scope.outer
        return made

    def follow(self, old: str, new: str) -> None:
        """Notes that a variable gets the value of another."""
        for known in (self.arrays, self.tuples, self.singles):
            if old in known:
                known.add(new)
        if old in self.widths:
            self.widths[new] = self.widths[old]

    # ---- names -----------------------------------------------------------------------------

    def name_op(self, kind: str) -> str:
        """Returns the next name of a kind of operation, such as `gradient#2`.

        In an unrolled loop a place of the file has one number for all turns, as in the plain loop:
        `gradient#2.1`, `gradient#2.2`.
        """
        name = self._last[kind] = self._next(kind)
        self.outer.setdefault(site_of(name), tuple(line for _, line, _ in self.place))
        if not self._has_turns(kind):
            self._counters[kind] = self._counters.get(kind, 0) + 1
        elif (kind, self.place) in self._turns:
            self._turns[kind, self.place][1] += 1
        else:
            self._counters[kind] = self._counters.get(kind, 0) + 1
            self._turns[kind, self.place] = [self._counters[kind], 1]
        return name

    def fresh(self, name: str) -> str:
        """Returns a name that no variable has yet, derived from `name`."""
        if name.endswith(("_", *GENERATED_ENDINGS)) or CLASSES.fullmatch(name):
            name = f"{name.rstrip('_')}_1"
        return unused(name, self.used)

    def new_temporary(self, name: str) -> str:
        """Returns a new name for a result, which an assignment may replace."""
        name = self.fresh(name)
        self.temporary.add(name)
        return name

    def global_name(self, node: ast.Name) -> ast.expr:
        """Returns a global of the function being read under its name in the generated module."""
        frame = self.frame
        if node.id not in frame.namespace:
            if node.id == THROWN_AWAY:
                self.fail(node, "reading `_`, which is what is thrown away,", "give it a name")
            if node.id not in BUILTINS:
                hint = "set it before, also before a loop or condition that sets it further on"
                self.fail(node, f"the unknown name {node.id!r}", hint)
            return node
        module = vars(sys.modules[frame.module])
        if node.id not in module:
            self.fail(node, f"{node.id!r}, a name of an enclosing function,")
        return ast.Name(self.imported(frame.module, node.id), ast.Load())

    def imported(self, module: str, name: str) -> str:
        """Imports a global of a module and returns its name in the generated module."""
        value = vars(importlib.import_module(module))[name]
        for alias, (home, known) in self.imports.items():
            if known == name and vars(sys.modules[home])[known] is value:
                return alias
        alias = self.fresh(name)
        self.imports[alias] = (module, name)
        return alias


def _longest(sizes: Iterable[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """Returns the sizes that say the most of those that are known; None if none are."""
    return max((one for one in sizes if one is not None), key=len, default=None)


def is_operators(value: ast.expr | None) -> bool:
    """Returns whether a value is an operator's result, and surely no sum of tuples."""
    match value:
        case ast.Call(ast.Attribute(owner, name)) if name in ONE_ARRAY:
            return ast.unparse(owner) == "ops" or is_operators(owner)
        case ast.Call(ast.Attribute(owner, "reshape")):
            return is_operators(owner)
    if not isinstance(value, ast.BinOp):
        return isinstance(value, ast.UnaryOp)
    sides = (value.left, value.right)
    return not isinstance(value.op, ast.Add) or any(map(is_operators, sides))
