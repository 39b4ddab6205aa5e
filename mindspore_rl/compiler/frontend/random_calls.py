"""Random calls: numbers, permutations, windows and minibatches, drawn anew each turn."""

import ast
import functools
from dataclasses import replace

from mindspore_rl.compiler.frontend.builder import UNROLLED
from mindspore_rl.compiler.frontend.expressions import ExpressionReader
from mindspore_rl.compiler.frontend.records import flattened, unflattened
from mindspore_rl.compiler.frontend.scope import Struct, Var
from mindspore_rl.compiler.ir.ir import (
    Expr,
    Item,
    Loop,
    Op,
    common,
    num_turns,
    site_of,
    turn_index,
    walk,
    with_ops,
)
from mindspore_rl.errors import ProgramError
from mindspore_rl.plan.plan import SHUFFLES


class Drawing:
    """Draws tables at the top of an iteration, with one row for each turn of its loops.

    Args:
        reader: the reader of expressions.

    Attributes:
        top_of_iteration: operations that run first in each iteration; None outside `iterations`.
        before_iterations: operations that run once, before `iterations`.
    """

    def __init__(self, reader: ExpressionReader) -> None:
        self.reader, self.draft = reader, reader.draft
        self.top_of_iteration: list[Op] | None = None
        self.before_iterations: list[Op] = []
        # Of calls in unrolled loops: tables by size, and the reads of turns with the loops around.
        self._unrolled: dict[tuple, tuple[dict[tuple, Op], list[tuple[str, list[Loop]]]]] = {}
        # The lines of loops over minibatches that a run-time condition may leave out.
        self._left_out = set[tuple[int, ...]]()
        # Of those under a condition, by place: the site, the counter, and how many turns were read.
        self._counted: dict[tuple, tuple[str, str, int]] = {}

    def rows(
        self, kind: str, names: tuple[str, ...], loops: list[Loop], node: ast.AST, attrs: dict
    ) -> tuple[str, ...]:
        """Emits a draw of whole tables at the top of the iteration and the index of this turn.

        Returns: the variables that hold this turn's rows, one for each table of `names`.
        """
        self.check_place(node)
        draft = self.draft
        tables: dict[tuple, Op] = {}  # of this place
        turns: list[tuple[str, list[Loop]]] = []
        if draft.unrolled:
            tables, turns = self._unrolled.setdefault((kind, draft.place), (tables, turns))
        size = tuple(attrs.items())
        if size not in tables:
            index = () if self.top_of_iteration is None else (Expr(draft.loops[0].index),)
            top = draft.scope.items if self.top_of_iteration is None else self.top_of_iteration
            name, where = draft.name_op(kind), draft.frame.where(node)
            targets = tuple(map(draft.fresh, names))
            tables[size] = Op(name, kind, targets, index, index, where, attrs=size)
            top.append(tables[size])
        drawn = tables[size]
        rows = tuple(draft.fresh(f"{table}_row") for table in drawn.targets)
        for table, row in zip(drawn.targets, rows, strict=True):
            reads = (table, *(loop.index for loop in loops))
            draft.emit("index", (row,), (table, turn_index(loops)), reads=reads)
            turns.append((draft.scope.items[-1].name, loops))
        if len({num_turns(loops) for _, loops in turns}) > 1:
            draft.fail(
                node,
                "a draw of other loops than in the turn before, in an unrolled loop,",
                "let each turn have loops of as many turns",
            )
        return rows

    def in_turns(self, body: tuple[Item, ...]) -> tuple[Item, ...]:
        """Gives each turn of an unrolled loop rows of its own in the tables of its draws.

        They come in the order of the plain loop: by the loops around it, by its turn, and by the
        loops inside it.
        """
        ops, changed = {op.name: op for op, _ in walk(body)}, dict[str, Op]()
        for tables, turns in self._unrolled.values():
            count, keys = len(turns), ("rounds", "rows")
            for table in (ops[drawn.name] for drawn in tables.values()):
                attrs = {k: v * count if k in keys else v for k, v in table.attrs}
                changed[table.name] = replace(table, attrs=tuple(attrs.items()))
            around = len(functools.reduce(common, (tuple(loops) for _, loops in turns)))
            for number, (turn, loops) in enumerate(turns):
                inside = loops[around:]
                own, first = turn_index(loops[:around]), number * num_turns(inside)
                own = own.times(count * num_turns(inside)) if around else Expr("0")
                own = own.plus(str(first)) if around or first else own
                own = own.plus(turn_index(inside)) if inside else own
                changed[turn] = replace(ops[turn], args=(ops[turn].args[0], own))
        return with_ops(body, changed)

    def purpose(self, call: str) -> str:
        """Names the random numbers of a call; one name for all turns of an unrolled loop."""
        return site_of(self.draft.name_op(f"{call}_noise"))

    def numbers(self, call: str, size: int, node: ast.Call) -> str:
        """Returns the variable with `size` random numbers of this turn for each environment."""
        loops, purpose = self.inner_loops(), self.purpose(call)
        attrs = {"purpose": purpose, "owner": "replay", "rows": num_turns(loops), "size": size}
        return self.rows("noise", (f"noise_{call.rpartition('_')[2]}",), loops, node, attrs)[0]

    def check_place(self, node: ast.AST) -> None:
        """Refuses a call in an unrolled loop: one place in the file, and several operations.

        It is known in which order the plain loop reaches the calls of `UNROLLED`, if no loop lies
        between two unrolled ones, and of those that draw if no condition of the run does.
        """
        draft = self.draft
        _, around = draft.unrolled_in or (0, 0)
        name = draft.frame.msrl_call(node) if isinstance(node, ast.Call) else ""
        if name == "minibatches" and draft.conditions:
            return  # it counts its starts
        if draft.unrolled and not draft.unrolled_apart and name in UNROLLED:
            draws = name in ("uniform", "replay_sample", "minibatches")
            if not draws or draft.conditions == around:
                return
        if self.draft.unrolled:
            hint = "a call for each part, on lines of their own, or a loop over range(n)"
            match node:
                case ast.Call(args=[rows, columns]) if name == "uniform":
                    size, call = ast.unparse(columns), ast.unparse(node.func)
                    hint = f"one call before it for all of n parts, `noise = {call}("
                    hint += f"{ast.unparse(rows)}, n * {size})`, whose part i is\n  "
                    hint += f"`noise[:, i * {size} : (i + 1) * {size}]`"
            self.draft.fail(
                node,
                "a call of msrl with random numbers or a mark in an unrolled loop or comprehension",
                f"its numbers go by its place in the file: write {hint}",
            )

    def inner_loops(self, exclude: Loop | None = None) -> list[Loop]:
        """Returns the open loops inside `iterations`, outermost first."""
        return [
            loop for loop in self.draft.loops if loop.kind != "iterations" and loop is not exclude
        ]

    def minibatch(
        self, loop: Loop, values: Struct, given: list[ast.expr], call: ast.expr
    ) -> Struct:
        """Emits the permutations of a loop over minibatches and the minibatch of this turn.

        Args:
            loop: the loop over minibatches.
            values: the tuple of arrays to split.
            given: argument expressions: count, values and, if given, steps of a segment.
            call: of `msrl.minibatches`.

        Returns: the arrays of this turn's minibatch.
        """
        self.check_place(call)
        node, steps = given[1], self.draft.frame.known(given[2]) if given[2:] else 0
        if type(steps) is not int or steps < 0:
            self.draft.fail(given[2], f"segments of {steps!r} steps", "a number of steps")
        parts = tuple(flattened(values)) if isinstance(values, (tuple, dict)) else ()
        if not parts or not all(isinstance(part, Var) for part in parts):
            self.draft.fail(
                node,
                "minibatches of something that is not a tuple of arrays",
                "expected such as msrl.minibatches(4, (obs, action)), in which tuples, NamedTuples "
                "and\n  dictionaries may stand; unpack first what a method returns: a, b = ...",
            )
        if not self.draft.loops or self.draft.loops[0].kind != "iterations":
            self.draft.fail(node, "msrl.minibatches outside msrl.iterations()")
        place = (*self.draft.place, self.draft.frame.place(call))
        self._check_line(place, node)
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
            row = self._counted_permutation(node, steps, place)
        else:
            outer = self.inner_loops(exclude=loop)
            rounds = {"rounds": num_turns(outer), "steps": max(steps, 1)}
            self.draft.place = place
            (row,) = self.rows("permutations", ("permutation",), outer, call, rounds)
            self.draft.place = place[:-1]
        targets = tuple(self.draft.new_temporary(f"minibatch_{part.name}") for part in parts)
        args = (row, loop.index, *(part.name for part in parts))
        attrs = (("count", count), ("steps", steps))
        found = self.draft.emit("minibatch", targets, args, reads=args, attrs=attrs)
        return unflattened(values, iter(found))

    def _check_line(self, place: tuple, node: ast.expr) -> None:
        """Refuses a loop over minibatches whose permutations its place in the file does not tell.

        Args:
            place: the places of the calls that lead to it, and its own.
            node: the arrays to split.
        """
        draft, lines = self.draft, tuple(line for _, line, _ in place)
        ahead, counted = ("permutations", place) in self._unrolled, place in self._counted
        if lines in self._left_out and not counted:
            draft.fail(
                node,
                "msrl.minibatches after another in this line that a condition may leave out",
                "their random numbers go by their lines: write one in a line",
            )
        if ahead if draft.conditions else counted:
            draft.fail(
                node,
                "msrl.minibatches that one turn of an unrolled loop reaches under a condition, and "
                "another always",
                "write a call for each, on lines of their own",
            )
        self._left_out |= {lines} if draft.perhaps else set()

    def _counted_permutation(self, node: ast.AST, steps: int, place: tuple) -> str:
        """Emits the permutation of a loop over minibatches under a run-time condition.

        The loop's turn indices do not tell how often it has run, so a counter, `SHUFFLES`, counts
        how often the loop was started in the whole run and selects the permutation. The turns of an
        unrolled loop around it count together.
        """
        draft, where = self.draft, self.draft.frame.where(node)
        if place in self._counted:
            site, count, turns = self._counted[place]
        else:
            site, count, turns = draft.name_op("permutations"), draft.fresh(SHUFFLES), 0
            zero = Op(draft.name_op("constant"), "constant", (count,), (Expr("0"),), (), where)
            self.before_iterations.append(zero)
            draft.locals[count] = f"{draft.frames[0].msrl}.begun({site!r})"
        self._counted[place] = site, count, turns + 1
        name = f"{site}.{turns + 1}" if turns else site
        table, row = draft.fresh("permutation"), draft.fresh("permutation_row")
        rounds = (("rounds", 1), ("steps", max(steps, 1)))
        inner, around = draft.scope, draft.scope.outer
        assert around is not None
        draft.scope = around
        drawn = Op(name, "permutations", (table,), (Expr(count),), (count,), where, attrs=rounds)
        around.items.append(drawn)
        draft.emit("index", (row,), (table, "0"), reads=(table,))
        draft.emit("glue", (count,), (f"{count} + 1",), reads=(count,))
        draft.scope = inner
        return row


def _divisor(total: int, near: int) -> int:
    return min((d for d in range(1, total + 1) if total % d == 0), key=lambda d: abs(d - near))
