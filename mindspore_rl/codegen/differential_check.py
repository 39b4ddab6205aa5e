"""Differential check: runs a native cell and MindSpore once from the same state and compares."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter

from mindspore_rl.codegen.native_cell import as_array
from mindspore_rl.rl.operators import leaves

LARGEST = 1e-3
"""Tolerance for rounding, relative to an array's largest entry.

Entries differ by the order of summation (1e-6), and by more after cancellation.
"""
ROUNDING, AMPLIFIED = 1e-6, 30.0
"""Size of the perturbation that measures rounding, and the allowed multiple of its effect.

Adam divides a gradient by its own size: if the gradient nearly cancels, its rounding error becomes
a full step. So a parameter may differ by `AMPLIFIED` times as much as it changes if parameters and
inputs are perturbed by `ROUNDING`.
"""
TWO_FORMS = 0.5
"""Relative tolerance of RMSProp's step.

MindSpore's kernel divides by sqrt(s) + epsilon in blocks of eight, else by sqrt(s + epsilon). The
mean squares s have the usual tolerance.
"""
NEGLIGIBLE = {True: 1e-5, False: 1e-7}
"""Absolute differences that are ignored, of results (True) and of parameters (False)."""


def difference(
    parameters: dict[str, Parameter],
    turns: list[Parameter],
    judge: Callable[..., Any],
    native: Callable[..., Any],
    inputs: tuple,
    scales: Sequence[float] = (),
) -> tuple[float, str]:
    """Runs both with one turn of each of the cell's loops, then restores the state.

    One turn, because loops amplify rounding: an action that differs in the 7th digit leads to
    another episode.

    Args:
        parameters: all parameters that the cell may write, by name.
        turns: the bounds of its loops.
        judge: MindSpore's execution of the cell.
        native: the function to check.
        inputs: the inputs of both.
        scales: sizes that the first results' tolerances are relative to, if larger than a result.

    Returns: the largest difference and its place. The unit is `LARGEST`, or the measured effect of
        rounding on a parameter if that is larger.
    """
    state = {name: parameter.asnumpy() for name, parameter in parameters.items()}
    before = {name: value.copy() for name, value in state.items()}

    def run(function: Callable[..., Any]) -> dict[tuple[bool, str], np.ndarray]:
        for bound in turns:
            bound.asnumpy()[...] = 1
        results = [as_array(leaf).copy() for leaf in leaves(function(*inputs))]
        found = {(True, f"result {i}"): result for i, result in enumerate(results)}
        found |= {(False, name): value.copy() for name, value in state.items()}
        for name, value in state.items():
            value[...] = before[name]
        return found

    expected, found = run(judge), run(native)
    negligible = {key: NEGLIGIBLE[key[0]] for key in expected}
    for i, scale in enumerate(scales):
        negligible[True, f"result {i}"] = max(NEGLIGIBLE[True], LARGEST * scale)
    off = {key: _off(wanted, found[key], negligible[key]) for key, wanted in expected.items()}
    for key in [key for key, size in off.items() if size > 1.0 and not key[0]]:
        told = _made_of_rounding(key[1], expected, found, before)
        rest = np.where(told, expected[key], found[key])
        off[key] = _off(expected[key], rest, NEGLIGIBLE[False])
    amplified = [
        key
        for key, wanted in expected.items()
        if off[key] > 1.0 and not key[0] and wanted.dtype == np.float32
    ]
    if amplified:
        _disturb(state.values())
        inputs = _disturbed(inputs)
        moved = run(judge)
        for key in amplified:
            rounding = _off(expected[key], moved[key], NEGLIGIBLE[False])
            off[key] /= max(AMPLIFIED * rounding, 1.0)
    worst = max(off, key=off.__getitem__, default=(False, ""))
    return off.get(worst, 0.0), worst[1]


def _made_of_rounding(name: str, wanted: dict, found: dict, before: dict) -> np.ndarray:
    """Finds the entries of a parameter whose difference the optimiser's averages explain.

    If a gradient is zero up to rounding, so are Adam's averages. They agree in absolute terms, but
    in no digit, and so the step, which has full size, differs as well.

    Returns: a boolean mask with the parameter's shape.
    """
    one, other = wanted[False, name], found[False, name]
    if one.dtype != np.float32 or one.shape != other.shape:
        return np.zeros(one.shape, bool)
    doubt, told = np.zeros(one.shape), np.zeros(one.shape, bool)
    step = np.maximum(np.abs(one - before[name]), np.abs(other - before[name]))
    slot_of = f".{name.rpartition('.moment.')[2]}"
    for key, average in wanted.items():
        if key[0] or key[1] == name or not key[1].endswith(slot_of):
            continue
        if average.shape != one.shape or _off(average, found[key], NEGLIGIBLE[False]) > 1.0:
            continue
        size = np.maximum(np.abs(average), np.abs(found[key]))
        doubt += np.abs(average - found[key]) / np.maximum(size, np.finfo(np.float32).tiny)
        if f".mean_square{slot_of}" in f".{key[1]}":
            told = np.abs(one - other) <= TWO_FORMS * step
    return told | (np.abs(one - other) <= 2.0 * doubt * step)


def _disturbed(inputs: Any) -> Any:
    """Returns a copy of inputs with their float32 numbers perturbed by `_disturb`."""
    if isinstance(inputs, tuple):
        return tuple(map(_disturbed, inputs))
    array = as_array(inputs)
    if array.dtype != np.float32:
        return inputs
    array = array.copy()
    _disturb([array])
    return array


def _disturb(values: Iterable[np.ndarray]) -> None:
    """Perturbs each float32 number in place by a relative `ROUNDING` of random sign."""
    signs = np.random.default_rng(0)
    for value in values:
        if value.dtype == np.float32:
            value[...] *= 1.0 + ROUNDING * signs.choice((-1.0, 1.0), value.shape)


def _off(wanted: np.ndarray, found: np.ndarray, negligible: float) -> float:
    if wanted.shape != found.shape:
        return float("inf")
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    if same.all():
        return 0.0
    if not np.isfinite(wanted[~same]).all() or not np.isfinite(found[~same]).all():
        return float("inf")
    finite = wanted[np.isfinite(wanted)]
    largest = max(float(np.abs(finite).max()), negligible / LARGEST)
    return float(np.abs(wanted[~same] - found[~same]).max()) / largest / LARGEST
