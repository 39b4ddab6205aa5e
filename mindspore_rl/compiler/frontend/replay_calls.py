"""Calls of msrl on records: a replay buffer, and windows of a data set."""

import ast

from mindspore_rl.compiler.frontend.random_calls import Drawing
from mindspore_rl.compiler.frontend.records import Record, alike, flattened, unflattened
from mindspore_rl.compiler.frontend.replay_rows import STRATIFIED
from mindspore_rl.compiler.frontend.scope import Follows, Static, Struct, Var
from mindspore_rl.compiler.ir.ir import num_turns
from mindspore_rl.datasets.windows import OUTPUTS, check_windows
from mindspore_rl.errors import ProgramError, ReplayError
from mindspore_rl.replay.across import ACROSS

WAYS = (STRATIFIED, *ACROSS, "priority")
"""The ways to draw records: the values of `by`."""
SAMPLE = 'expected a number of records, then `by` and `steps`: msrl.replay_sample(256, "priority")'
"""The hint in errors about a wrong call of `replay_sample`."""


class RecordCalls:
    """Reads calls that insert and draw records.

    Args:
        drawing: the reader of random calls.
        num_envs: environments of the job.
        wanted: records per environment of each count in the job's program, in reading order; given
            where the trainer has fewer environments than the job. Empty: the trainer is the job's.

    Attributes:
        each: records per environment of each count read so far, in reading order.
        keep: capacity of the kept replay in records of an environment; 0: a trajectory buffer;
            None: nothing was inserted yet.
    """

    def __init__(self, drawing: Drawing, num_envs: int, wanted: tuple[int, ...] = ()) -> None:
        self.drawing, self.num_envs, self.wanted = drawing, num_envs, wanted
        self.each: list[int] = []
        self.reader, self.draft = drawing.reader, drawing.draft
        self.keep: int | None = None
        self._width: int | None = None  # number of values of a record; None before any insertion
        self._record: Record | None = None  # the NamedTuple that was inserted

    def insert(self, node: ast.Call) -> Struct:
        """Reads an insertion into the trajectory buffer or, with `keep`, into the kept replay."""
        values = tuple(self.reader.elements(node.args))
        record = values[0] if len(values) == 1 and isinstance(values[0], Record) else None
        if record is not None:
            values = tuple(flattened(record))
        if self._width not in (None, len(values)) or not values:
            self.draft.fail(node, f"inserting {len(values)} values, elsewhere {self._width},")
        if self._width is not None and not alike(self._record, record):
            self.draft.fail(node, "inserting another record than elsewhere", "insert one kind")
        self._width, self._record, keep = len(values), record, 0
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
        texts, reads = self.reader.texts(list(self.draft.taken(kind, values)), node)
        self.draft.emit(kind, (), tuple(texts), reads=reads, attrs=attrs)
        return Static(None)

    def draw(self, node: ast.Call) -> Struct:
        """Reads a draw of kept records with this turn's random numbers."""
        targets = self.sampled(node)
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
        if by in ACROSS:  # needs the random numbers of all environments, not only a replica's
            attrs["purpose"] = self.draft.name_op("replay_sample_noise")
        else:
            noise = (self.drawing.numbers("replay_sample", 2 * each, node),)
        more = tuple(attrs.items())
        found = self.draft.emit("replay_draw", targets, noise, reads=noise, attrs=more)
        return self.as_inserted(self.draft.given("replay_draw", found))

    def as_inserted(self, found: tuple[Struct, ...]) -> Struct:
        """A sample in the form in which records were inserted; ids and odds stand behind it."""
        if self._record is None:
            return found
        parts = iter(found)
        record = unflattened(self._record, parts)
        more = tuple(parts)
        return (record, *more) if more else record

    def _way(self, node: ast.Call) -> tuple[str, int]:
        """Returns how records are drawn (`by`) and the number of steps of a window (`steps`)."""
        given = dict(zip(("count", "by", "steps"), node.args, strict=False))
        given |= {str(item.arg): item.value for item in node.keywords}
        found = {key: self.draft.frame.known(value) for key, value in given.items()}
        by, steps = found.pop("by", STRATIFIED), found.pop("steps", 0)
        if by not in WAYS or len(node.args) > 3:
            known = ", ".join(f'"{way}"' for way in WAYS)
            self.draft.fail(node, f"a sample by {by!r}", f"by one of {known}")
        if odd := set(found) - {"count"}:
            self.draft.fail(node, f"the argument {odd.pop()!r} of replay_sample", SAMPLE)
        if type(steps) is not int or steps < 0 or not node.args:
            self.draft.fail(node, f"a sample of windows of {steps!r} steps", SAMPLE)
        return by, steps

    def sampled(self, node: ast.Call) -> tuple[str, ...]:
        """Makes new names for the values of a record."""
        if self._width is None:
            if getattr(self.reader, "problems", None):  # perhaps with the insertion
                raise Follows("msrl.replay_sample")
            self.draft.fail(node, "msrl.replay_sample() before any msrl.replay_insert()")
        return tuple(self.draft.new_temporary("sample") for _ in range(self._width or 0))

    def uniform(self, node: ast.Call) -> Struct:
        """Reads `msrl.uniform`: random numbers for a batch with equal rows per environment."""
        if len(node.args) != 2:
            self.draft.fail(node, f"msrl.uniform with {len(node.args)} arguments, expected 2")
        size = self.draft.frame.known(node.args[1])
        if type(size) is not int or size < 1:
            self.draft.fail(node, f"msrl.uniform of {size} numbers a row", "at least 1")
        each = self._shared("a batch", node.args[0])
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
        try:
            file = check_windows(path, length, self.reader.trainer.spec)
        except ReplayError as error:
            raise ProgramError(f"{self.draft.frame.where(node)}\n  {error}") from error
        loops, purpose = self.drawing.inner_loops(), self.draft.name_op("dataset_windows_order")
        attrs = {"purpose": purpose, "path": file, "per_env": each, "length": length}
        attrs["rows"] = num_turns(loops)
        names = tuple(f"dataset_{name}" for name in OUTPUTS)
        return tuple(map(Var, self.drawing.rows("dataset_windows", names, loops, node, attrs)))

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
