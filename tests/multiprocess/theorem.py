"""The comparison of `mindspore_rl.checking` for tests: the differences, as lines."""

from pathlib import Path

import numpy as np

from mindspore_rl.checking import compared, held
from mindspore_rl.checking.compared import MARKS
from mindspore_rl.checking.held import carried_names
from mindspore_rl.checking.plain import PlainRun as ReferenceRun
from mindspore_rl.checking.plain import run_reference as plain_reference
from mindspore_rl.compiler import pipeline
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.plan.plan import Plan
from mindspore_rl.runtime import checkpoint
from tests.one_core import one_core

__all__ = ["MARKS", "ReferenceRun", "carried_names", "compare", "compare_states", "prepare",
           "run_reference"]  # fmt: skip


def run_reference(*args, **options) -> ReferenceRun:
    """Runs the algorithm as plain Python, on one core."""
    with one_core():
        return plain_reference(*args, **options)


def prepare(*args) -> tuple[Plan, Partition]:
    """Prepares a job whose ranks use all cores: its analysis runs on one core."""
    with one_core():
        return pipeline.prepare(*args)


def compare(run_dir: Path, reference: ReferenceRun, iterations: int, marks=MARKS) -> list[str]:
    """Returns the differences between a job's records and the reference's, by site."""
    numbers = range(iterations)
    found = (held.compare_records(run_dir, reference, i, tuple(marks)) for i in numbers)
    return [str(one) for part in found for one in part if one.wrong]


def compare_states(
    path: Path,
    expected: Path,
    prefix: str = compared.PARAMETERS,
    rtol: float = compared.RTOL,
    atol: float = compared.ATOL,
) -> list[str]:
    """Returns the differences between two checkpoints."""
    got, wanted = (
        {n: v.ravel() for n, v in checkpoint.load(f)[0].items()} for f in (path, expected)
    )
    found = held.compare_states(got, wanted, (prefix,), rtol, atol)
    return [str(one) for one in found if one.wrong]


def _differences(name: str, got: np.ndarray, wanted: np.ndarray) -> list[str]:
    one = compared.compared(None, name, got, wanted)
    return [str(one)] if one.wrong else []
