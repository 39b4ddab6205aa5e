"""Shapes, environment axes and row independence, by evaluating the graph on probe data.

Every loop is run once, uncompiled, with two small numbers of environments: the axis whose extent
changes with that number is the axis of environments. Then each operation is compiled and its graph
is read (`compiled_ops`), and it is tried on some of the environments against all of them
(`row_trials`).
"""

import ast
import contextlib
import copy
import inspect
import pickle
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from mindspore_rl.compiler.analysis.agent_axes import AgentAxes
from mindspore_rl.compiler.analysis.branch_types import check_branches
from mindspore_rl.compiler.analysis.compiled_ops import Reading
from mindspore_rl.compiler.analysis.integers import check_integers
from mindspore_rl.compiler.analysis.interpret import Probe
from mindspore_rl.compiler.analysis.own_rows import take_own_rows
from mindspore_rl.compiler.analysis.row_trials import RowTrials, drawn, environment_rows
from mindspore_rl.compiler.analysis.trainer import smaller_trainers
from mindspore_rl.compiler.analysis.watchful_probe import WatchfulProbe
from mindspore_rl.compiler.frontend.build import build, read
from mindspore_rl.compiler.ir.ir import Item, Loop, Op, Program, paths, walk
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.environments.tensor_env import GrowingEnvironment
from mindspore_rl.errors import ProgramError
from mindspore_rl.plan.value import Value
from mindspore_rl.platform.cache import in_cache, keep
from mindspore_rl.purity.calls import RANDOM
from mindspore_rl.purity.fingerprint import Unknown, fingerprint
from mindspore_rl.rl.operators import to_array

PROBE_ENVS = tuple(range(4, 130, 2))
"""Numbers of environments to analyse with: the first two that the program's Config takes."""
P = TypeVar("P", bound=Probe)


@dataclass(frozen=True)
class Findings:
    """Results of probing a program, independent of its number of environments and its seed.

    Attributes:
        programs: the programs with these numbers of environments.
        num_envs: the two numbers, see `PROBE_ENVS`.
        values, row_dependent, unsplittable, agents_mixed: see `Program`; the values are those of
            the larger probe.
    """

    programs: tuple[Program, ...]
    num_envs: tuple[int, ...]
    values: dict[str, Value]
    row_dependent: dict[str, str]
    unsplittable: tuple[str, ...]
    agents_mixed: dict[str, str]


def infer(
    program: Program, trainer: Any, compiled: bool = True, cached: bool = False, job: Any = None
) -> Program:
    """Adds values and row dependence to a program, from probe runs and compiled graphs.

    Args:
        program: the program, as `build` returns it.
        trainer: the job's trainer.
        compiled: whether the job's cells will be compiled; then every operation must compile.
        cached: whether to reuse the cached results of the same program.
        job: the trainer's loop, as `read` returns it; None: it is read here.

    Raises:
        ProgramError: an operation fails on probe data, draws random numbers, or does not compile,
            or the program depends on the number of environments.
    """
    num_envs = trainer.config.num_envs
    name = _name_in_cache(trainer, program, compiled) if cached else ""
    found = _from_cache(name)
    if found is None:
        found = _examine(program, trainer, compiled, job or read(trainer))
        if name:
            keep(name, pickle.dumps(found))
    else:
        _check_same(program, found.programs, found.num_envs, num_envs)
    inferred = replace(
        program,
        values={name: _scaled(value, num_envs) for name, value in found.values.items()},
        row_dependent=found.row_dependent,
        unsplittable=found.unsplittable,
        teams=tuple(team.num_agents for team in trainer.spec.teams),
        agents_mixed=found.agents_mixed,
    )
    return take_own_rows(inferred, num_envs)


