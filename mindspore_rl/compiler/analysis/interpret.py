"""Interprets a program uncompiled on probe data, each loop once."""

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mindspore_rl.compiler.analysis.trainer import innermost, returned_at
from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op, Program, Where
from mindspore_rl.compiler.ir.operations import OPERATIONS, Handlers
from mindspore_rl.datasets.windows import blank_transitions, blank_windows
from mindspore_rl.errors import MsrlError, ProgramError, first_line
from mindspore_rl.plan.value import reduced_count
from mindspore_rl.platform import mindspore_device
from mindspore_rl.rl import operators, random
from mindspore_rl.rl.by_place import by_place, with_tuples
from mindspore_rl.rl.operators import (
    gradient_function,
    joint,
    leaves,
    minibatch_rows,
    reduce_samples,
    settle,
    take_rows,
    to_array,
)
from mindspore_rl.rl.records import is_record, values_of

NUMPY = "an array of NumPy is none of MindSpore: write Tensor(...) around it"
PAIR = "in MindSpore x.max(axis) gives values and places: write x.amax(axis), or x.max(axis)[0]"
LACKING = "MindSpore lacks it on the CPU: write einsum as products and sums, repeat as tile"
MEANS = "the means of msrl.gradient are a tuple, of one number too: `grads, (loss,) = ...`"
TYPES = "its arrays have one type, and a one_hot is of whole numbers: .astype(float32)"
ROWS = (
    "a replica, and this trial, have other numbers of rows: write -1 for the batch, or x.shape[0]"
)
evaluates = Handlers("evaluates", lambda kind: kind.probed)


def _hints(text: str, whole: str, line: str) -> list[str]:
    """Returns what may mend an error.

    Args:
        text: the first line of its message.
        whole: its type and message.
        line: the line that raised it.
    """
    extreme = re.search(r"\.(max|min)\([^)]", line) and "TypeError" in whole
    pair = extreme or "Tuple<Tensor, Tensor>" in whole
    integers = text.endswith("Init Failed: Concat") or re.search(r"be same as.*\[Int", text)
    signs = {
        PAIR: pair,
        NUMPY: "numpy.ndarray" in text,
        LACKING: re.search(r"(?i)unsupported op |not supported on", text),
        MEANS: not pair and re.search(r"'tuple'|=Tuple<", text),
        ROWS: "proposed_shape" in text,
        TYPES: integers,
    }
    return [hint for hint, sign in signs.items() if sign]


