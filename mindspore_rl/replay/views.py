"""Views of records as batches: n-step transitions, and masks of windows."""

import math
import numbers
from dataclasses import dataclass

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.bindings import functions, pointers
from mindspore_rl.replay.given import check_buffers, check_kind, whole_numbers
from mindspore_rl.replay.table import Table


@dataclass(frozen=True)
class NStep:
    """Settings of n-step transitions, for a table with one step in each record.

    The reward becomes `sum_k gamma^k reward_k` over up to n steps, starting with the drawn one. The
    sum stops early after a step that ends an episode, and at the newest step in the table or of the
    writer. Sutton and Barto 2018, equation 7.1, without the bootstrap.

    Args:
        steps: n.
        gamma: discount of a step.
        stride: number of environments in a lane, whose transitions are inserted in turn; with 1
            each transition is followed by the next of the same environment.
        reward: name of the reward column, float32 with shape ().
        ends: bool columns with shape (), any of which ends an episode.
        last: columns that are taken from the last step, such as the observation n steps later.
    """

    steps: int
    gamma: float
    stride: int = 1
    reward: str = "reward"
    ends: tuple[str, ...] = ("terminated", "truncated")
    last: tuple[str, ...] = ("next_obs", "terminated", "truncated")

    def __post_init__(self) -> None:
        for name, kind, expected in (
            ("steps", numbers.Integral, "a whole number"),
            ("gamma", numbers.Real, "a number"),
            ("reward", str, "a name"),
            ("stride", numbers.Integral, "a whole number"),
            ("ends", tuple, "a tuple of names"),
            ("last", tuple, "a tuple of names"),
        ):
            value = getattr(self, name)
            names = value if kind is tuple else ()
            if not isinstance(value, kind) or not all(isinstance(one, str) for one in names):
                raise ReplayError(f"{name} of n-step transitions is {value!r}, expected {expected}")


def n_step(
    table: Table, ids: np.ndarray, view: NStep, out: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Copies n-step transitions.

    Args:
        table: of transitions.
        ids: `[N] int64`, of their first steps.
        view: the settings.
        out: arrays as `Table.buffers` makes them.

    Returns: `[N] bool`, whether each record still existed, see `Table.gather`; and `[N] int32`, the
        number m of steps summed: the target is `reward + gamma^m V(next_obs)` if it has not
        terminated.

    Raises:
        ReplayError: the table lacks such columns, or has longer records.
    """
    check_kind("table", table, Table)
    check_kind("view", view, NStep)
    spec = table.spec
    within = 1 <= view.steps < 1 << 31 and 1 <= view.stride < 1 << 31
    if spec.length > 1 or not within or not math.isfinite(view.gamma):
        raise ReplayError(
            f"{view.steps} steps (stride {view.stride}, gamma {view.gamma}) are to be viewed in "
            f"records of {spec.length}; expected 1 to 2^31 - 1 and a finite gamma, in records of 1"
        )
    names = [column.name for column in spec.columns]
    scalars = {c.name: c.dtype for c in spec.columns if not c.shape}
    for name, dtype in ((view.reward, "float32"), *((name, "bool") for name in view.ends)):
        if scalars.get(name) != dtype:
            raise ReplayError(
                f"the view of {view.steps} steps needs a column {name} of type {dtype} and shape "
                f"(); the table has {spec.columns}"
            )
    if strange := set(view.last) - set(names):
        raise ReplayError(f"the last step has no {sorted(strange)}; the table has {names}")
    ends = np.array([spec.starts[names.index(name)] for name in view.ends], np.int64)
    late = np.array([name in view.last for name in names])
    ids = whole_numbers("ids", ids)
    arrays = check_buffers(spec, out, len(ids))
    steps, whole = np.empty(len(ids), np.int32), np.empty(len(ids), np.bool_)
    functions().table_n_step(
        table.base, len(ids), ids.ctypes.data, view.steps, view.gamma, view.stride,
        names.index(view.reward), len(ends), ends.ctypes.data, late.ctypes.data, *table.layout,
        pointers(arrays), steps.ctypes.data, whole.ctypes.data,
    )  # fmt: skip
    return whole, steps


def window_mask(lengths: np.ndarray, first: np.ndarray, window: int) -> np.ndarray:
    """Returns a mask: True for steps of the record, False for padding behind its end.

    Args:
        lengths: `[N]`, steps of each record.
        first: `[N]`, the step at which each window begins.
        window: T.

    Returns: `[N, T] bool`.
    """
    if not isinstance(window, numbers.Integral) or window < 0:
        raise ReplayError(f"a window of {window!r} steps, expected a whole number from 0 on")
    steps, starts = whole_numbers("lengths", lengths), whole_numbers("first steps", first)
    if len(steps) != len(starts):
        raise ReplayError(f"{len(steps)} lengths and {len(starts)} first steps, expected as many")
    return np.arange(window) < (steps - starts)[:, None]
