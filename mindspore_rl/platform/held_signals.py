"""Delays the signals that interrupt a process."""

import contextlib
import dis
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that interrupt a job."""
INTERRUPTED_EXIT = 130


def heard() -> set[signal.Signals]:
    """Returns the signals that interrupt a job here; not SIGHUP under `nohup`, which ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return set(SIGNALS) - ({signal.SIGHUP} if ignored else set())


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """A context at whose end the handlers of `SIGNALS` hear the signals that came in it.

    Blocking the signals would not do: a thread of a library may receive them.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in SIGNALS if callable(signal.getsignal(number))]
        before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            os.kill(os.getpid(), number)


def raised_by_hand(error: KeyboardInterrupt) -> str:
    """Returns the place outside of this package whose `raise` this error is; empty: a signal's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    by_hand = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    ours = Path(__file__).parents[1] in Path(code.co_filename).parents
    return f"{code.co_filename}:{trace.tb_lineno}" if by_hand and not ours else ""
