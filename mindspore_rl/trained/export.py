"""`msrl export`: writes a trained policy as a file that needs neither this project nor the loop.

The exported function maps observations `[B, ...]` to the actor's greedy actions, with all that the
actor does to observations (normalisation too), and a recurrent state to the next one; the file is
read again and compared with the policy.
"""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.platform.cache import write_file
from mindspore_rl.trained import onnx_file

FORMS = ("onnx", "mindir")
SEED = 0
"""Seed of the episode whose observations are used for the comparison."""
RANDOM_OBS = 64
TOLERANCE = 1e-4
"""Tolerance of continuous actions, whose bounds are of the order of 1."""
ODDS = 0.1
"""Probability that an episode ends at a step of the comparison of a recurrent policy."""
Exported = Callable[..., list[np.ndarray]]


def export(
    run: Any, form: str = "onnx", output: Path | None = None, batch: int | None = None
) -> tuple[Path, int]:
    """Exports the policy of a run's checkpoint.

    Args:
        run: a `mindspore_rl.Run`; the memory of its policy is reset.
        form: one of `FORMS`.
        output: the file; None: `policy.onnx` or `policy.mindir` in the run directory.
        batch: observations in one call of the exported function; None: any number with onnx, 1
            with mindir.

    Returns: the file, and the number of observations at which it was compared with the policy.

    Raises:
        MsrlError: the policy depends on more than the observation and a recurrent state, has no
            greedy action, or cannot be expressed in this format.
    """
    from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415  (MindSpore)

    if form not in FORMS:
        raise ConfigError(f"format is {form!r}, expected one of {', '.join(FORMS)}")
    path = output or run.path / f"policy.{form}"
    if path.suffix != f".{form}":
        raise ConfigError(f"{path} is to be a file of {form}; expected an ending of .{form}")
    policy = run.policy
    cell = policy.greedy_cell()
    asked = rows_of_call(form, batch)
    free, rows = not asked, asked or onnx_file.FREE
    played: list[np.ndarray] = []
    evaluate(
        run.path, 1, SEED, sample=False, which=run.checkpoint,
        watch=lambda obs, *_: played.append(obs),
    )  # fmt: skip
    obs = np.concatenate([*played, policy.some_obs(RANDOM_OBS)])
    state = [np.zeros((rows, *shape), np.float32) for shape in cell.state_shapes]
    with tempfile.TemporaryDirectory() as folder:
        made = _written(cell, [obs[:1].repeat(rows, 0), *state], form, Path(folder))
        if form == "onnx":
            onnx_file.finish(made, run.plan, policy.spec, rows if free else 0)
        exported = _read(made, form)
        states = [part[0] for part in state]
        if free:
            _check(exported, policy, obs[:2], states, 1)
            rows = 3 if state else len(obs)
        _check(exported, policy, obs, states, rows)
        write_file(path, made.read_bytes(), "--output")
    return path, len(obs)


def rows_of_call(form: str, batch: int | None) -> int:
    """Returns the number of observations in one call of an exported function; 0: any number."""
    return batch or (0 if form == "onnx" else 1)


def _written(cell: Any, given: list[np.ndarray], form: str, folder: Path) -> Path:
    import mindspore as ms  # noqa: PLC0415

    path, before = folder / f"policy.{form}", ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            tensors = map(ms.Tensor, given)
            ms.export(cell, *tensors, file_name=str(path), file_format=form.upper())
    except Exception as error:  # errors of MindSpore, of any type
        text = str(error).strip().splitlines()
        raise MsrlError(
            f"MindSpore cannot write this policy as {form} ({text[0] if text else error!r}); try "
            f"{' or '.join(other for other in FORMS if other != form)}"
        ) from error
    finally:
        ms.set_context(mode=before)
    return path


def _read(path: Path, form: str) -> Exported:
    if form == "mindir":
        import mindspore as ms  # noqa: PLC0415

        cell = ms.nn.GraphCell(ms.load(str(path)))

        def call(*given: np.ndarray) -> list[np.ndarray]:
            found = cell(*map(ms.Tensor, given))
            return [part.asnumpy() for part in (found if isinstance(found, tuple) else (found,))]

        return call
    return onnx_file.read(path)


def _check(
    exported: Exported, policy: Any, obs: np.ndarray, states: list[np.ndarray], rows: int
) -> None:
    """Plays episodes of random lengths with a file and its policy. Raises: MsrlError: they differ.

    Args:
        exported: the file's function.
        policy: compared with it.
        obs: `[n, ...]`, divided into sequences, one for each row of a call.
        states: recurrent states at the start of an episode.
        rows: observations of a call.
    """
    steps, rng = -(-len(obs) // rows), np.random.default_rng(SEED)
    sequences = np.resize(obs, (rows, steps, *obs.shape[1:]))
    ended = np.ones(rows, bool)
    state = [np.stack([part] * rows) for part in states]
    policy.reset()
    for step in range(steps):
        now = np.ascontiguousarray(sequences[:, step])
        for part, first in zip(state, states, strict=True):
            part[ended] = first
        action, *found = exported(now, *state)
        state = [np.array(part) for part in found]
        _compare(action, policy(now, reward=rng.standard_normal(), ended=ended), now)
        ended = rng.random(rows) < ODDS
    policy.reset()


def _compare(found: np.ndarray, expected: np.ndarray, obs: np.ndarray) -> None:
    """Checks that a file gives the policy's actions. Raises: MsrlError: it does not."""
    if found.shape != expected.shape:
        raise MsrlError(f"the file gives {found.shape} actions, expected {expected.shape}")
    if expected.dtype.kind == "f":
        wrong = ~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    else:
        wrong = found != expected
    if wrong.any():
        rows = np.unique(np.argwhere(wrong)[:, 0])
        raise MsrlError(
            f"the file gives other actions than the policy for {len(rows)} of {len(obs)} "
            f"observations, the first {obs[rows[0]]}: {found[rows[0]]} for {expected[rows[0]]}"
        )
