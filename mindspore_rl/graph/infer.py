"""Shapes, environment axes and row independence, by evaluating the graph on probe data.

Every loop is taken once, uncompiled, with two small numbers of environments: the axis whose
extent follows that number is the axis along which environments lie. Then each operation is tried
on one share of the environments against the whole, so that a reduction over the batch that is not
marked is found before it trains something else than it says.
"""

import sys
from dataclasses import replace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl.environments.local import LocalEnvironment
from mindspore_rl.errors import MsrlError, ProgramError
from mindspore_rl.graph.build import build
from mindspore_rl.graph.ir import REDUCTIONS, Branch, Item, Loop, Op, Program, Value
from mindspore_rl.operators import (
    gradient_function,
    leaves,
    minibatch_rows,
    reduce_samples,
    reduced_count,
    take_rows,
    to_array,
)
from mindspore_rl.rl import random

PROBE_ENVS = (4, 6)
SHARE = slice(0, 2)


def infer(trainer_class: type, config: Any, spec: Any, algorithm: str) -> Program:
    """Builds the program and completes it with what a probe run shows.

    Raises:
        ProgramError: the program cannot be read, or an operation fails on probe data.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    probes = []
    for num_envs in PROBE_ENVS:
        trainer = trainer_class(replace(config, num_envs=num_envs), spec)
        probe = _Probe(trainer, build(trainer, algorithm), num_envs)
        probe.run()
        probes.append(probe)
    program = build(trainer_class(config, spec), algorithm)
    values: dict[str, Value] = {}
    probe_values: dict[str, Value] = {}
    small, large = probes
    for name, sample in large.seen.items():
        probe_values[name] = _compare(small.seen[name], sample)
        values[name] = _scaled(probe_values[name], config.num_envs)
    dependent = {}
    for op, inputs in large.trials:
        evidence = large.row_dependence(op, inputs, probe_values)
        if evidence:
            dependent[op.name] = evidence
    return replace(program, values=values, row_dependent=dependent)


class _Probe:
    """Evaluates a program with each loop taken once."""

    def __init__(self, trainer: Any, program: Program, num_envs: int) -> None:
        self.trainer, self.program, self.num_envs = trainer, program, num_envs
        spec, seed = trainer.spec, trainer.config.seed
        self.environment = LocalEnvironment(spec.name, spec.in_graph, range(num_envs), seed)
        self.seen: dict[str, Any] = {}
        self.trials: list[tuple[Op, dict[str, Any]]] = []
        self.row: tuple = ()
        self.names = {"trainer": trainer, "actor": trainer.actor, "learner": trainer.learner}
        self.names |= {name: _resolve(module, name) for name, module in program.imports}
        self.generator = np.random.default_rng(0)

    def run(self) -> None:
        """Evaluates the whole program."""
        try:
            self._items(self.program.body)
        finally:
            self.environment.close()

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
        try:
            results = self.evaluate(op, inputs)
        except MsrlError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{n} {_describe(v)}" for n, v in inputs.items())
            raise ProgramError(
                f"{op.where}\n  {op.name} failed on probe data of {self.num_envs} environments: "
                f"{type(error).__name__}: {str(error).strip().splitlines()[0]}\n  inputs: {shapes}"
            ) from error
        if op.kind in ("glue", "agent_act", "gradient"):
            self.trials.append((op, inputs))
        for name, value in zip(op.targets, results, strict=True):
            before = self.seen.get(name)
            if before is not None and _describe(before) != _describe(value):
                raise ProgramError(
                    f"{op.where}\n  {name} changes from {_describe(before)} to {_describe(value)}: "
                    "a variable keeps its shape and type; use two names"
                )
            self.seen[name] = value

    def evaluate(self, op: Op, inputs: dict[str, Any]) -> tuple:
        """The operation's results, one for each target."""
        args = [eval(text, self.names, dict(inputs)) for text in op.args]  # noqa: S307
        special = getattr(self, f"_{op.kind}", None)
        if special is not None:
            return special(op, *args)
        if op.kind in ("copy", "boundary"):
            return (args[0],)
        if op.kind in REDUCTIONS:
            keep = op.attr("keep")
            return tuple(reduce_samples(op.kind, value, keep, reduced_count(value.shape, keep))
                         for value in args)
        if op.kind == "report":
            for key, value in zip(op.attr("keys"), args, strict=True):
                if np.size(to_array(value)) != 1:
                    raise ProgramError(f"{op.where}\n  metric {key!r} is {_describe(value)}, "
                                       "expected a scalar: take msrl.mean() of it")
            return ()
        assert op.kind == "glue", op.kind
        return _split(args[0], op)

    def _constant(self, _: Op, number: float) -> tuple:
        kind = np.float32 if isinstance(number, float) else np.int32
        return (Tensor(kind(number) if not isinstance(number, bool) else np.bool_(number)),)

    def _noise(self, op: Op, *_: Any) -> tuple:
        owner = self.environment if op.attr("owner") == "env" else self.trainer.actor
        if not owner.noise_size:
            return (None,)
        return (Tensor(random.uniform(
            0, random.stream(op.attr("purpose")), np.arange(op.attr("rows")),
            np.arange(self.num_envs), owner.noise_size)),)

    def _permutations(self, op: Op, *_: Any) -> tuple:
        order = random.permutations(0, 0, np.arange(op.attr("rounds")), np.arange(self.num_envs),
                                    self.trainer.config.num_steps)
        flat = order * self.num_envs + np.arange(self.num_envs)
        return (Tensor(flat.astype(np.int32)),)

    def _index(self, op: Op, table: Any, row: Any) -> tuple:
        return (None if table is None else table[0],)

    def _minibatch(self, op: Op, row: Tensor, number: Tensor, *values: Tensor) -> tuple:
        rows = minibatch_rows(row, number, op.attr("count"))
        return tuple(take_rows(value, rows) for value in values)

    def _env_reset(self, op: Op, noise: Any) -> tuple:
        return (self.environment.reset(noise),)

    def _env_step(self, op: Op, action: Tensor, noise: Any) -> tuple:
        return self.environment.step(action, noise)

    def _agent_act(self, op: Op, *args: Any) -> tuple:
        given = args[:-1] if args[-1] is None else args
        return _split(self.trainer.actor.act(*given), op)

    def _replay_insert(self, op: Op, *values: Tensor) -> tuple:
        self.row = values
        return ()

    def _replay_sample(self, op: Op) -> tuple:
        """A full buffer: the row seen, repeated, with 10 % noise where it is real-valued."""
        columns = []
        for value in self.row:
            array = to_array(value)
            column = np.repeat(array[None], op.attr("rows"), axis=0)
            if array.dtype == np.float32:
                column = column * self.generator.normal(1.0, 0.1, column.shape)
            columns.append(Tensor(column.astype(array.dtype)))
        return tuple(columns)

    def _gradient(self, op: Op, *args: Any) -> tuple:
        loss, network = (eval(path, self.names) for path in op.attr("objects"))  # noqa: S307
        self.seen[f"{op.name}.loss"] = leaves(loss(*args))[0]
        return gradient_function(loss, network, None)(*args)

    def _update(self, op: Op, *args: Any) -> tuple:
        (method,) = (eval(path, self.names) for path in op.attr("objects"))  # noqa: S307
        method(*args)
        return ()

    def _env_steps(self, op: Op, *_: Any) -> tuple:
        return (Tensor(np.float32(0)),)

    # ---- one share against the whole -------------------------------------------------------

    def row_dependence(self, op: Op, inputs: dict, values: dict[str, Value]) -> str:
        """Evidence that a row of the result depends on other rows; empty if there is none."""
        if not any(name in values and values[name].split for name in inputs):
            return ""
        if op.kind == "gradient":
            op = replace(op, kind="glue", args=(f"{op.attr('objects')[0]}({', '.join(op.args)})",),
                         targets=("loss",))
        share = {name: _select(value, values[name]) for name, value in inputs.items()}
        whole, part = (leaves(self.evaluate(op, given)) for given in (inputs, share))
        for index, (a, b) in enumerate(zip(whole, part, strict=True)):
            full, some = to_array(a), to_array(b)
            name = op.targets[index] if index < len(op.targets) else op.targets[-1]
            axis = [i for i in range(full.ndim) if full.shape[i] != some.shape[i]]
            if not axis:
                if full.size and not np.allclose(full, some, rtol=1e-3, atol=1e-5):
                    return f"{name} {list(full.shape)} sums up rows of all environments"
                continue
            chosen = _columns(full, axis[0], self.num_envs)
            if not np.allclose(chosen, some, rtol=1e-3, atol=1e-5):
                worst = float(np.max(np.abs(chosen.astype(float) - some.astype(float))))
                return (f"{name} {list(full.shape)}: rows of 2 environments computed alone differ "
                        f"by {worst:.2g} from the same rows computed among {self.num_envs}")
        return ""


