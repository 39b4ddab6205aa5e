"""Runs the reference and a distributed job from equal states and compares them (design, 5)."""

import dataclasses
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from mindspore_rl import programs
from mindspore_rl.config import to_dict
from mindspore_rl.environments.by_name import spec
from mindspore_rl.pipeline import JobRequest, prepare
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.reference import Reference

# Injected bugs show at 1e-3. Terms added in another order came to 5.6e-6 where an advantage's mean
# is large beside its deviation.
RTOL, ATOL = 1e-4, 1e-5
MARKS = ("action", "advantage", "gradient")


@dataclasses.dataclass
class ReferenceRun:
    """What the reference did: values at boundaries by iteration, and checkpoints between them.

    Attributes:
        records: `{(iteration, site): [arrays of every pass, leaves flattened]}`.
        checkpoints: one before each iteration, and one after the last.
    """

    records: dict[tuple[int, str], list[list[np.ndarray]]]
    checkpoints: list[Path]


def run_reference(
    algorithm: Path, config: Any, folder: Path, iterations: int, carried: dict[str, str]
) -> ReferenceRun:
    """Runs the algorithm as plain Python, until two runs agree to the last bit.

    MindSpore, running operators one by one, has once given zeros for the log-probabilities of a
    step: every policy then differs from such a reference. A thousand runs did not show it again.

    Args:
        carried: the graph's names of the loop's carried variables, and their names in the source.
    """
    found = None
    for _ in range(4):
        earlier, found = found, _plain_run(algorithm, config, iterations, carried)
        if earlier and _equal(earlier, found):
            break
    else:
        raise AssertionError(f"{algorithm.stem}: no two runs of the reference agree")
    records, states, env_steps = found
    steps = int(env_steps) // iterations
    about = {
        "algorithm": algorithm.stem,
        "environment": config.env,
        "config": to_dict(config),
        "num_envs": config.num_envs,
        "steps_per_iteration": steps,
    }
    checkpoints = [
        checkpoint.save(folder / f"before-{i}", i, state, {**about, "env_steps": i * steps})
        for i, state in enumerate(states)
    ]
    return ReferenceRun(records, checkpoints)


def _plain_run(
    algorithm: Path, config: Any, iterations: int, carried: dict[str, str]
) -> tuple[dict, list[dict[str, np.ndarray]], np.ndarray]:
    """Returns: records as of `ReferenceRun`, states of its checkpoints, environment steps."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(config.seed)  # of the parameters whose initial values the program leaves to chance
    trainer = programs.trainer_class(algorithm)(config, spec(config.env))
    records: dict[tuple[int, str], list] = {}
    states: list[dict[str, np.ndarray]] = []

    def keep(iteration: int, site: str, values: list[np.ndarray]) -> None:
        records.setdefault((iteration, site), []).append(values)

    def snapshot(iteration: int, variables: dict[str, Any]) -> None:
        chosen = {name: eval(source, {}, dict(variables)) for name, source in carried.items()}
        states.append({name: np.array(v) for name, v in reference.state(chosen).items()})

    reference = Reference(trainer, iterations, keep, snapshot)
    reference.run()
    return records, states, np.array(reference._env_steps)


def _equal(first: Any, second: Any) -> bool:
    """Whether nested lists and dictionaries of arrays are the same."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    return first.dtype == second.dtype and first.tobytes() == second.tobytes()


def carried_names(request: JobRequest, folder: Path) -> dict[str, str]:
    """The carried variables of a job and their names in the source."""
    plan, cut = prepare(request, folder)
    sources = dict(cut.program.locals)
    return {name: sources[name] for name in plan.carried}


def compare(run_dir: Path, reference: ReferenceRun, iterations: int, marks=MARKS) -> list[str]:
    """What differs between a job's records and the reference's, site by site."""
    wrong = []
    for iteration in range(iterations):
        files = sorted((run_dir / "records").glob(f"{iteration:06d}-*.npz"))
        parts = [dict(np.load(file)) for file in files]
        keys = sorted({key for part in parts for key in part if len(part[key])})
        expected = dict(_sites(reference, iteration, marks))
        passed = {key.split("/")[0] for key in keys}
        for site in sorted(s for s in passed - set(expected) if _mark(s) in marks):
            wrong.append(f"iteration {iteration}: {site}, which the reference did not pass")
        for site, wanted in expected.items():
            members = []
            for key in (key for key in keys if key.startswith(f"{site}/")):
                axis = key.split("|")[1]
                found = [part[key] for part in parts if key in part]
                value = np.concatenate(found, int(axis)) if axis else found[0]
                members.append(value.reshape(len(value), -1))
            if not members:
                wrong.append(f"iteration {iteration}: no records of {site}")
                continue
            got = np.concatenate(members, axis=1)
            wrong += _differences(f"iteration {iteration}: {site}", got, wanted)
    return wrong


def _mark(site: str) -> str:
    return site.split(":")[1].split("#", maxsplit=1)[0]


def _sites(reference: ReferenceRun, iteration: int, marks) -> list[tuple[str, np.ndarray]]:
    return [
        (site, np.stack([np.concatenate([leaf.ravel() for leaf in turn]) for turn in turns]))
        for (number, site), turns in reference.records.items()
        if number == iteration and _mark(site) in marks
    ]


def compare_states(
    path: Path, expected: Path, prefix: str = "parameters/", rtol: float = RTOL, atol: float = ATOL
) -> list[str]:
    """What differs between two checkpoints."""
    got, _ = checkpoint.load(path)
    wanted, _ = checkpoint.load(expected)
    wrong = []
    for name in sorted(wanted):
        if name.startswith(prefix):
            wrong += _differences(name, got[name].ravel(), wanted[name].ravel(), rtol, atol)
    return wrong


def _differences(
    name: str, got: np.ndarray, wanted: np.ndarray, rtol: float = RTOL, atol: float = ATOL
) -> list[str]:
    if got.shape != wanted.shape:
        return [f"{name}: shape {got.shape}, expected {wanted.shape}"]
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    scale = np.maximum(np.abs(wanted), 1e-30)
    # An entry near zero is a sum of terms as large as the largest: so is its rounding.
    largest = max(1.0, np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    off = ~np.isclose(got, wanted, rtol, atol * largest, equal_nan=True)
    if off.any():
        got, wanted, scale = got.ravel(), wanted.ravel(), scale.ravel()
        worst = int(np.argmax(np.abs(got - wanted)))
        return [
            f"{name}: {off.sum()} of {off.size} differ, worst {got[worst]:.8g} against "
            f"{wanted[worst]:.8g} (relative {np.abs(got - wanted)[worst] / scale[worst]:.1e})"
        ]
    return []
