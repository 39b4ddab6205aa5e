"""Script of a rank for the simulator: its plan's loops, unrolled in order.

The words of a script are named as in a profile, so that measured and simulated costs of a fragment
have the same names.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Lowered, Op, Program, Region
from mindspore_rl.plan.edges import Edge, plan_edges
from mindspore_rl.plan.plan import Plan

CELL, ENVIRONMENT, DATASET, SEND, RECEIVE, BOUNDARY, YIELD, APART = range(8)
_PYTHON_KINDS = {
    "env_step": (ENVIRONMENT, "environment"),
    "env_reset": (ENVIRONMENT, "environment"),
    "dataset_windows": (DATASET, "dataset"),
    "dataset_transitions": (DATASET, "dataset"),
}


@dataclass(frozen=True)
class Word:
    """One action of a rank: a cell, an environment step, a message.

    Attributes:
        kind: `CELL`, `ENVIRONMENT` and so on.
        name: `cell act`, `environment`, `send NAME`, `receive NAME`, `boundary`.
        edge: of a message.
        peer: the rank at the other end of the message.
        sizes: bytes of the message, or of each collective in the cell, in order.
        collectives: names of the cell's collectives.
        awaited: of `YIELD` in a part: the messages that the part receives next.
        parts: of `APART`: the words of each part, which go on when they have what they await.
    """

    kind: int
    name: str
    edge: Edge | None = None
    peer: int = 0
    sizes: tuple[int, ...] = ()
    collectives: tuple[str, ...] = ()
    awaited: tuple["Word", ...] = ()
    parts: tuple[Iterator["Word"], ...] = ()


class Script:
    """The sequence of words of one replica of a fragment."""

    def __init__(
        self, plan: Plan, rank: int, program: Program, edges: list[dict[str, Edge]]
    ) -> None:
        self.plan, self.rank = plan, rank
        self.fragment, self.replica = plan.fragment_of(rank)
        self._body, self._values = program.body, program.values
        shares = [replace(self.fragment, shares=(part,)) for part in plan.parts]
        self._edges = [*edges, *(plan_edges(plan, part=share) for share in shares)]
        self._cells: dict[str, Word] = {}
        self._messages: dict[tuple[str, str, int], tuple[Word, ...]] = {}

    def words(self, iterations: int) -> Iterator[Word]:
        """Yields the words of so many iterations and of the start before them."""
        yield from self._items(self._body, 0, iterations)

    def served(self) -> Iterator[Word]:
        """Yields the words with which an asynchronous server serves one iteration of a worker."""
        for item in self._body:
            if isinstance(item, Loop) and item.kind == "iterations":
                yield from self._items(item.body, 0, 1)

    def _items(self, items: tuple[Lowered, ...], chunk: int, iterations: int) -> Iterator[Word]:
        for at, item in enumerate(items):
            if isinstance(item, Region):
                yield self._cell(item)
            elif isinstance(item, Loop):
                yield from self._loop(item, chunk, iterations)
            elif isinstance(item, Branch):  # conditions are taken to hold
                yield from self._items(item.body, chunk, iterations)
            elif item.kind in ("send", "receive"):
                before = items[at - 1] if at else None
                again = isinstance(before, Op) and before.kind == "receive"
                if item.kind == "receive" and not again:
                    if self.plan.chunks > 1:
                        yield _PAUSE
                    elif chunk:  # a part
                        yield Word(YIELD, "yield", awaited=self._message(item, chunk))
                yield from self._message(item, chunk)
            elif item.kind in _PYTHON_KINDS:
                yield Word(*_PYTHON_KINDS[item.kind])

    def _loop(self, loop: Loop, chunk: int, iterations: int) -> Iterator[Word]:
        if loop.apart:
            single = replace(loop, chunks=1, apart="")
            parts = range(1, 1 + len(self.plan.parts))
            words = tuple(self._loop(single, part, iterations) for part in parts)
            yield Word(APART, "parts", parts=words)
            return
        if loop.chunks > 1:
            yield from self._in_turn(loop, iterations)
            return
        first = loop.kind == "iterations"
        for _ in range(iterations if first else loop.count or 1):
            if first:
                yield _BOUNDARY
            yield from self._items(loop.body, chunk, iterations)
        if first:
            yield _BOUNDARY

    def _in_turn(self, loop: Loop, iterations: int) -> Iterator[Word]:
        """Interleaves all chunks of a loop: each pause switches to the next chunk."""
        single = replace(loop, chunks=1)
        waits = any(_receives(item) for item in loop.body)
        waiting = deque(
            self._chunk(single, chunk, iterations, waits) for chunk in range(loop.chunks)
        )
        while waiting:
            words = waiting.popleft()
            for word in words:
                if word.kind == YIELD:
                    waiting.append(words)
                    break
                yield word

    def _chunk(self, loop: Loop, chunk: int, iterations: int, waits: bool) -> Iterator[Word]:
        for _ in range(loop.count or 1):
            yield from self._items(loop.body, chunk, iterations)
            if not waits:
                yield _PAUSE

    def _cell(self, region: Region) -> Word:
        if region.name not in self._cells:
            found = tuple(self._reductions(region.items))
            sizes = tuple(size for _, size in found)
            names = tuple(f"{name} over {self.fragment.name}" for name, _ in found)
            word = Word(CELL, f"cell {region.name}", sizes=sizes, collectives=names)
            self._cells[region.name] = word
        return self._cells[region.name]

    def _reductions(self, items: tuple[Item, ...]) -> Iterator[tuple[str, int]]:
        for item in items:
            if isinstance(item, Loop):
                for _ in range(item.count or 1):
                    yield from self._reductions(item.body)
            elif isinstance(item, Branch):
                yield from self._reductions(item.body)
            elif item.kind == "all_reduce":
                size = sum(self._values[name].message_bytes for name in item.targets)
                yield item.name.removeprefix("all_reduce:"), size

    def _message(self, op: Op, chunk: int) -> tuple[Word, ...]:
        name = op.attr["message"]
        key = (op.kind, name, chunk)
        if key not in self._messages:
            edge = self._edges[chunk][name]
            kind, here, there = (
                (SEND, 0, edge.target) if op.kind == "send" else (RECEIVE, 1, edge.source)
            )
            first = there.first_rank
            self._messages[key] = tuple(
                Word(kind, f"{op.kind} {name}", edge, first + pair[1 - here], (edge.size(*pair),))
                for pair in edge.pairs
                if pair[here] == self.replica
            )
        return self._messages[key]


_PAUSE, _BOUNDARY = Word(YIELD, "yield"), Word(BOUNDARY, "boundary")


def _receives(item: Lowered) -> bool:
    if isinstance(item, Loop):
        return any(map(_receives, item.body))
    if isinstance(item, Branch):
        return any(map(_receives, (*item.body, *item.orelse)))
    return isinstance(item, Op) and item.kind == "receive"
