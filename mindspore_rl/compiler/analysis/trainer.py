"""Makes the trainer whose `train` is read, as the user's class makes it."""

import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from mindspore import Parameter, nn

from mindspore_rl import programs
from mindspore_rl.errors import MsrlError, ProgramError, described
from mindspore_rl.platform import mindspore_device
from mindspore_rl.platform.user_modules import is_users


def make_trainer(trainer_class: type, config: Any, spec: Any) -> Any:
    """Makes the trainer whose `train` is to be read.

    Raises:
        ProgramError: the trainer cannot be made or lacks an actor or a learner.
    """
    mindspore_device.use()
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
        if not isinstance(found := getattr(trainer, name), nn.Cell):
            raise ProgramError(
                f"self.{name} of {trainer_class.__name__} is a {type(found).__name__}; expected an "
                f"instance of a subclass of mindspore_rl.api.{kind}, which may hold others: "
                f"self.{name}.second = ..."
            )
    _check_found(trainer)
    return trainer


def _check_found(trainer: Any) -> None:
    """Checks that MindSpore finds all networks and Parameters, so that checkpoints have them.

    Raises:
        ProgramError: one is missed; names the line that assigns it and how to keep it.
    """
    owners = (trainer.actor, trainer.learner)
    known = {id(p) for owner in owners for p in owner.get_parameters()}
    seen: set[int] = set()
    waiting: list[tuple[Any, Any, str]] = [(trainer, trainer, "")]
    while waiting:
        value, holder, attribute = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, set)):
            waiting += [(part, holder, attribute) for part in value]
        elif isinstance(value, dict):
            waiting += [(part, holder, attribute) for part in value.values()]
        elif isinstance(value, Parameter):
            if id(value) not in known:
                raise _not_found(holder, attribute, "a Parameter")
        elif isinstance(value, nn.Cell) and any(id(p) not in known for p in value.get_parameters()):
            raise _not_found(holder, attribute, "a network or an optimiser")
        elif is_users(type(value).__module__):
            fields = getattr(value, "__dict__", {})
            waiting += [(part, value, name) for name, part in fields.items()]


def _not_found(holder: Any, attribute: str, what: str) -> ProgramError:
    text = f"self.{attribute}"
    return ProgramError(
        f"{_line_with(type(holder), text)}\n  `{text}` holds {what} that is no part of the actor "
        "or the learner: no checkpoint would have it; keep it in an attribute of one of the two, "
        "or in a list, tuple or dictionary that is one"
    )


def _line_with(cls: type, text: str) -> str:
    """Finds the line of a class or its bases that assigns to an attribute; else its first line."""
    first = ""
    for one in (base for base in cls.__mro__ if is_users(base.__module__)):
        try:
            lines, start = inspect.getsourcelines(one)
        except (OSError, TypeError):  # MindSpore's own in C++; typed into a notebook
            continue
        for at, line in enumerate(lines):
            where = f"{inspect.getsourcefile(one)}:{start + at}: {line.strip()}"
            first = first or where
            if re.search(rf"{re.escape(text)}\b.*=", line):
                return where
    return first


def innermost(error: BaseException, file: str) -> str:
    """Returns the innermost line of a user's file in a traceback, `file:line: text` and newline."""
    frames = traceback.extract_tb(error.__traceback__)
    file = os.path.normpath(file)
    lines = [f.lineno or 0 for f in frames if os.path.normpath(f.filename) == file]
    return f"{file}:{lines[-1]}: {linecache.getline(file, lines[-1]).strip()}\n  " if lines else ""


def returned_at(function: Any) -> str:
    """Returns the line of a function's last `return`, `file:line: text`; empty: it is not known."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):  # made from others, inside `learn`
        return ""
    places = [place for place, line in enumerate(lines) if line.lstrip().startswith("return")]
    if not places:
        return ""
    file = os.path.normpath(inspect.getsourcefile(function) or "")
    return f"{file}:{first + places[-1]}: {lines[places[-1]].strip()}"


def smaller_trainers(trainer: Any, numbers: Iterable[int], algorithm: str) -> Iterator[Any]:
    """Yields trainers of the same class, with the numbers of environments that its Config takes.

    Raises:
        ProgramError: it takes no more of them, or a trainer cannot be made.
    """
    refused: list[tuple[int, Exception]] = []
    for num_envs in numbers:
        try:
            smaller = replace(trainer.config, num_envs=num_envs)
        except (ValueError, TypeError) as error:
            refused.append((num_envs, error))
        else:
            yield make_trainer(type(trainer), smaller, trainer.spec)
    first, why = refused[0]
    raise ProgramError(
        f"{algorithm} is analysed with num_envs={first} and more, which its Config refuses: {why}"
    ) from why
