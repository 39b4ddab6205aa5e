"""The trainer whose `train` is read, made as the user's class makes it."""

import sys
import traceback
from dataclasses import replace
from typing import Any

from mindspore_rl import device, programs
from mindspore_rl.errors import MsrlError, ProgramError, described


def make_trainer(trainer_class: type, config: Any, spec: Any) -> Any:
    """The trainer whose `train` is to be read.

    Raises:
        ProgramError: it cannot be made or lacks a part.
    """
    device.use()
    try:
        trainer = programs.make_trainer(trainer_class, config, spec)
    except MsrlError:
        raise
    except Exception as error:
        where = innermost(error, sys.modules[trainer_class.__module__].__file__ or "")
        raise ProgramError(
            f"{where}{trainer_class.__name__}(config, spec) failed: {described(error)}"
        ) from error
    for name, kind in (("actor", "Actor"), ("learner", "Learner")):
        if not hasattr(trainer, name):
            raise ProgramError(
                f"{trainer_class.__name__}.__init__ sets no self.{name}; expected "
                f"an instance of a subclass of mindspore_rl.api.{kind}"
            )
    return trainer


def innermost(error: BaseException, file: str) -> str:
    """The last line of a user's file that an exception passed, `file:line: text` and a newline."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}\n  " if frames else ""


def smaller_trainer(trainer: Any, num_envs: int, algorithm: str) -> Any:
    """Another trainer of this kind, with so many environments.

    Raises:
        ProgramError: its Config refuses the number, or it cannot be made.
    """
    try:
        smaller = replace(trainer.config, num_envs=num_envs)
    except (ValueError, TypeError) as error:
        raise ProgramError(
            f"{algorithm} is analysed with num_envs={num_envs}, which its Config refuses: {error}"
        ) from error
    return make_trainer(type(trainer), smaller, trainer.spec)
