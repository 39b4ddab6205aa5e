"""Calls of msrl: what each checks, and the operations that it becomes."""

import ast
from dataclasses import replace

from mindspore_rl.errors import ProgramError
from mindspore_rl.graph.ir import Loop, Op
from mindspore_rl.graph.operations import ENV_STEP_OUTPUTS, OPERATIONS
from mindspore_rl.graph.read.expressions import ExpressionReader
from mindspore_rl.graph.read.frame import MSRL, Static, Struct, Var
from mindspore_rl.names import RULE, is_name


class Calls:
    """Reads calls of msrl.

    Attributes:
        top_of_iteration: what is computed once an iteration, before everything else; None outside
            `iterations`.
        before_iterations: what is set once, before `iterations`.
        left_out: whether a loop over minibatches was read that a condition may leave out.
        replay_width: values of a record; None before the first insertion.
    """

    def __init__(self, reader: ExpressionReader) -> None:
        self.reader = reader
        self.top_of_iteration: list[Op] | None = None
        self.before_iterations: list[Op] = []
        self.left_out = False
        self.replay_width: int | None = None

    def read(self, name: str, node: ast.Call) -> Struct:
        """What a call of `msrl.name` stands for."""
        if name in ("iterations", "steps", "epochs", "minibatches"):
            self.reader.frame.fail(node, f"msrl.{name} outside the head of a `for`")
        calls = [name for name, kind in OPERATIONS.items() if kind.call]
        if name not in calls:
            self.reader.frame.fail(node, f"msrl.{name}", f"msrl has {', '.join(sorted(calls))}")
        if node.keywords and not OPERATIONS[name].reduces:
            self.reader.frame.fail(
                node.keywords[0].value,
                f"a keyword argument of msrl.{name}",
                "its arguments are positional",
            )
        if self.reader.conditions and OPERATIONS[name].always:
            self.reader.frame.fail(
                node,
                f"msrl.{name} under a condition that is known only at run time, or in a loop that "
                "`break` may end then,",
                "call it always and choose between results with ops.where",
            )
        if name == "boundary":
            return self._boundary(node)
        if name == "agent_learn":
            args = tuple(self.reader.elements(node.args))
            return self.reader.inline(self.reader.trainer.learner.learn, (Static(MSRL), *args), {})
        if name in ("gradient", "update"):
            return self._learner_call(name, node)
        if name == "report":
            return self._report(node)
        if OPERATIONS[name].reduces:
            return self._reduction(name, node)
        texts, reads = self.reader.texts(list(self.reader.elements(node.args)), node)
        return self._component_call(name, texts, reads, node)

    def _component_call(self, name: str, texts: list, reads: list, node: ast.Call) -> Struct:
        if name == "env_steps":
            if not self.reader.loops:
                self.reader.frame.fail(node, "msrl.env_steps() outside msrl.iterations()")
            index, target = self.reader.loops[0].index, self.reader.new_temporary("value")
            self.reader.emit("env_steps", (target,), (index,), reads=(index,))
            return Var(target)
        kind = OPERATIONS[name]
        wanted = len(texts) if kind.arguments is None else kind.arguments
        if len(texts) != wanted:
            self.reader.frame.fail(
                node, f"msrl.{name} with {len(texts)} arguments, expected {wanted},"
            )
        if kind.noise:
            owner = kind.noise if self.reader.trainer.spec.teams or kind.noise == "env" else "actor"
            noise = self._noise(name, owner, node)
            texts, reads = [*texts, noise], [*reads, noise]
        targets: tuple[str, ...] = ()
        if name == "env_step":
            targets = tuple(self.reader.new_temporary(output) for output in ENV_STEP_OUTPUTS)
        elif name == "replay_sample":
            if self.replay_width is None:
                self.reader.frame.fail(node, "msrl.replay_sample() before any msrl.replay_insert()")
            targets = tuple(self.reader.new_temporary("sample") for _ in range(self.replay_width))
        elif name == "replay_insert":
            self._check_width(texts, node)
        else:
            targets = (self.reader.new_temporary("value"),)
        self.reader.emit(
            name, targets, tuple(texts), reads=(*reads, *kind.reads), writes=kind.writes
        )
        if name in ("env_step", "replay_sample"):
            return tuple(Var(target) for target in targets)
        return Var(targets[0]) if targets else Static(None)

    def _check_width(self, texts: list[str], node: ast.Call) -> None:
        if self.replay_width not in (None, len(texts)) or not texts:
            self.reader.frame.fail(
                node, f"inserting {len(texts)} values, elsewhere {self.replay_width},"
            )
        self.replay_width = len(texts)

    def _noise(self, name: str, owner: str, node: ast.AST) -> str:
        """Random numbers of all turns are drawn in one operation at the top of the iteration."""
        loops = self._table_loops()
        table = self.reader.fresh(f"noise_{name.rsplit('_', maxsplit=1)[-1]}")
        self._at_top(
            Op(
                self.reader.name_op("noise"),
                "noise",
                (table,),
                (),
                (),
                self.reader.frame.where(node),
                attrs=(
                    ("purpose", self.reader.name_op(f"{name}_noise")),
                    ("owner", owner),
                    ("rows", _product(loops)),
                ),
            )
        )
        return self._row_of(table, loops)

    def _row_of(self, table: str, loops: list[Loop]) -> str:
        row = self.reader.fresh(f"{table}_row")
        self.reader.emit(
            "index",
            (row,),
            (table, _flat_index(loops)),
            reads=(table, *(loop.index for loop in loops)),
        )
        return row

    def _at_top(self, op: Op) -> None:
        if self.top_of_iteration is None:
            self.reader.scope.items.append(op)
        else:
            index = self.reader.loops[0].index
            self.top_of_iteration.append(replace(op, args=(index,), reads=(index,)))

    def _table_loops(self, exclude: Loop | None = None) -> list[Loop]:
        return [
            loop for loop in self.reader.loops if loop.kind != "iterations" and loop is not exclude
        ]

    def minibatch(self, loop: Loop, values: Struct, node: ast.AST) -> Struct:
        """The permutations of a loop over minibatches, and the minibatch of this turn."""
        if not values or not isinstance(values, tuple) or not all(map(_is_var, values)):
            self.reader.frame.fail(
                node,
                "minibatches of something that is not a tuple of arrays",
                "expected such as msrl.minibatches(4, (obs, action)); unpack first what a method "
                "returns: a, b = ...",
            )
        if not self.reader.loops or self.reader.loops[0].kind != "iterations":
            self.reader.frame.fail(node, "msrl.minibatches outside msrl.iterations()")
        if self.left_out:
            self.reader.frame.fail(
                node,
                "msrl.minibatches after another that a condition may leave out",
                "their random numbers go by the order in which they are first reached: put the one "
                "under the condition last,\n  or the condition into the loop",
            )
        self.left_out = self.reader.perhaps > 0
        count, num_steps = loop.count, self.reader.trainer.config.num_steps
        assert count is not None
        if num_steps % count:
            raise ProgramError(
                f"{self.reader.frame.where(node)}\n  {count} minibatches of {num_steps} steps: "
                "the number of minibatches must divide num_steps (for example "
                f"{_divisor(num_steps, count)})"
            )
        row = (
            self._counted_permutation(node)
            if self.reader.conditions
            else self._permutation(loop, node)
        )
        targets = tuple(self.reader.new_temporary(f"minibatch_{value.name}") for value in values)
        names = tuple(value.name for value in values)
        self.reader.emit(
            "minibatch",
            targets,
            (row, loop.index, *names),
            reads=(row, loop.index, *names),
            attrs=(("count", count),),
        )
        return tuple(Var(target) for target in targets)

    def _permutation(self, loop: Loop, node: ast.AST) -> str:
        """One of the permutations of all turns, which are drawn at the top of the iteration."""
        table = self.reader.fresh("permutation")
        rounds = self._table_loops(exclude=loop)
        self._at_top(
            Op(
                self.reader.name_op("permutations"),
                "permutations",
                (table,),
                (),
                (),
                self.reader.frame.where(node),
                attrs=(("rounds", _product(rounds)),),
            )
        )
        return self._row_of(table, rounds)

    def _counted_permutation(self, node: ast.AST) -> str:
        """A permutation drawn before a loop that a condition decides about.

        It is numbered by how often the loop was begun in the whole run, which the turns of the
        loops around it give where there is no condition.
        """
        reader, where = self.reader, self.reader.frame.where(node)
        site, count = reader.name_op("permutations"), reader.fresh("shuffles")
        zero = Op(reader.name_op("constant"), "constant", (count,), ("0",), (), where)
        self.before_iterations.append(zero)
        reader.locals[count] = f"{reader.frames[0].msrl}.begun({site!r})"
        table, row = reader.fresh("permutation"), reader.fresh("permutation_row")
        rounds = (("rounds", 1),)
        inner, around = reader.scope, reader.scope.outer
        assert around is not None
        reader.scope = around
        around.items.append(
            Op(site, "permutations", (table,), (count,), (count,), where, attrs=rounds)
        )
        reader.emit("index", (row,), (table, "0"), reads=(table,))
        reader.emit("glue", (count,), (f"{count} + 1",), reads=(count,))
        reader.scope = inner
        return row

    def _boundary(self, node: ast.Call) -> Struct:
        if len(node.args) != 2:
            self.reader.frame.fail(node, "msrl.boundary with other than a name and a value")
        mark = self.reader.known(node.args[0])
        if not is_name(mark):
            self.reader.frame.fail(node.args[0], f"the mark {mark!r}", f"expected {RULE}")
        site = self.reader.name_op(f"boundary:{mark}")
        value = self.reader.expression(node.args[1])

        def pass_through(part: Struct) -> Struct:
            if isinstance(part, tuple):
                return tuple(pass_through(p) for p in part)
            if isinstance(part, dict):
                return {key: pass_through(p) for key, p in part.items()}
            if isinstance(part, Static):
                return part
            target = self.reader.new_temporary(
                "".join(c if c.isalnum() else "_" for c in mark) + f"_{part.name}"
            )
            self.reader.emit(
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
            self.reader.frame.fail(node, f"msrl.{name} with {len(node.args)} arguments")
        methods = []
        for arg in node.args[:minimum]:
            path = self.reader.path_of(arg)
            if path is None:
                self.reader.frame.fail(
                    arg,
                    f"msrl.{name} of something that is not `self.name`",
                    "pass a method or a network of the learner by its name",
                )
            methods.append(path)
        texts, reads = self.reader.texts(list(self.reader.elements(node.args[minimum:])), node)
        kind = OPERATIONS[name]
        targets = (
            tuple(map(self.reader.new_temporary, ("grads", "means", "sample_loss")))
            if name == "gradient"
            else ()
        )
        self.reader.emit(
            name,
            targets,
            tuple(texts),
            reads=(*reads, *kind.reads),
            writes=kind.writes,
            attrs=(("objects", tuple(methods)),),
        )
        return tuple(Var(target) for target in targets[:2]) if targets else Static(None)

    def _report(self, node: ast.Call) -> Struct:
        value = self.reader.expression(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(value, dict):
            self.reader.frame.fail(
                node, "msrl.report of something that is not a dictionary of scalars"
            )
        texts, reads = self.reader.texts(list(value.values()), node)
        self.reader.emit(
            "report", (), tuple(texts), reads=tuple(reads), attrs=(("keys", tuple(value)),)
        )
        return Static(None)

    def _reduction(self, name: str, node: ast.Call) -> Struct:
        values = list(self.reader.elements(node.args))
        keep = 0
        for item in node.keywords:
            if item.arg != "keep":
                self.reader.frame.fail(item.value, f"the argument {item.arg!r} of msrl.{name}")
            keep = self.reader.known(item.value)
        for value in values:
            if not isinstance(value, Var):
                self.reader.frame.fail(node, f"msrl.{name} of what is not an array")
        texts, reads = self.reader.texts(values, node)
        targets = tuple(self.reader.new_temporary("value") for _ in texts)
        self.reader.emit(name, targets, tuple(texts), reads=tuple(reads), attrs=(("keep", keep),))
        return tuple(Var(t) for t in targets) if len(targets) > 1 else Var(targets[0])


def _is_var(value: Struct) -> bool:
    return isinstance(value, Var)


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
