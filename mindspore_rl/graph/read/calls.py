"""Calls of msrl: what each checks, and the operations that it becomes."""

import ast

from mindspore_rl.datasets.windows import OUTPUTS, check_windows
from mindspore_rl.errors import ProgramError, ReplayError
from mindspore_rl.graph.ir import Loop, Op, num_turns, turn_index
from mindspore_rl.graph.operations import ENV_STEP_OUTPUTS, LOOPS, OPERATIONS
from mindspore_rl.graph.read.expressions import ExpressionReader
from mindspore_rl.graph.read.frame import MSRL, Static, Struct, Var
from mindspore_rl.graph.read.kept_rows import STRATIFIED
from mindspore_rl.names import RULE, is_name
from mindspore_rl.replay.across import ACROSS

WAYS = (STRATIFIED, *ACROSS, "priority")
"""By what records are drawn."""


class Calls:
    """Reads calls of msrl.

    Args:
        reader: of everything else.
        num_envs: environments of the job.

    Attributes:
        top_of_iteration: what is computed once an iteration, before everything else; None outside
            `iterations`.
        before_iterations: what is set once, before `iterations`.
        left_out: whether a loop over minibatches was read that a condition may leave out.
        replay_width: values of a record; None before the first insertion.
        keep: records of an environment that are kept; 0: those of one sample; None: nothing was
            inserted yet.
    """

    def __init__(self, reader: ExpressionReader, num_envs: int) -> None:
        self.reader, self.draft, self.num_envs = reader, reader.draft, num_envs
        self.top_of_iteration: list[Op] | None = None
        self.before_iterations: list[Op] = []
        self.left_out = False
        self.replay_width: int | None = None
        self.keep: int | None = None

    def read(self, name: str, node: ast.Call) -> Struct:
        """What a call of `msrl.name` stands for."""
        if name in LOOPS:
            self.draft.fail(node, f"msrl.{name} outside the head of a `for`")
        calls = [name for name, kind in OPERATIONS.items() if kind.call]
        if name not in calls:
            self.draft.fail(node, f"msrl.{name}", f"msrl has {', '.join(sorted(calls))}")
        named = OPERATIONS[name].reduces or name in ("replay_insert", "replay_sample")
        if node.keywords and not named:
            self.draft.fail(
                node.keywords[0].value,
                f"a keyword argument of msrl.{name}",
                "its arguments are positional",
            )
        if self.draft.conditions and OPERATIONS[name].always:
            self.draft.fail(
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
        if name == "replay_insert":
            return self._insert(node)
        if name == "replay_sample" and (node.args or node.keywords):
            return self._draw(node)
        if name == "uniform":
            return self._uniform(node)
        if name == "dataset_windows":
            return self._windows(node)
        return self._component_call(name, node)

    def _component_call(self, name: str, node: ast.Call) -> Struct:
        texts, reads = self.reader.texts(list(self.reader.elements(node.args)), node)
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
            loops = self._inner_loops()
            table, purpose = f"noise_{name.rpartition('_')[2]}", self.draft.name_op(f"{name}_noise")
            attrs = {"purpose": purpose, "owner": owner, "rows": num_turns(loops)}
            (noise,) = self._drawn("noise", (table,), loops, node, attrs)
            texts, reads = [*texts, noise], [*reads, noise]
        targets: tuple[str, ...] = ()
        if name == "env_step":
            targets = tuple(self.draft.new_temporary(output) for output in ENV_STEP_OUTPUTS)
        elif name == "replay_sample":
            targets = self._sampled(node)
            if self.keep:
                self.draft.fail(
                    node,
                    "msrl.replay_sample() of records that are kept",
                    "say how many: msrl.replay_sample(256)",
                )
        elif name != "replay_update":
            targets = (self.draft.new_temporary("value"),)
        reads = [*reads, *kind.reads]
        found = self.draft.emit(name, targets, tuple(texts), reads=reads, writes=kind.writes)
        return found if name in ("env_step", "replay_sample") else (*found, Static(None))[0]

    def _insert(self, node: ast.Call) -> Struct:
        """An insertion into the trajectory buffer, or of records that are kept."""
        texts, reads = self.reader.texts(list(self.reader.elements(node.args)), node)
        if self.replay_width not in (None, len(texts)) or not texts:
            self.draft.fail(node, f"inserting {len(texts)} values, elsewhere {self.replay_width},")
        self.replay_width, keep = len(texts), 0
        for item in node.keywords:
            if item.arg != "keep":
                self.draft.fail(item.value, f"the argument {item.arg!r} of replay_insert")
            keep = self._per_env("keep", item.value)
        if self.keep not in (None, keep):
            self.draft.fail(
                node, "another `keep` than elsewhere", "a program has one replay: give the same"
            )
        self.keep = keep
        kind = "replay_keep" if keep else "replay_insert"
        attrs = (("capacity", keep),) if keep else ()
        row = OPERATIONS[kind]
        reads = [*reads, *row.reads]
        self.draft.emit(kind, (), tuple(texts), reads=reads, writes=row.writes, attrs=attrs)
        return Static(None)

    def _draw(self, node: ast.Call) -> Struct:
        """Records that are kept, by random numbers of this turn."""
        targets = self._sampled(node)
        if not self.keep:
            self.draft.fail(
                node,
                "msrl.replay_sample with a number of records that are not kept",
                "keep them: msrl.replay_insert(obs, action, keep=100_000)",
            )
        by, steps = self._way(node)
        if by == "priority":
            targets += tuple(self.draft.new_temporary(name) for name in ("ids", "odds"))
        each = self._shared("a sample", node.args[0])
        attrs = {"per_env": each, "capacity": self.keep, "by": by, "steps": steps}
        noise: tuple[str, ...] = ()
        if by in ACROSS:  # by random numbers of all environments, which no replica's share has
            attrs["purpose"] = self.draft.name_op("replay_sample_noise")
        else:
            noise = (self._numbers("replay_sample", each, node),)
        reads = (*noise, *OPERATIONS["replay_draw"].reads)
        more = tuple(attrs.items())
        return self.draft.emit("replay_draw", targets, noise, reads=reads, attrs=more)

    def _way(self, node: ast.Call) -> tuple[str, int]:
        """By what records are drawn, and of how many steps a window is."""
        given = dict(zip(("count", "by", "steps"), node.args, strict=False))
        given |= {str(item.arg): item.value for item in node.keywords}
        found = {key: self.draft.frame.known(value) for key, value in given.items()}
        by, steps = found.pop("by", STRATIFIED), found.pop("steps", 0)
        if by not in WAYS or len(node.args) > 3:
            known = ", ".join(f'"{way}"' for way in WAYS)
            self.draft.fail(node, f"a sample by {by!r}", f"by one of {known}")
        if type(steps) is not int or steps < 0 or set(found) != {"count"} or not node.args:
            known = "a number of records, `by` and a number of steps"
            self.draft.fail(node, "a sample of such windows", known)
        return by, steps

    def _uniform(self, node: ast.Call) -> Struct:
        """Random numbers for the rows of a batch that has as many of each environment."""
        if len(node.args) != 2:
            self.draft.fail(node, f"msrl.uniform with {len(node.args)} arguments, expected 2")
        size = self.draft.frame.known(node.args[1])
        if type(size) is not int or size < 1:
            self.draft.fail(node, f"msrl.uniform of {size} numbers a row", "at least 1")
        each = self._shared("a batch", node.args[0])
        noise = self._numbers("uniform", each * size, node)
        target = self.draft.new_temporary("value")
        return self.draft.emit("uniform", (target,), (noise, str(size)), reads=(noise,))[0]

    def _numbers(self, call: str, size: int, node: ast.Call) -> str:
        """So many random numbers of this turn for each environment."""
        loops, purpose = self._inner_loops(), self.draft.name_op(f"{call}_noise")
        attrs = {"purpose": purpose, "owner": "replay", "rows": num_turns(loops), "size": size}
        return self._drawn("noise", (f"noise_{call.rpartition('_')[2]}",), loops, node, attrs)[0]

    def _windows(self, node: ast.Call) -> Struct:
        """Windows of a data set, as many of each environment; an iteration's are read at once."""
        known = self.draft.frame.known
        if len(node.args) != 3:
            self.draft.fail(node, f"msrl.dataset_windows with {len(node.args)} arguments")
        path, length = known(node.args[0]), known(node.args[2])
        each = self._shared("a batch", node.args[1])
        try:
            file = check_windows(path, length, self.reader.trainer.spec)
        except ReplayError as error:
            raise ProgramError(f"{self.draft.frame.where(node)}\n  {error}") from error
        loops, purpose = self._inner_loops(), self.draft.name_op("dataset_windows_order")
        attrs = {"purpose": purpose, "path": file, "per_env": each, "length": length}
        attrs["rows"] = num_turns(loops)
        names = tuple(f"dataset_{name}" for name in OUTPUTS)
        return tuple(map(Var, self._drawn("dataset_windows", names, loops, node, attrs)))

    def _shared(self, what: str, node: ast.expr) -> int:
        """What each environment has of a number of records that all have in equal parts."""
        each, number = self._per_env(what, node), self.draft.frame.known(node)
        if each * self.num_envs != number:
            self.draft.fail(
                node,
                f"{what} of {number} records with {self.num_envs} environments",
                f"each has as many: choose a multiple, such as {each * self.num_envs}",
            )
        return each

    def _sampled(self, node: ast.Call) -> tuple[str, ...]:
        if self.replay_width is None:
            self.draft.fail(node, "msrl.replay_sample() before any msrl.replay_insert()")
        return tuple(self.draft.new_temporary("sample") for _ in range(self.replay_width or 0))

    def _per_env(self, what: str, node: ast.expr) -> int:
        """What a number of records is for each environment of the job."""
        number = self.draft.frame.known(node)
        if type(number) is not int or number < self.num_envs:
            self.draft.fail(
                node, f"{what} of {number} records", f"expected at least {self.num_envs}, one each"
            )
        return number // self.num_envs

    def _drawn(
        self, kind: str, names: tuple[str, ...], loops: list[Loop], node: ast.AST, attrs: dict
    ) -> tuple[str, ...]:
        """What is drawn for this turn, with that of all others at the top of the iteration."""
        draft, tables = self.draft, tuple(map(self.draft.fresh, names))
        index = () if self.top_of_iteration is None else (draft.loops[0].index,)
        top = draft.scope.items if self.top_of_iteration is None else self.top_of_iteration
        where, more = draft.frame.where(node), tuple(attrs.items())
        top.append(Op(draft.name_op(kind), kind, tables, index, index, where, attrs=more))
        rows = tuple(draft.fresh(f"{table}_row") for table in tables)
        for table, row in zip(tables, rows, strict=True):
            reads = (table, *(loop.index for loop in loops))
            draft.emit("index", (row,), (table, turn_index(loops)), reads=reads)
        return rows

    def _inner_loops(self, exclude: Loop | None = None) -> list[Loop]:
        return [
            loop for loop in self.draft.loops if loop.kind != "iterations" and loop is not exclude
        ]

    def minibatch(self, loop: Loop, values: Struct, given: list[ast.expr]) -> Struct:
        """The permutations of a loop over minibatches, and the minibatch of this turn."""
        node, steps = given[1], self.draft.frame.known(given[2]) if given[2:] else 0
        if type(steps) is not int or steps < 0:
            self.draft.fail(given[2], f"segments of {steps!r} steps", "a number of steps")
        parts = values if isinstance(values, tuple) else ()
        if not parts or not all(isinstance(part, Var) for part in parts):
            self.draft.fail(
                node,
                "minibatches of something that is not a tuple of arrays",
                "expected such as msrl.minibatches(4, (obs, action)); unpack first what a method "
                "returns: a, b = ...",
            )
        if not self.draft.loops or self.draft.loops[0].kind != "iterations":
            self.draft.fail(node, "msrl.minibatches outside msrl.iterations()")
        if self.left_out:
            self.draft.fail(
                node,
                "msrl.minibatches after another that a condition may leave out",
                "their random numbers go by the order in which they are first reached: put the one "
                "under the condition last,\n  or the condition into the loop",
            )
        self.left_out = self.draft.perhaps > 0
        count, num_steps = loop.count, self.reader.trainer.config.num_steps
        assert count is not None
        if num_steps % (count * max(steps, 1)):
            what, must = f"{num_steps} steps", "the number of minibatches must"
            better = str(_divisor(num_steps, count))
            if steps and not num_steps % count:
                what, must = f"segments of {steps} of {num_steps} steps", "the product of both must"
                better = f"segments of {_divisor(num_steps // count, steps)}"
            raise ProgramError(
                f"{self.draft.frame.where(node)}\n  {count} minibatches of {what}: {must} divide "
                f"num_steps (for example {better})"
            )
        if self.draft.conditions:
            row = self._counted_permutation(node, steps)
        else:
            outer = self._inner_loops(exclude=loop)
            rounds = {"rounds": num_turns(outer), "steps": max(steps, 1)}
            (row,) = self._drawn("permutations", ("permutation",), outer, node, rounds)
        targets = tuple(self.draft.new_temporary(f"minibatch_{part.name}") for part in parts)
        args = (row, loop.index, *(part.name for part in parts))
        attrs = (("count", count), ("steps", steps))
        return self.draft.emit("minibatch", targets, args, reads=args, attrs=attrs)

    def _counted_permutation(self, node: ast.AST, steps: int) -> str:
        """A permutation drawn before a loop that a condition decides about.

        It is numbered by how often the loop was begun in the whole run, which the turns of the
        loops around it give where there is no condition.
        """
        draft, where = self.draft, self.draft.frame.where(node)
        site, count = draft.name_op("permutations"), draft.fresh("shuffles")
        zero = Op(draft.name_op("constant"), "constant", (count,), ("0",), (), where)
        self.before_iterations.append(zero)
        draft.locals[count] = f"{draft.frames[0].msrl}.begun({site!r})"
        table, row = draft.fresh("permutation"), draft.fresh("permutation_row")
        rounds = (("rounds", 1), ("steps", max(steps, 1)))
        inner, around = draft.scope, draft.scope.outer
        assert around is not None
        draft.scope = around
        drawn = Op(site, "permutations", (table,), (count,), (count,), where, attrs=rounds)
        around.items.append(drawn)
        draft.emit("index", (row,), (table, "0"), reads=(table,))
        draft.emit("glue", (count,), (f"{count} + 1",), reads=(count,))
        draft.scope = inner
        return row

    def _boundary(self, node: ast.Call) -> Struct:
        if len(node.args) != 2:
            self.draft.fail(node, "msrl.boundary with other than a name and a value")
        mark = self.draft.frame.known(node.args[0])
        if not is_name(mark):
            self.draft.fail(node.args[0], f"the mark {mark!r}", f"expected {RULE}")
        site = self.draft.name_op(f"boundary:{mark}")
        value = self.reader.expression(node.args[1])

        def pass_through(part: Struct) -> Struct:
            if isinstance(part, tuple):
                return tuple(pass_through(p) for p in part)
            if isinstance(part, dict):
                return {key: pass_through(p) for key, p in part.items()}
            if isinstance(part, Static):
                return part
            text = "".join(c if c.isalnum() else "_" for c in mark)
            target, name = self.draft.new_temporary(f"{text}_{part.name}"), (part.name,)
            (passed,) = self.draft.emit(
                "boundary", (target,), name, reads=name, mark=mark, attrs=(("site", site),)
            )
            return passed

        return pass_through(value)

    def _learner_call(self, name: str, node: ast.Call) -> Struct:
        minimum = 2 if name == "gradient" else 1
        if len(node.args) < minimum:
            self.draft.fail(node, f"msrl.{name} with {len(node.args)} arguments")
        methods = []
        for arg in node.args[:minimum]:
            path = self.reader.path_of(arg)
            if path is None:
                self.draft.fail(
                    arg,
                    f"msrl.{name} of something that is not `self.name`",
                    "pass a method or a network of the learner by its name",
                )
            methods.append(path)
        texts, reads = self.reader.texts(list(self.reader.elements(node.args[minimum:])), node)
        kind = OPERATIONS[name]
        results = ("grads", "means", "sample_loss") if name == "gradient" else ()
        found = self.draft.emit(
            name,
            tuple(map(self.draft.new_temporary, results)),
            tuple(texts),
            reads=(*reads, *kind.reads),
            writes=kind.writes,
            attrs=(("objects", tuple(methods)),),
        )
        return found[:2] or Static(None)

    def _report(self, node: ast.Call) -> Struct:
        value = self.reader.expression(node.args[0]) if len(node.args) == 1 else None
        if not isinstance(value, dict):
            self.draft.fail(node, "msrl.report of something that is not a dictionary of scalars")
        texts, reads = self.reader.texts(list(value.values()), node)
        attrs = (("keys", tuple(value)),)
        self.draft.emit("report", (), tuple(texts), reads=tuple(reads), attrs=attrs)
        return Static(None)

    def _reduction(self, name: str, node: ast.Call) -> Struct:
        values = list(self.reader.elements(node.args))
        keep = 0
        for item in node.keywords:
            if item.arg != "keep":
                self.draft.fail(item.value, f"the argument {item.arg!r} of msrl.{name}")
            keep = self.draft.frame.known(item.value)
        for value in values:
            if not isinstance(value, Var):
                self.draft.fail(node, f"msrl.{name} of what is not an array")
        texts, reads = self.reader.texts(values, node)
        targets = tuple(self.draft.new_temporary("value") for _ in texts)
        attrs = (("keep", keep),)
        found = self.draft.emit(name, targets, tuple(texts), reads=tuple(reads), attrs=attrs)
        return found if len(found) > 1 else found[0]


def _divisor(total: int, near: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - near))
