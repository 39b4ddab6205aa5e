"""Watches Python code for calls that are no function of its arguments: random, time, process."""

import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import numpy as np

from mindspore_rl.platform.user_modules import is_foreign

RANDOM = "it gives another result each time (random numbers come as the noise of `act`)"
PROCESS = (
    "that is another in each process or run, and compiled code keeps what it was (make it an "
    "option of Config)"
)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_OWNERS = {"posix": "os", "_socket": "socket"}
"""C modules whose functions return properties of the process or machine, with their usual names."""
_BUILTINS = frozenset((id, hash, open, input))
_CLOCKS = ("now", "today", "utcnow")
_MACHINERY = ("importlib", "warnings", "linecache", "traceback", "logging")


Misread = Mapping[CodeType, Sequence[tuple[Any, str]]]


@dataclass
class Watched:
    """Calls that were seen.

    Attributes:
        impure: for each impure call, what was called and where, and why operations may not.
        misread: texts of the called functions that MindSpore would compile as something else.
    """

    impure: list[tuple[str, str]] = field(default_factory=list)
    misread: list[str] = field(default_factory=list)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextmanager
def profiled(note: Callable[[FrameType, str, Any], object]) -> Iterator[None]:
    """Calls `note` for every profiling event inside the context, besides an earlier profiler.

    Collects no garbage meanwhile, which would call other libraries' callbacks at any moment.
    """
    before, collects = sys.getprofile(), gc.isenabled()

    def both(frame: FrameType, event: Any, given: Any) -> None:
        if callable(before):
            before(frame, event, given)
        note(frame, event, given)

    gc.disable()
    sys.setprofile(both)
    try:
        yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:  # cProfile, which must enable itself
            sys.setprofile(None)
            before.enable()
        if collects:
            gc.enable()


@contextmanager
def watch(misread: Misread) -> Iterator[Watched]:
    """Records calls of impure functions of Python, NumPy and the system inside the context.

    Args:
        misread: see `State.misread`; calls of these are recorded, too.
    """
    found = Watched()

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            for decorated, text in misread.get(frame.f_code, ()):
                if decorated is None or _has(frame, decorated):
                    found.misread.append(text)
            _python(frame, found)
        elif event == "c_call":
            _native(frame, function, found)

    with profiled(note):
        yield found


def _has(frame: FrameType, value: Any) -> bool:
    """Returns whether a value is one of a frame's variables, those of its closure included."""
    return any(one is value for one in frame.f_locals.values())


def _python(frame: FrameType, found: Watched) -> None:
    """Records a call of a Python function if it is impure."""
    module, name, caller = _module(frame), frame.f_code.co_name, frame.f_back
    if module == random.__name__ and caller and not _module(caller).startswith("mindspore."):
        found.impure.append((_at(f"random.{name}", caller), RANDOM))
    elif module == os.__name__ and isinstance(frame.f_locals.get("self"), type(os.environ)):
        _note_asker("os.environ", frame, PROCESS, found)


def _native(frame: FrameType, function: Any, found: Watched) -> None:
    """Records a call of a C function if it is impure."""
    owner, name = getattr(function, "__self__", None), function.__name__
    if isinstance(owner, GENERATORS):
        if not _module(frame).startswith("mindspore."):
            found.impure.append((_at(f"{type(owner).__module__}.{name}", frame), RANDOM))
    elif owner is time or function == os.urandom:
        _note_asker(f"{getattr(owner, '__name__', '')}.{name}", frame, RANDOM, found)
    elif isinstance(owner, type) and issubclass(owner, datetime.date) and name in _CLOCKS:
        _note_asker(f"datetime.{name}", frame, RANDOM, found)
    elif function in _BUILTINS:
        if _is_users(frame):
            found.impure.append((_at(name, frame), PROCESS))
    elif (module := _OWNERS.get(getattr(owner, "__name__", ""))) and function is not os.fspath:
        _note_asker(f"{module}.{name}", frame, PROCESS, found)


def _is_users(frame: FrameType) -> bool:
    """Returns whether a frame runs the user's code or an expression of the program."""
    module = _module(frame)
    return not is_foreign(module) and not module.startswith("mindspore_rl.")


def _note_asker(what: str, frame: FrameType, why: str, found: Watched) -> None:
    """Records an impure call made by user code, also through a library.

    Calls made by MindSpore, this package or Python's own machinery do not count.
    """
    asker: FrameType | None = frame
    while asker is not None and not _is_users(asker):
        root = _module(asker).partition(".")[0]
        if root in ("mindspore", "mindspore_rl", *_MACHINERY):
            return
        asker = asker.f_back
    if asker is not None:
        found.impure.append((_at(what, asker), why))


def _at(what: str, frame: FrameType) -> str:
    return f"{what} at {frame.f_code.co_filename}:{frame.f_lineno}"
