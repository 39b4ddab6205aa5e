"""The comparison of `mindspore_rl.checking` for tests: the differences, as lines."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.checking import compared, held
from mindspore_rl.checking.compared import MARKS
from mindspore_rl.checking.plain import PlainRun as ReferenceRun
from mindspore_rl.checking.plain import run_reference as plain_reference
from mindspore_rl.compiler import pipeline
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.plan import traffic
from mindspore_rl.plan.plan import Plan
from mindspore_rl.runtime import checkpoint
from tests.one_core import one_core

__all__ = ["MARKS", "ReferenceRun", "compare", "compare_states", "prepare", "run_reference",
           "sent_as_predicted"]  # fmt: skip


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


def sent_as_predicted(plan: Plan, run_dir: Path) -> dict[str, Any]:
    """Asserts that a whole run sent what its plan predicts. Returns: what it sent."""
    found = json.loads((run_dir / traffic.TRAFFIC_FILE).read_text())
    assert found["iterations"] == plan.num_iterations
    assert set(found["program"]) == {t.name for t in traffic.predict(plan)}
    for name, row in found["program"].items():
        assert row["calls"] > 0, name
        sent, predicted = (
            (row[f"{kind}calls"], row[f"{kind}bytes"]) for kind in ("", "predicted_")
        )
        assert sent <= predicted if row["conditional"] else sent == predicted, name
    # In addition, only iteration boundaries and checkpoints send.
    boundary = found["runtime"].get("iteration boundary", {"calls": 0})
    assert boundary["calls"] == (plan.num_ranks - 1) * (plan.num_iterations + 1)
    usual = {"iteration boundary", "start and checkpoints", traffic.RECORDS}
    assert set(found["runtime"]) <= usual
    return found


def _differences(name: str, got: np.ndarray, wanted: np.ndarray) -> list[str]:
    one = compared.compared(None, name, got, wanted)
    return [str(one)] if one.wrong else []
