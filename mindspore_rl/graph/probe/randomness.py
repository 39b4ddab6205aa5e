"""Sees Python code draw random numbers, whatever they are, and ask for the time."""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextmanager
def watch_draws() -> Iterator[list[str]]:
    """Notes calls of Python's, NumPy's and the system's sources of random numbers and of time."""
    found: list[str] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and _module(frame) == random.__name__ and frame.f_back:
            name, caller = f"random.{frame.f_code.co_name}", frame.f_back
        elif event == "c_call":
            owner = getattr(function, "__self__", None)
            if not isinstance(owner, GENERATORS) and owner is not time and function != os.urandom:
                return
            module = getattr(owner, "__name__", type(owner).__module__)
            name, caller = f"{module}.{function.__name__}", frame
        else:
            return
        if not _module(caller).startswith("mindspore."):
            found.append(f"{name} at {caller.f_code.co_filename}:{caller.f_lineno}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:  # cProfile's, which has to start itself
            sys.setprofile(None)
            before.enable()
