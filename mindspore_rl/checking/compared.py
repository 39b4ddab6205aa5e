"""Compares one array of a job with the plain loop's, within what rounding may do."""

import math
from dataclasses import dataclass

import numpy as np

RTOL, ATOL = 1e-4, 1e-5
"""Tolerance of an entry, relative to itself and to the largest entry of its array (or to 1).

Injected bugs show at 1e-3. Another order of summation gave 5.6e-6 where an advantage's mean is
large relative to its deviation.
"""
REPLAYED_TOL = 1e-3
"""Both tolerances of a run that is repeated by its log: rounding errors grow by updates."""
MARKS = ("action", "advantage", "gradient")
"""Marks of the boundaries whose values are compared."""
METRIC, PARAMETERS, REPLAY, VARIABLES = "metric ", "parameters/", "replay/", "variables/"
ENVIRONMENT, CELLS, LAGGED = "environment/", "cells/", "lagged/"
STATE = (PARAMETERS, VARIABLES, ENVIRONMENT, REPLAY, LAGGED)
"""Prefixes of the arrays of a checkpoint that the plain loop has too."""


@dataclass(frozen=True)
class Compared:
    """A value of a job beside that of the plain loop.

    Attributes:
        iteration: the iteration of the value; None: the end of the run.
        name: a boundary's site, a metric, or an array of a checkpoint.
        far: the largest difference, relative to the largest entry or to 1 if that is more.
        wrong: a text on entries that differ by more than rounding; empty if none do.
        mean: the mean difference, in the same unit.
        uneven: whether it was not compared, for a condition left out some turns of a loop.
        as_trained: whether the job recorded no values at marks, see `held.run_held`.
    """

    iteration: int | None
    name: str
    far: float = 0.0
    wrong: str = ""
    mean: float = 0.0
    uneven: bool = False
    as_trained: bool = False

    def __str__(self) -> str:
        place = "" if self.iteration is None else f"iteration {self.iteration}: "
        return f"{place}{self.name}: {self.wrong}"


def compared(
    iteration: int | None,
    name: str,
    got: np.ndarray,
    wanted: np.ndarray,
    rtol: float = RTOL,
    atol: float = ATOL,
) -> Compared:
    """Compares one array with another: integers and booleans exactly, others up to rounding."""
    if got.shape != wanted.shape:
        wrong = f"shape {got.shape}, expected {wanted.shape}"
        return Compared(iteration, name, math.inf, wrong, math.inf)
    fixed_point = name.startswith(REPLAY) and wanted.dtype == np.int64  # priorities
    if got.dtype.kind in "biu" and wanted.dtype.kind in "biu" and not fixed_point:
        rtol = atol = 0.0
    got, wanted = (side.astype(np.float64).ravel() for side in (got, wanted))
    # An entry near zero may be a sum of terms as large as the largest, with their rounding error.
    largest = max(1.0, np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    off = ~np.isclose(got, wanted, rtol, atol * largest, equal_nan=True)
    apart = _apart(got, wanted)
    far = float(apart.max(initial=0.0) / largest)
    mean = float(apart.mean() / largest) if apart.size else 0.0
    if not off.any():
        return Compared(iteration, name, far, mean=mean)
    worst = int(np.argmax(np.where(off, apart, -1.0)))
    with np.errstate(invalid="ignore"):  # inf / inf
        relative = apart[worst] / max(abs(wanted[worst]), 1e-30)
    wrong = (
        f"{off.sum()} of {off.size} differ, worst {got[worst]:.8g} against {wanted[worst]:.8g} "
        f"(relative {relative:.1e})"
    )
    return Compared(iteration, name, far, wrong, mean)


def _apart(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the distances between entries: infinite where only one of two is finite."""
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - wanted)
    return np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))


def mark_of(site: str) -> str:
    """Returns the mark of a boundary's site, such as `boundary:action#1`."""
    return site.split(":")[1].split("#", maxsplit=1)[0]


def place_of(site: str) -> str:
    """Returns a boundary's site without the turn of an unrolled loop: `boundary:gradient#1.2`."""
    mark, _, number = site.rpartition("#")
    return f"{mark}#{number.partition('.')[0]}"


def is_held(name: str) -> bool:
    """Returns whether a name is the site of a boundary whose values are compared."""
    return name.startswith("boundary:") and mark_of(name) in MARKS
