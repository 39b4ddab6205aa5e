"""`msrl export`: writes a trained policy as a file that needs neither this project nor the loop.

The exported function maps observations `[B, ...]` to the actor's greedy actions, with all that the
actor does to observations (normalisation too); the file is read again and compared with the policy.
"""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import ConfigError, MissingPackageError, MsrlError, install
from mindspore_rl.platform.cache import write_file

FORMS = ("onnx", "mindir")
SEED = 0
"""Seed of the episode whose observations are used for the comparison."""
RANDOM_OBS = 64
TOLERANCE = 1e-4
"""Tolerance of continuous actions, whose bounds are of the order of 1."""
Exported = Callable[[np.ndarray], np.ndarray]


def export(
    run: Any, form: str = "onnx", output: Path | None = None, batch: int = 1
) -> tuple[Path, int]:
    """Exports the policy of a run's checkpoint.

    Args:
        run: a `mindspore_rl.Run`.
        form: one of `FORMS`.
        output: the file; None: `policy.onnx` or `policy.mindir` in the run directory.
        batch: observations in one call of the exported function.

    Returns: the file, and the number of observations at which it was compared with the policy.

    Raises:
        MsrlError: the policy depends on more than the observation, has no greedy action, or cannot
            be expressed in this format.
    """
    from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415  (MindSpore)

    if form not in FORMS:
        raise ConfigError(f"format is {form!r}, expected one of {', '.join(FORMS)}")
    policy = run.policy
    if policy.remembers:
        raise MsrlError(
            f"the policy of {run.path} depends on more than the observation (a recurrent state, "
            "earlier steps), and only a function of it can be exported; use load(...).policy"
        )
    path = output or run.path / f"policy.{form}"
    if path.suffix != f".{form}":
        raise ConfigError(f"{path} is to be a file of {form}; expected an ending of .{form}")
    played: list[np.ndarray] = []
    evaluate(
        run.path, 1, SEED, sample=False, which=run.checkpoint,
        watch=lambda obs, *_: played.append(obs),
    )  # fmt: skip
    obs = np.concatenate([*played, policy.some_obs(RANDOM_OBS)])
    with tempfile.TemporaryDirectory() as folder:
        made = _written(policy.greedy_cell(), obs[:1].repeat(batch, 0), form, Path(folder))
        whole = len(obs) // batch * batch or batch
        obs = np.resize(obs, (whole, *obs.shape[1:]))
        exported = _read(made, form)
        found = [exported(obs[i : i + batch]) for i in range(0, whole, batch)]
        _compare(np.concatenate(found), policy(obs), obs)
        write_file(path, made.read_bytes(), "--output")
    return path, len(obs)


def _written(cell: Any, obs: np.ndarray, form: str, folder: Path) -> Path:
    import mindspore as ms  # noqa: PLC0415

    path, before = folder / f"policy.{form}", ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            ms.export(cell, ms.Tensor(obs), file_name=str(path), file_format=form.upper())
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
        return lambda obs: cell(ms.Tensor(obs)).asnumpy()
    try:
        import onnxruntime  # noqa: PLC0415  (optional)
    except ImportError as error:
        text = f"onnx needs onnxruntime, to look at what was written; {install('export')}"
        raise MissingPackageError(text, "export") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda obs: np.asarray(session.run(None, {name: obs})[0])


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
