"""Reports a run to Weights & Biases."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindspore_rl.errors import MissingPackageError, MsrlError, install

STEP = "env_steps"


def check() -> None:
    """Checks that the package is installed, before the run begins. Raises: MissingPackageError."""
    _library()


class Tracked:
    """A run of Weights & Biases; without a network, set `WANDB_MODE=offline` to keep it on disk.

    Args:
        project: the user's project there.
        run_dir: a restart in the same directory continues the same run.
        about: hyper-parameters and other facts that identify the run.

    Raises:
        MsrlError: it rejects the run: nobody is logged in, or there is no network.
    """

    def __init__(self, project: str, run_dir: Path, about: Mapping[str, object]) -> None:
        wandb = _library()
        place = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]
        settings = wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True)
        with _told("does not take the run"):
            self._run = wandb.init(
                project=project,
                dir=str(run_dir),
                name=run_dir.name,
                id=f"{run_dir.name}-{place}",
                resume="allow",
                config=dict(about),
                settings=settings,
            )
            self._run.define_metric("*", step_metric=STEP)

    def log(self, env_steps: int, scalars: Mapping[str, float | None]) -> None:
        """Logs scalars by their names; None values are left out."""
        known = {name: value for name, value in scalars.items() if value is not None}
        with _told("does not take metrics"):
            self._run.log({STEP: env_steps, **known})

    def close(self) -> None:
        """Waits until everything is uploaded."""
        with _told("did not take all"):
            self._run.finish()


def _library() -> Any:
    try:
        import wandb  # noqa: PLC0415 (optional)
    except ModuleNotFoundError as error:
        text = f"--wandb needs {error.name}, which is not installed; {install('wandb')}"
        raise MissingPackageError(text, extra="wandb") from error
    return wandb


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library's own
        raise MsrlError(
            f"Weights & Biases {what}: {error}; `wandb login` once, set WANDB_MODE=offline, or "
            "leave out --wandb"
        ) from error
