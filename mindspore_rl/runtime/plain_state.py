"""The state of a plain loop between two iterations, as a checkpoint has it."""

import ctypes
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.plan.plan import STATE, Plan
from mindspore_rl.rl.operators import leaves, put_into, to_array
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.plain_loop import Draws
from mindspore_rl.runtime.reference import Kept

State = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Arrays and metadata, as `checkpoint.load` returns them."""


@dataclass(frozen=True)
class Names:
    """Names that the analysis of a program gives to its parts.

    Attributes:
        draws: see `PlainLoop`.
        carried: the graph's names of the loop's carried variables, and their names in the source.
    """

    draws: dict[str, Draws]
    carried: Mapping[str, str]


def counted(source: str) -> str | None:
    """Returns the site of a loop over minibatches whose number of begins a variable counts."""
    found = re.fullmatch(r"\w+\.begun\('(.*)'\)", source)
    return found and found[1]


def records_of(begin: State, plan: Plan, share: slice) -> dict[str, Kept]:
    """Returns the kept replays of some environments."""
    arrays, meta = begin
    found = {}
    for name, held in plan.replays.items():
        columns: list[np.ndarray] = []
        while (column := checkpoint.column_of(name, len(columns))) in arrays:
            columns.append(arrays[column][:, share])
        if columns:
            in_step = np.full(meta["num_envs"], meta["iteration"] * held.per_iteration)
            inserted = arrays.get(checkpoint.inserted_of(name), in_step)[share]
            found[name] = Kept(len(inserted))
            found[name].take(columns, inserted, held.capacity)
    return found


def begin_of(
    begin: State, plan: Plan, carried: Mapping[str, str], share: slice
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the state of some environments, and the loop's variables by names in the source.

    As in a job: without a state the environments and the loop's variables begin anew.
    """
    arrays, meta = begin
    prefix = "environment/"
    states = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
    environment = {name: value[share] for name, value in states.items()}
    if not environment or meta["num_envs"] != plan.num_envs:
        return {}, {}
    variables = {}
    for name, value in plan.carried.items():
        if name != STATE and value.axis is not None:
            rows = (slice(None),) * value.axis + (share,)
            variables[carried[name]] = arrays[f"variables/{name}"][rows]
    return environment, variables


def take_rows(frame: FrameType, plan: Plan, carried: Mapping[str, str], share: slice) -> None:
    """Takes some environments' rows of a loop's variables that have those of all environments.

    As in a job, an array may be made of numbers alone, `ops.zeros((config.num_envs,))`.
    """
    variables, values = dict(frame.f_locals), {}
    for name, value in plan.carried.items():
        if name != STATE and value.axis is not None:
            array = to_array(eval(carried[name], {}, variables))
            if array.shape[value.axis] == plan.num_envs:
                values[carried[name]] = array[(slice(None),) * value.axis + (share,)]
    set_variables(frame, values)


def set_variables(frame: FrameType, values: Mapping[str, np.ndarray]) -> None:
    """Overwrites local variables of a suspended function, or arrays in tuples among them.

    Args:
        frame: of the function.
        values: by expressions such as `obs` and `state[0]`.
    """
    scope = frame.f_locals
    before = dict(scope)
    rest = {source: (eval(source, {}, before), value) for source, value in values.items()}
    for name in dict.fromkeys(re.match(r"\w+", source)[0] for source in values):  # type: ignore[index]
        found = []
        for leaf in leaves(before[name]):
            own = (s for s, (old, _) in rest.items() if old is leaf and re.match(rf"{name}\b", s))
            source = next(own, None)
            found.append(leaf if source is None else Tensor(rest.pop(source)[1]))
        scope[name] = put_into(before[name], iter(found))
    if sys.version_info < (3, 13):  # where `f_locals` is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
