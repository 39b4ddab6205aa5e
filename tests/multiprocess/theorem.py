"""Runs the reference and a distributed job from equal states and compares them (design, 5)."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl import programs
from mindspore_rl.environments.environment import spec
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.job import JobRequest, prepare

RTOL, ATOL = 1e-4, 1e-6
MARKS = ("action", "advantage", "gradient")


@dataclasses.dataclass
class ReferenceRun:
    """What the reference did: values at marks by iteration, and checkpoints between them.

    Attributes:
        records: `{(iteration, mark): [arrays of every pass, leaves flattened]}`.
        checkpoints: one before each iteration, and one after the last.
    """

    records: dict[tuple[int, str], list[list[np.ndarray]]]
    checkpoints: list[Path]


def run_reference(algorithm: Path, config: Any, folder: Path, iterations: int,
                  carried: dict[str, str]) -> ReferenceRun:
    """Runs the algorithm as plain Python.

    Args:
        carried: the graph's names of the loop's carried variables, and their names in the source.
    """
    import mindspore as ms

    from mindspore_rl.runtime.reference import Reference

    ms.set_context(mode=ms.PYNATIVE_MODE)
    trainer = programs.trainer_class(algorithm)(config, spec(config.env))
    records: dict[tuple[int, str], list] = {}
    checkpoints: list[Path] = []

    def keep(iteration: int, mark: str, values: list[np.ndarray]) -> None:
        records.setdefault((iteration, mark), []).append(values)

    def snapshot(iteration: int, variables: dict[str, Any]) -> None:
        chosen = {name: eval(source, {}, dict(variables)) for name, source in carried.items()}
        checkpoints.append(checkpoint.save(
            folder / f"before-{iteration}", iteration, reference.state(chosen),
            {"num_envs": config.num_envs}))

    reference = Reference(trainer, iterations, keep, snapshot)
    reference.run()
    return ReferenceRun(records, checkpoints)


def carried_names(request: JobRequest, folder: Path) -> dict[str, str]:
    """The carried variables of a job and their names in the source."""
    plan, cut = prepare(request, folder)
    sources = dict(cut.program.locals)
    return {name: sources[name] for name in plan.carried}


def compare(run_dir: Path, reference: ReferenceRun, iterations: int, marks=MARKS) -> list[str]:
    """What differs between a job's records and final checkpoint and the reference's."""
    wrong = []
    for iteration in range(iterations):
        parts = [dict(np.load(p)) for p in sorted(
            (run_dir / "records").glob(f"{iteration:06d}-*.npz"))]
        for mark in marks:
            expected = reference.records[iteration, mark]
            names = sorted({n for part in parts for n in part
                            if n == mark or n.startswith(f"{mark}.")})
            if not names:
                wrong.append(f"iteration {iteration}: no records of {mark}")
            got = [np.concatenate([part[n] for part in parts if n in part], axis=_axis(
                [part[n] for part in parts if n in part], expected)) for n in names]
            wanted = np.concatenate([np.concatenate([leaf.ravel() for leaf in turn])
                                     for turn in expected])
            if len(got) > 1:
                got = [np.concatenate([g.reshape(len(expected), -1) for g in got], axis=1)]
            wrong += _differences(f"iteration {iteration}: {mark}", got[0].ravel(), wanted)
    return wrong


def compare_states(path: Path, expected: Path, prefix: str = "parameters/") -> list[str]:
    """What differs between two checkpoints."""
    got, _ = checkpoint.load(path)
    wanted, _ = checkpoint.load(expected)
    wrong = []
    for name in sorted(wanted):
        if name.startswith(prefix):
            wrong += _differences(name, got[name].ravel(), wanted[name].ravel())
    return wrong


def _axis(parts: list[np.ndarray], expected: list[list[np.ndarray]]) -> int:
    if len(parts) == 1:
        return 0
    whole = (len(expected), *expected[0][0].shape)
    return next(i for i, n in enumerate(whole) if sum(p.shape[i] for p in parts) == n
                and parts[0].shape[i] != n)


def _differences(name: str, got: np.ndarray, wanted: np.ndarray) -> list[str]:
    if got.shape != wanted.shape:
        return [f"{name}: shape {got.shape}, expected {wanted.shape}"]
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    scale = np.maximum(np.abs(wanted), 1e-30)
    off = np.abs(got - wanted) > ATOL + RTOL * np.abs(wanted)
    if off.any():
        worst = int(np.argmax(np.abs(got - wanted)))
        return [f"{name}: {off.sum()} of {off.size} differ, worst {got[worst]:.8g} against "
                f"{wanted[worst]:.8g} (relative {np.abs(got - wanted)[worst] / scale[worst]:.1e})"]
    return []