class Probe:
    """Interpreter of a program on probe data that runs each loop once.

    Attributes:
        seen: the value of each variable.
        evaluated: operations in order, with the values of the variables that they read.
        made_at: source line of the first definition of each variable.
        inserted: the values that were inserted last into each replay, by name; None: into the
            trajectory buffer.
    """

    def __init__(self, trainer: Any, program: Program, num_envs: int, environment: Any) -> None:
        self.trainer, self.program, self.num_envs = trainer, program, num_envs
        self.environment = environment
        self.seen: dict[str, Any] = {}
        self._passed: dict[str, str] = {}  # results of boundaries, by the variable they passed on
        self.evaluated: list[tuple[Op, dict[str, Any]]] = []
        self.made_at: dict[str, Where] = {}
        self.inserted: dict[str | None, tuple] = {}
        self.users_file = inspect.getsourcefile(type(trainer)) or ""
        self.names = {"trainer": trainer, "actor": trainer.actor, "learner": trainer.learner}
        self.names["by_place"] = functools.cache(by_place)  # copies each function once
        self._with_tuples = functools.cache(with_tuples)
        self.names |= {
            alias: getattr(sys.modules[module], name) for alias, module, name in program.imports
        }
        self.generator = np.random.default_rng(0)

    def run(self) -> None:
        """Evaluates the whole program."""
        self._items(self.program.body)

    def _items(self, items: tuple[Item, ...]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._op(item)
            elif isinstance(item, Loop):
                self.seen[item.index] = Tensor(np.int32(0))
                self._items(item.body)
            else:
                assert isinstance(item, Branch)
                self._items(item.body)
                self._items(item.orelse)

    def _op(self, op: Op) -> None:
        inputs = {name: self.seen[name] for name in op.reads if not name.startswith("$")}
        self._check_arrays(op, inputs)
        if op.kind == "boundary":
            self._passed |= zip(op.targets, op.args, strict=True)
        try:
            results = self._first(op, inputs)
            settle((*results, *self._cell_parameters()) if op.kind == "update" else results)
        except MsrlError:
            raise
        except Exception as error:
            raise self._failed(op, inputs, error) from error
        self.evaluated.append((op, inputs))
        for name, value in zip(op.targets, results, strict=True):
            self._see(op, name, value)

    def _check_arrays(self, op: Op, inputs: dict[str, Any]) -> None:
        """Refuses tuples as inputs of an operation that takes arrays alone."""
        for name, value in inputs.items():
            if OPERATIONS[op.kind].arrays and isinstance(value, tuple):
                name = self._passed.get(name, name)  # noqa: PLW2901  (as the program calls it)
                raise ProgramError(
                    f"{op.where}\n  {op.name} takes arrays, and `{name}` is {_describe(value)}: "
                    f"unpack it first, as in first, second = {name}"
                )

    def _failed(self, op: Op, inputs: dict[str, Any], error: Exception) -> ProgramError:
        """Returns the error of an operation that failed on probe data, and what may mend it."""
        shapes = ", ".join(f"{n} {_describe(v)}" for n, v in inputs.items())
        inside, text = innermost(error, self.users_file), first_line(error)
        lines = [
            f"{op.name} failed on probe data of {self.num_envs} environments: "
            f"{type(error).__name__}: {text}",
            f"inputs: {shapes}",
            *([f"raised at {inside.strip()}"] if inside else []),
            *_hints(text, repr(error), inside or op.where.text),
        ]
        return ProgramError("\n  ".join([str(op.where), *lines]))

    def _see(self, op: Op, name: str, value: Any) -> None:
        """Keeps the value of a variable, which is of the same shape and type in every turn."""
        if not _is_value(value):
            raise ProgramError(
                f"{op.where}\n  {op.name} gives {_describe(value)}, expected an array, a "
                "number or a tuple of them: return a tuple, and name its parts here: "
                "a, b = ..."
            )
        before = self.seen.get(name)
        if before is not None and _describe(before) != _describe(value):
            one_is_tuple = isinstance(before, tuple) != isinstance(value, tuple)
            raise ProgramError(
                f"{op.where}\n  {name} changes from {_describe(before)} to {_describe(value)}: "
                "a variable keeps its shape and type; use two names, or start a sum of real "
                "numbers at 0.0,\n  one of arrays [B, ...] at ops.zeros((obs.shape[0], ...)) or "
                "ops.zeros_like(x)" + (f"\n  {MEANS}" if one_is_tuple else "")
            )
        self.seen[name] = value
        self.made_at.setdefault(name, op.where)

    def _first(self, op: Op, inputs: dict[str, Any]) -> tuple:
        """Evaluates an operation for the first time."""
        return self.evaluate(op, inputs)

    def _cell_parameters(self) -> list[Tensor]:
        cells = (self.trainer.actor, self.trainer.learner)
        return [p for cell in cells for p in cell.get_parameters()]

    def _object(self, path: str) -> Any:
        """Returns a method, function or network of the program, by its path in the source."""
        return eval(path, {**self.names})  # noqa: S307  (a copy: `eval` adds __builtins__)

    def evaluate(self, op: Op, inputs: dict[str, Any]) -> tuple:
        """Evaluates an operation. Returns: its results, one for each target."""
        # As one scope, because a comprehension sees no local names.
        scope = {**self.names, **inputs}
        args = [eval(text, scope) for text in op.args]  # noqa: S307
        return tuple(map(_array, evaluates[op.kind](self, op, *args)))

    @evaluates("glue")
    def _glue(self, op: Op, value: Any) -> tuple:
        return _split(value, op)

    @evaluates("copy", "boundary")
    def _copy(self, _: Op, value: Any) -> tuple:
        return (value,)

    @evaluates("function")
    def _function(self, op: Op, *args: Any) -> tuple:
        return _split(getattr(operators, op.kind)(*args), op)

    @evaluates("reduction")
    def _reduction(self, op: Op, *values: Any) -> tuple:
        keep = op.attr["keep"]
        for value in values:
            _check_keep(op, keep, value)
        return tuple(
            reduce_samples(op.kind, value, keep, reduced_count(value.shape, keep))
            for value in values
        )

    @evaluates("report")
    def _report(self, op: Op, *values: Any) -> tuple:
        for key, value in zip(op.attr["keys"], values, strict=True):
            if np.size(to_array(value)) != 1:
                raise ProgramError(
                    f"{op.where}\n  metric {key!r} is {_describe(value)}, "
                    "expected a scalar: take msrl.mean() of it"
                )
        return ()

    @evaluates("constant")
    def _constant(self, _: Op, number: float) -> tuple:
        kind = np.float32 if isinstance(number, float) else np.int32
        return (Tensor(kind(number) if not isinstance(number, bool) else np.bool_(number)),)

    @evaluates("noise")
    def _noise(self, op: Op, *_: Any) -> tuple:
        size = noise_size(op, self.environment, self.trainer.actor)
        if not size:
            return (None,)
        by_agent = op.attr["owner"] == "agents"
        agents = random.all_agents(*self.trainer.spec.agent_shape) if by_agent else None
        noise = random.uniform(
            0,
            random.stream(op.attr["purpose"]),
            np.arange(op.attr["rows"]),
            np.arange(self.num_envs),
            size,
            agents,
        )
        return (Tensor(noise),)

    @evaluates("uniform_of_all")
    def _uniform_of_all(self, op: Op, *_: Any) -> tuple:
        shape = op.attr["rows"], op.attr["count"], op.attr["size"]
        return (Tensor(self.generator.random(shape, np.float32)),)

    @evaluates("permutations")
    def _permutations(self, op: Op, *_: Any) -> tuple:
        order = random.permutations(
            0,
            0,
            np.arange(op.attr["rounds"]),
            np.arange(self.num_envs),
            self.trainer.config.num_steps // op.attr["steps"],
        )
        flat = order * (op.attr["steps"] * self.num_envs) + np.arange(self.num_envs)
        return (Tensor(flat.astype(np.int32)),)

    @evaluates("index")
    def _index(self, op: Op, table: Any, row: Any) -> tuple:
        return (None if table is None else table[0],)

    @evaluates("minibatch")
    def _minibatch(self, op: Op, row: Tensor, number: Tensor, *values: Tensor) -> tuple:
        expected = (self.trainer.config.num_steps, self.num_envs)
        for value in values:
            if tuple(value.shape[:2]) != expected:
                raise ProgramError(
                    f"{op.where}\n  minibatches of {_describe(value)} with {self.num_envs} "
                    f"environments; expected [num_steps, num_envs, ...] = {list(expected)} and more"
                )
        rows = minibatch_rows(row, number, op.attr["count"], op.attr["steps"])
        return tuple(take_rows(value, rows) for value in values)

    @evaluates("joint")
    def _joint(self, op: Op, value: Any) -> tuple:
        expected = (self.num_envs, *self.trainer.spec.agent_shape)
        if not isinstance(value, Tensor) or tuple(value.shape[:2]) != expected:
            inserted = (
                "\n  a batch holds no step's agents together: insert them beside the rest, "
                'team = msrl.boundary("state", msrl.joint(reward))'
            )
            raise ProgramError(
                f"{op.where}\n  msrl.joint of {_describe(value)}, expected [num_envs, agents, ...] "
                "= "
                + (
                    f"{list(expected)} and more"
                    if len(expected) > 1
                    else "in a multi-agent environment (one whose spec has teams)"
                )
                + (inserted if self.inserted and len(expected) > 1 else "")
            )
        return (joint(value),)

    @evaluates("env_reset")
    def _env_reset(self, op: Op, noise: Any) -> tuple:
        return (self.environment.reset(noise),)

    @evaluates("env_step")
    def _env_step(self, op: Op, action: Tensor, noise: Any) -> tuple:
        return self.environment.step(action, noise)

    @evaluates("agent_act")
    def _agent_act(self, op: Op, *args: Any) -> tuple:
        keys = op.attr.get("keys", ())
        first = len(args) - len(keys)
        named = dict(zip(keys, args[first:], strict=True))
        act = self.trainer.actor.act
        if "forms" in op.attr:
            act = self._with_tuples(act, op.attr["forms"], keys)
        result = act(*args[:first], **named)
        if "named" not in op.attr and (isinstance(result, dict) or is_dataclass(result)):
            raise ProgramError(
                f"{op.where}\n  `act` returns a {type(result).__name__} in a way that is not read: "
                'write `return Decision(action=action, ...)` or `return {"action": action, ...}`'
            )
        return _split(_tuples(result) if "named" in op.attr else result, op)

    @evaluates("replay_insert", "replay_keep")
    def _replay_insert(self, op: Op, *values: Tensor) -> tuple:
        for value in values:
            if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != self.num_envs:
                raise ProgramError(
                    f"{op.where}\n  inserts {_describe(value)} with {self.num_envs} environments; "
                    "expected one row for each environment (unpack tuples; repeat a whole value "
                    "with ops.ones_like(reward) * value)"
                )
        described = [_describe(value) for value in values]
        before = self.inserted.get(op.replay, values)
        if described != [_describe(value) for value in before]:
            raise ProgramError(
                f"{op.where}\n  inserts {', '.join(described)}; elsewhere "
                f"{', '.join(map(_describe, before))}"
            )
        self.inserted[op.replay] = values
        return ()

    @evaluates("replay_sample")
    def _replay_sample(self, op: Op) -> tuple:
        """Makes a full buffer: the last record, repeated, with 10 % noise on float values."""
        return tuple(map(Tensor, self._records(op, op.attr["rows"])))

    @evaluates("replay_draw")
    def _replay_draw(self, op: Op, *_: Tensor) -> tuple:
        count, each = op.attr.get("count"), op.attr["per_env"]
        each = -(-count // self.num_envs) if count else each
        columns, steps = list(self._records(op, each)), op.attr["steps"]
        shape = columns[0].shape[:2]
        if steps:
            columns = [np.repeat(column[:, :, None], steps, axis=2) for column in columns]
        if op.attr["by"] == "priority":
            columns += [np.zeros(shape, np.int32), np.ones(shape, np.float32)]
        return tuple(Tensor(column.reshape(-1, *column.shape[2:])[:count]) for column in columns)

    @evaluates("dataset_windows")
    def _dataset_windows(self, op: Op, *_: Any) -> tuple:
        """Makes windows with the environment's shapes; float arrays hold random numbers."""
        shape = op.attr["rows"], op.attr["per_env"] * self.num_envs, op.attr["length"]
        return self._of_data(blank_windows(self.trainer.spec, *shape))

    @evaluates("dataset_transitions")
    def _dataset_transitions(self, op: Op, *_: Any) -> tuple:
        """Makes transitions; see `_dataset_windows`."""
        shape = op.attr["rows"], op.attr["per_env"] * self.num_envs
        return self._of_data(blank_transitions(self.trainer.spec, *shape))

    def _of_data(self, blank: tuple[np.ndarray, ...]) -> tuple:
        draw = self.generator.standard_normal
        return tuple(
            Tensor(draw(x.shape, np.float32) if x.dtype == np.float32 else x) for x in blank
        )

    @evaluates("replay_update")
    def _replay_update(self, op: Op, ids: Tensor, priorities: Tensor) -> tuple:
        if ids.ndim != 1 or priorities.shape != ids.shape:
            raise ProgramError(
                f"{op.where}\n  priorities {_describe(priorities)} of records {_describe(ids)}, "
                "expected one number for each of a sample"
            )
        return ()

    def _records(self, op: Op, rows: int) -> Iterator[np.ndarray]:
        """Yields the columns of the replay that an operation samples, `[rows, B, ...]`."""
        for value in self.inserted.get(op.replay, ()):
            array = to_array(value)
            column = np.repeat(array[None], rows, axis=0)
            if array.dtype == np.float32:
                column = column * self.generator.normal(1.0, 0.1, column.shape)
            yield column.astype(array.dtype)

    @evaluates("gradient")
    def _gradient(self, op: Op, *args: Any) -> tuple:
        loss, network = (self._object(path) for path in op.attr["objects"])
        forms = op.attr.get("forms", ())
        terms = leaves(by_place(loss, forms)(*args))
        odd = next((term for term in terms if term.shape != terms[0].shape), None)
        if odd is not None:
            raise ProgramError(
                f"{op.where}\n  the loss is {_describe(terms[0])} and a statistic beside it "
                f"{_describe(odd)}: expected one number a sample of each"
            )
        if not terms[0].ndim:
            raise ProgramError(
                f"{returned_at(loss) or op.where}\n  the loss is one number, expected one of each "
                "sample, [n]: leave out its mean or sum, msrl.gradient takes the mean over all "
                f"samples\n  of {op.where}"
            )
        return gradient_function(loss, network, None, forms)(*args)

    @evaluates("update")
    def _update(self, op: Op, *args: Any) -> tuple:
        (method,) = (self._object(path) for path in op.attr["objects"])
        with mindspore_device.without_jit():
            method(*args)
        return ()

    @evaluates("env_index")
    def _env_index(self, _: Op) -> tuple:
        return (Tensor(np.arange(self.num_envs, dtype=np.int32)),)

    @evaluates("agent_index")
    def _agent_index(self, op: Op) -> tuple:
        agents = self.trainer.spec.agent_shape
        if not agents:
            raise ProgramError(
                f"{op.where}\n  msrl.agent_index() in an environment of a single agent: it is for "
                "one whose spec has teams"
            )
        return (Tensor(np.arange(*agents, dtype=np.int32)),)

    @evaluates("env_steps")
    def _env_steps(self, op: Op, *_: Any) -> tuple:
        return (Tensor(np.float32(0)),)


evaluates.check()
assert all(hasattr(operators, kind) for kind, row in OPERATIONS.items() if row.function)


def noise_size(op: Op, environment: Any, actor: Any) -> int:
    """Returns the number of random numbers that a call takes per turn and environment."""
    owner = op.attr["owner"]
    if owner == "replay":
        return op.attr["size"]
    return (environment if owner == "env" else actor).noise_size


def _check_keep(op: Op, keep: Any, value: Any) -> None:
    most = max(np.ndim(to_array(value)) - 1, 0)
    if not isinstance(keep, (int, np.integer)) or not 0 <= keep <= most:
        raise ProgramError(
            f"{op.where}\n  msrl.{op.kind} with keep={keep} of {_describe(value)}, expected "
            f"0 to {most}: how many of its last axes stay"
        )


def _is_value(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_value, value))
    return value is None or isinstance(value, (Tensor, int, float, bool, np.number, np.ndarray))


def _array(value: Any) -> Any:
    """Makes arrays of Parameters and of real numbers.

    MindSpore's eager mode returns a Parameter for `parameter.copy()`; `max(x, 0.5)` is a number in
    some turns of a loop and an array in others.
    """
    if isinstance(value, (tuple, list)):
        return type(value)(map(_array, value)) if type(value) in (tuple, list) else value
    if isinstance(value, float):
        return Tensor(np.float32(value))
    return Tensor(np.array(value.asnumpy())) if isinstance(value, Parameter) else value


def _split(result: Any, op: Op) -> tuple:
    if len(op.targets) == 1:
        return (result,)
    if not isinstance(result, (tuple, list)) or len(result) != len(op.targets):
        got = len(result) if isinstance(result, (tuple, list)) else "one"
        raise ProgramError(f"{op.where}\n  {got} value(s) for {len(op.targets)} names")
    return tuple(result)


def _tuples(value: Any) -> Any:
    """Makes tuples of the records and dictionaries in a result."""
    if is_record(value):
        return tuple(map(_tuples, values_of(value)))
    return tuple(map(_tuples, value.values())) if isinstance(value, dict) else value


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_describe(part) for part in value)})"
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).lower()}"
    return "nothing" if value is None else type(value).__name__
