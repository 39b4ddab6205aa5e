"""Calls of msrl on records: a replay buffer, and windows of a data set."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from mindspore_rl.compiler.frontend.random_calls import Drawing
from mindspore_rl.compiler.frontend.records import alike, flattened, is_record, unflattened
from mindspore_rl.compiler.frontend.replay_rows import STRATIFIED
from mindspore_rl.compiler.frontend.scope import Follows, Static, Struct, Var
from mindspore_rl.compiler.ir.ir import num_turns
from mindspore_rl.datasets.windows import (
    OF_TRANSITIONS,
    OUTPUTS,
    TRANSITIONS,
    check_transitions,
    check_windows,
)
from mindspore_rl.errors import ProgramError, ReplayError
from mindspore_rl.platform.names import is_name
from mindspore_rl.replay.across import ACROSS

WAYS = (STRATIFIED, *ACROSS, "priority")
"""The ways to draw records: the values of `by`."""
ANOTHER = 'the records of one replay are alike: put others into another, into="model"'
"""The hint in errors about insertions that differ."""
SAMPLE = 'expected a number of records, then `by` and `steps`: msrl.replay_sample(256, "priority")'
"""The hint in errors about a wrong call of `replay_sample`."""


@dataclass(frozen=True)
class Store:
    """The trajectory buffer, or a kept replay.

    Attributes:
        keep: capacity in records of an environment; 0: a trajectory buffer.
        width: number of values of a record.
        record: the record that was inserted, or the values if some are tuples or records.
    """

    keep: int
    width: int
    record: tuple | dict | None


def stored(name: str) -> tuple[tuple[str, str], ...]:
    """Returns the attribute of an operation on a replay with a name."""
    return (("store", name),) if name else ()


class RecordCalls:
    """Reads calls that insert and draw records.

    Args:
        drawing: the reader of random calls.
        num_envs: environments of the job.
        wanted: records per environment of each count in the job's program, in reading order; given
            where the trainer has fewer environments than the job. Empty: the trainer is the job's.

    Attributes:
        each: records per environment of each count read so far, in reading order; 0: of a batch
            in which environments have different numbers of records.
        stores: replays by name; None: the trajectory buffer; "": the kept replay without a name.
    """

    def __init__(self, drawing: Drawing, num_envs: int, wanted: tuple[int, ...] = ()) -> None:
        self.drawing, self.num_envs, self.wanted = drawing, num_envs, wanted
        self.each: list[int] = []
        self.reader, self.draft = drawing.reader, drawing.draft
        self.stores: dict[str | None, Store] = {}

    def insert(self, node: ast.Call) -> Struct:
        """Reads an insertion into the trajectory buffer or, with `keep`, into the kept replay."""
        values = tuple(self.reader.elements(node.args))
        record: tuple | dict | None = None
        if any(isinstance(value, (tuple, dict)) for value in values):
            record = values[0] if len(values) == 1 and is_record(values[0]) else values
            values = tuple(flattened(record))
        keep, into = 0, self.name(node, "into")
        for item in node.keywords:
            if item.arg not in ("keep", "into"):
                self.draft.fail(item.value, f"the argument {item.arg!r} of replay_insert")
            if item.arg == "keep":
                keep = self._per_env("keep", item.value)
        if into and not keep:
            self.draft.fail(
                node,
                f'a replay "{into}" that keeps nothing',
                f'say how many records: keep=100_000, into="{into}"; or leave into= and of= out: '
                "then\n  msrl.replay_sample() gives all steps of this iteration",
            )
        before = self.stores.setdefault(into if keep else None, Store(keep, len(values), record))
        if before.width != len(values) or not values:
            self.draft.fail(
                node, f"inserting {len(values)} values, elsewhere {before.width},", ANOTHER
            )
        if not alike(before.record, record):
            self.draft.fail(node, "inserting another record than elsewhere", ANOTHER)
        if before.keep != keep:
            self.draft.fail(node, "another `keep` than elsewhere", ANOTHER)
        kind = "replay_keep" if keep else "replay_insert"
        attrs = (("capacity", keep), *stored(into)) if keep else ()
        texts, reads = self.reader.texts(list(self.draft.taken(kind, values)), node)
        self.draft.emit(kind, (), tuple(texts), reads=reads, attrs=attrs)
        return Static(None)

    def draw(self, node: ast.Call) -> Struct:
        """Reads a draw of kept records with this turn's random numbers."""
        of = self.name(node, "of")
        if of not in self.stores:
            self._fail_without(node, of)
        store = self.stores[of]
        targets = self._sampled(store)
        by, steps = self._way(node)
        if by == "priority":
            targets += tuple(self.draft.new_temporary(name) for name in ("ids", "odds"))
        each, whole = self._batch("a sample", node.args[0], by)
        attrs = {"per_env": each, "capacity": store.keep, "by": by, "steps": steps}
        attrs |= dict(stored(of)) | ({"count": whole} if whole else {})
        noise: tuple[str, ...] = ()
        if by in ACROSS or whole:  # needs the random numbers of all replicas' environments
            if self.draft.unrolled:
                self.draft.fail(
                    node,
                    f"a sample of {ast.unparse(node.args[0])} records of all environments together "
                    "in an unrolled loop",
                    "take a multiple of num_envs, or one sample before the loop for all its turns",
                )
            attrs["purpose"] = self.drawing.purpose("replay_sample")
            attrs["rows"] = num_turns(self.drawing.inner_loops())
        else:
            noise = (self.drawing.numbers("replay_sample", 2 * each, node),)
        more = tuple(attrs.items())
        found = self.draft.emit("replay_draw", targets, noise, reads=noise, attrs=more)
        return self.as_inserted(self.draft.given("replay_draw", found), of)

    def updated(self, node: ast.Call) -> dict[str, str]:
        """Returns the attributes of an update of priorities."""
        for item in node.keywords:
            if item.arg != "of":
                self.draft.fail(item.value, f"the argument {item.arg!r} of replay_update")
        return dict(stored(self.name(node, "of")))

    def name(self, node: ast.Call, word: str) -> str:
        """Returns the name of a replay that a call gives as the argument `word`; empty: none."""
        for item in node.keywords:
            if item.arg == word:
                name = self.draft.frame.known(item.value)
                if not (is_name(name) and name.isidentifier()):
                    self.draft.fail(
                        item.value, f"a replay with the name {name!r}", 'expected a word, "model"'
                    )
                return str(name)
        return ""

    def _fail_without(self, node: ast.Call, of: str) -> NoReturn:
        """Refuses a draw of records that are not kept, or not under this name."""
        if not self.stores:
            self._fail_before(node)
        into = f', into="{of}"' if of else ""
        named = "".join(f', or sample another: of="{name}"' for name in self.stores if name)
        self.draft.fail(
            node,
            "msrl.replay_sample with a number of records that are not kept"
            + (f' as "{of}"' if of else ""),
            f"keep them: msrl.replay_insert(obs, action, keep=100_000{into}){named}",
        )

    def _fail_before(self, node: ast.Call) -> NoReturn:
        if getattr(self.reader, "problems", None):  # perhaps with the insertion
            raise Follows("msrl.replay_sample")
        self.draft.fail(node, "msrl.replay_sample() before any msrl.replay_insert()")

    def as_inserted(self, found: tuple[Struct, ...], of: str | None = None) -> Struct:
        """A sample in the form in which records were inserted; ids and odds stand behind it."""
        inserted = self.stores[of].record
        if inserted is None:
            return found
        parts = iter(found)
        record = unflattened(inserted, parts)
        more = tuple(parts)
        if is_record(inserted):
            return (record, *more) if more else record
        return (*record, *more)

    def _way(self, node: ast.Call) -> tuple[str, int]:
        """Returns how records are drawn (`by`) and the number of steps of a window (`steps`)."""
        given = dict(zip(("count", "by", "steps"), node.args, strict=False))
        given |= {str(item.arg): item.value for item in node.keywords}
        found = {key: self.draft.frame.known(value) for key, value in given.items()}
        by, steps = found.pop("by", STRATIFIED), found.pop("steps", 0)
        if by not in WAYS or len(node.args) > 3:
            known = ", ".join(f'"{way}"' for way in WAYS)
            self.draft.fail(node, f"a sample by {by!r}", f"by one of {known}")
        if odd := set(found) - {"count", "of"}:
            self.draft.fail(node, f"the argument {odd.pop()!r} of replay_sample", SAMPLE)
        if type(steps) is not int or steps < 0 or not node.args:
            self.draft.fail(node, f"a sample of windows of {steps!r} steps", SAMPLE)
        return by, steps

    def sampled(self, node: ast.Call) -> tuple[str, ...]:
        """Makes new names for the values of a record of the trajectory buffer."""
        if not self.stores:
            self._fail_before(node)
        if None not in self.stores:
            self.draft.fail(
                node,
                "msrl.replay_sample() of records that are kept",
                "say how many: msrl.replay_sample(256)",
            )
        return self._sampled(self.stores[None])

    def _sampled(self, store: Store) -> tuple[str, ...]:
        return tuple(self.draft.new_temporary("sample") for _ in range(store.width))

    def uniform(self, node: ast.Call) -> Struct:
        """Reads `msrl.uniform`: random numbers for a batch with equal rows per environment."""
        if len(node.args) != 2:
            self.draft.fail(node, f"msrl.uniform with {len(node.args)} arguments, expected 2")
        size = self.draft.frame.known(node.args[1])
        if type(size) is not int or size < 1:
            self.draft.fail(node, f"msrl.uniform of {size} numbers a row", "at least 1")
        each, whole = self._batch("a batch", node.args[0])
        if whole:
            loops, purpose = self.drawing.inner_loops(), self.drawing.purpose("uniform")
            attrs = {"purpose": purpose, "count": whole, "size": size, "rows": num_turns(loops)}
            return Var(self.drawing.rows("uniform_of_all", ("uniform",), loops, node, attrs)[0])
        noise = self.drawing.numbers("uniform", each * size, node)
        target = self.draft.new_temporary("value")
        return self.draft.emit("uniform", (target,), (noise, str(size)), reads=(noise,))[0]

    def windows(self, node: ast.Call) -> Struct:
        """Reads `msrl.dataset_windows`: equally many windows of a data set per environment.

        The windows of one iteration are read from the file at once.
        """
        known = self.draft.frame.known
        if len(node.args) != 3:
            self.draft.fail(node, f"msrl.dataset_windows with {len(node.args)} arguments")
        path, length = known(node.args[0]), known(node.args[2])
        each = self._shared("a batch", node.args[1])
        check = partial(check_windows, path, length)
        return self._of_dataset("dataset_windows", node, check, OUTPUTS, each, length)

    def transitions(self, node: ast.Call) -> Struct:
        """Reads `msrl.dataset_transitions`, see `windows`."""
        if len(node.args) != 2:
            self.draft.fail(node, f"msrl.dataset_transitions with {len(node.args)} arguments")
        each = self._shared("a batch", node.args[1])
        check = partial(check_transitions, self.draft.frame.known(node.args[0]))
        return self._of_dataset(
            "dataset_transitions", node, check, OF_TRANSITIONS, each, TRANSITIONS
        )

    def _of_dataset(
        self,
        kind: str,
        node: ast.Call,
        check: Callable,
        names: tuple[str, ...],
        each: int,
        length: int,
    ) -> Struct:
        """Emits the reading of a data set that `check` opens; its results have these names."""
        try:
            file = check(self.reader.trainer.spec)
        except ReplayError as error:
            raise ProgramError(f"{self.draft.frame.where(node)}\n  {error}") from error
        loops, purpose = self.drawing.inner_loops(), self.draft.name_op(f"{kind}_order")
        attrs = {"purpose": purpose, "path": file, "per_env": each, "length": length}
        attrs["rows"] = num_turns(loops)
        tables = tuple(f"dataset_{name}" for name in names)
        return tuple(map(Var, self.drawing.rows(kind, tables, loops, node, attrs)))

    def _batch(self, what: str, node: ast.expr, by: str = "") -> tuple[int, int]:
        """Returns a batch's records per environment, rounded up, and its size.

        The size is 0 if each environment has equally many.
        """
        number = self.draft.frame.known(node)
        wanted = self.wanted[len(self.each) : len(self.each) + 1]
        whole = wanted == (0,)
        if not self.wanted and by != "priority" and type(number) is int and number > 0:
            whole = number % self.num_envs != 0
        if not whole:
            return self._shared(what, node), 0
        self.each.append(0)
        return -(-number // self.num_envs), number

    def _shared(self, what: str, node: ast.expr) -> int:
        """Returns records per environment for a count that must divide evenly among all."""
        each, number = self._per_env(what, node), self.draft.frame.known(node)
        if not self.wanted and each * self.num_envs != number:
            self.draft.fail(
                node,
                f"{what} of {number} records with {self.num_envs} environments",
                f"each has as many: choose a multiple, such as {each * self.num_envs}",
            )
        return each

    def _per_env(self, what: str, node: ast.expr) -> int:
        """Returns records per environment of the job, for a count over all environments."""
        number = self.draft.frame.known(node)
        least = min(self.num_envs, self.reader.trainer.config.num_envs)
        if type(number) is not int or number < least:
            self.draft.fail(
                node, f"{what} of {number} records", f"expected at least {self.num_envs}, one each"
            )
        each = number // self.num_envs
        wanted = self.wanted[len(self.each) : len(self.each) + 1]
        own = self.reader.trainer.config.num_envs
        if wanted and number == wanted[0] * own:  # the count is a multiple of num_envs
            each = wanted[0]
        self.each.append(each)
        return each