def _name_in_cache(trainer: Any, program: Program, compiled: bool) -> str:
    """Returns the cache name of a program's findings; empty if it has no unique fingerprint."""
    algorithm = program.algorithm
    small, cls = next(smaller_trainers(trainer, PROBE_ENVS, algorithm)), type(trainer)
    kinds = ("noise", "replay_keep", "replay_draw", "dataset_windows", "dataset_transitions")
    each = [op.attrs for op, _ in walk(program.body) if op.kind in kinds]
    parts = (small, cls, inspect.getfile(cls), algorithm, compiled, each)
    with contextlib.suppress(Unknown, OSError):
        return f"programs/{fingerprint(parts)}.pickle"
    return ""


def _from_cache(name: str) -> Findings | None:
    path = in_cache(name) if name else None
    if path is not None:
        with contextlib.suppress(Exception):  # a damaged file is ignored
            found = pickle.loads(path.read_bytes())  # noqa: S301  (this user's own)
            return found if isinstance(found, Findings) else None
    return None


def _examine(program: Program, trainer: Any, compiled: bool, job: Any) -> Findings:
    """Evaluates a program with two small numbers of environments and reads its compiled graph."""
    config = trainer.config
    with GrowingEnvironment(config.env, trainer.spec.in_graph, config.seed) as shared:
        trainers = smaller_trainers(trainer, PROBE_ENVS, program.algorithm)
        few, more = next(trainers), next(trainers)
        small = _probed(WatchfulProbe, few, job, program.algorithm, shared)
        large = _probed(Probe, more, job, program.algorithm, shared)
    programs, counts = (small.program, large.program), (small.num_envs, large.num_envs)
    _check_same(program, programs, counts, trainer.config.num_envs)
    values = _values(small, large, program.algorithm)
    if compiled:
        check_branches(large)
    reading = Reading(program, large.names, large.evaluated, compiled)
    _check_pure(small, reading)
    check_integers(large)
    rows, numbers = environment_rows(large.num_envs), drawn(large.program)
    trials = RowTrials(large.evaluate, rows, large.generator, reading, numbers)
    dependent: dict[str, str] = {}
    unsplittable: dict[str, None] = {}
    smaller = {op.name: op.args for op, _ in walk(small.program.body)}
    for op, inputs in large.evaluated:
        if not OPERATIONS[op.kind].tried:
            continue
        evidence = trials.evidence(op, inputs, values)
        if evidence:
            dependent[op.name] = op.told(evidence)
        takes_rows = any(name in values and values[name].split for name in inputs)
        if op.kind != "glue" or not any(values[t].split for t in op.targets):
            continue
        if not takes_rows or (
            # the number of environments is in the expression, beside arrays that have their rows
            not evidence and op.args != smaller[op.name] and trials.makes_all(op, inputs, values)
        ):
            unsplittable[op.name] = None
    agents = AgentAxes(
        large.evaluate, trainer.spec.teams, values, large.generator, reading, numbers
    )
    for op, inputs in large.evaluated:
        agents.follow(op, inputs)
    agents.mixed.update({name: text for name, text in dependent.items() if text == RANDOM})
    return Findings(programs, counts, agents.values, dependent, tuple(unsplittable), agents.mixed)


def _probed(kind: type[P], smaller: Any, job: Any, algorithm: str, shared: GrowingEnvironment) -> P:
    num_envs = smaller.config.num_envs
    probe = kind(smaller, build(smaller, algorithm, job), num_envs, shared.grow(num_envs))
    probe.run()
    return probe


def _check_same(
    program: Program, probed: tuple[Program, ...], numbers: tuple[int, ...], num_envs: int
) -> None:
    """Checks that the probed programs equal the job's, except for numbers in expressions."""
    for probe, number in zip(probed, numbers, strict=True):
        ours, theirs = ([item for item, _ in paths(p.body)] for p in (program, probe))
        for item, other in zip_longest(ours, theirs):
            if item is None or other is None or _form(item) != _form(other):
                odd = item or other
                raise ProgramError(
                    f"{odd.where}\n  {odd.name} is not the same with {num_envs} and with "
                    f"{number} environments{_differing(item, other)}: the program may not depend "
                    "on num_envs, but for numbers in expressions and batches of a multiple of it; "
                    "take a key of Config of its own"
                )