def _split(result: Any, op: Op) -> tuple:
    if len(op.targets) == 1:
        return (result,)
    if not isinstance(result, (tuple, list)) or len(result) != len(op.targets):
        got = len(result) if isinstance(result, (tuple, list)) else "one"
        raise ProgramError(f"{op.where}\n  {got} value(s) for {len(op.targets)} names")
    return tuple(result)


def _resolve(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name)


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_describe(part) for part in value)})"
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).lower()}"
    return "nothing" if value is None else type(value).__name__


def _compare(small: Any, large: Any) -> Value:
    """What a value seen with 4 and with 6 environments is."""
    if isinstance(large, (tuple, list)):
        return Value((), "tuple", parts=tuple(map(_compare, small, large)))
    if large is None:
        return Value((), "none")
    array, other = to_array(large), to_array(small)
    if array.ndim != other.ndim:
        raise ProgramError(f"a value of rank {array.ndim} changes its rank with num_envs")
    axes = [i for i in range(array.ndim) if array.shape[i] != other.shape[i]]
    if not axes:
        return Value(array.shape, array.dtype.name)
    axis = axes[0]
    per_env, rest = divmod(array.shape[axis], PROBE_ENVS[1])
    if len(axes) > 1 or rest or per_env * PROBE_ENVS[0] != other.shape[axis]:
        raise ProgramError(
            f"a value is {list(other.shape)} with {PROBE_ENVS[0]} environments and "
            f"{list(array.shape)} with {PROBE_ENVS[1]}: expected one axis in proportion to them")
    return Value(array.shape, array.dtype.name, axis, per_env)


def _scaled(value: Value, num_envs: int) -> Value:
    if value.parts:
        return replace(value, parts=tuple(_scaled(part, num_envs) for part in value.parts))
    if value.axis is None:
        return value
    shape = list(value.shape)
    shape[value.axis] = value.per_env * num_envs
    return replace(value, shape=tuple(shape))


def _select(value: Any, meta: Value) -> Any:
    if meta.parts:
        return tuple(map(_select, value, meta.parts))
    if meta.axis is None:
        return value
    return Tensor(_columns(to_array(value), meta.axis, PROBE_ENVS[1]))


def _columns(array: np.ndarray, axis: int, num_envs: int) -> np.ndarray:
    """The first environments of an axis on which they are innermost."""
    before, extent, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    split = array.reshape(*before, extent // num_envs, num_envs, *after)
    share = np.take(split, range(SHARE.stop), axis=axis + 1)
    return np.ascontiguousarray(share.reshape(*before, -1, *after))