def _differing(item: Item | None, other: Item | None) -> str:
    """Names the attributes in which two operations of a kind differ; empty for other items."""
    if not isinstance(item, Op) or not isinstance(other, Op) or item.kind != other.kind:
        return ""
    there = other.attr
    found = [f"{key} {a} and {b}" for key, a in item.attrs if a != (b := there.get(key))]
    return f" ({', '.join(found)})" if found else ""


def _form(item: Item) -> tuple:
    """Returns the parts of an item to compare, without its body and numbers in expressions."""
    if isinstance(item, Loop):
        return item.name, item.index, item.count
    expressions = item.args if isinstance(item, Op) else (item.test,)
    trees = copy.deepcopy([expression.tree for expression in expressions])
    for part in (part for tree in trees for part in ast.walk(tree)):
        if isinstance(part, ast.Constant) and type(part.value) in (int, float):
            part.value = 0
    rest = (item.targets, item.attrs) if isinstance(item, Op) else ()
    line = item.where.line, item.where.text  # the file's path depends on the working directory
    return item.name, line, item.reads, *map(ast.dump, trees), *rest


def _check_pure(probe: WatchfulProbe, reading: Reading) -> None:
    """Checks that operations are pure functions; impure ones would differ from rank to rank.

    A compiled cell would even keep as a constant whatever Python drew or read during compilation.
    """
    for op, _ in probe.evaluated:
        evidence = probe.impure.get(op.name, "")
        if not evidence and (drawn := reading.draws(op)):
            evidence = f"draws from {drawn}: {RANDOM}"
        if evidence:
            raise ProgramError(f"{op.where}\n  {op.name} {evidence}")


def _values(small: Probe, large: Probe, algorithm: str) -> dict[str, Value]:
    """Infers the values of all variables from both probes."""
    values = {}
    for name, sample in large.seen.items():
        try:
            values[name] = _compare(small.seen[name], sample, (small.num_envs, large.num_envs))
        except ProgramError as error:
            raise ProgramError(
                f"{large.made_at.get(name, algorithm)}\n  `{name}`: {error}"
            ) from None
    return values


def _compare(small: Any, large: Any, num_envs: tuple[int, int]) -> Value:
    """Infers shape, dtype and environment axis of a value from samples with so many envs."""
    few, more = num_envs
    if isinstance(large, (tuple, list)):
        parts = (_compare(*pair, num_envs) for pair in zip(small, large, strict=False))
        return Value((), "tuple", parts=tuple(parts))
    if large is None:
        return Value((), "none")
    array, other = to_array(large), to_array(small)
    if array.ndim != other.ndim:
        raise ProgramError(f"a value of rank {array.ndim} changes its rank with num_envs")
    axes = [i for i in range(array.ndim) if array.shape[i] != other.shape[i]]
    if not axes:
        return Value(array.shape, array.dtype.name)
    axis = axes[0]
    per_env, rest = divmod(array.shape[axis], more)
    if len(axes) > 1 or rest or per_env * few != other.shape[axis]:
        raise ProgramError(
            f"a value is {list(other.shape)} with {few} environments and "
            f"{list(array.shape)} with {more}: expected one axis in proportion to "
            "them; for numbers of all of them, give their count by a key of Config of its own "
            "(`group_means` of rl/statistics)"
        )
    return Value(array.shape, array.dtype.name, axis, per_env)


def _scaled(value: Value, num_envs: int) -> Value:
    if value.parts:
        return replace(value, parts=tuple(_scaled(part, num_envs) for part in value.parts))
    if value.axis is None:
        return value
    shape = list(value.shape)
    shape[value.axis] = value.per_env * num_envs
    return replace(value, shape=tuple(shape))
