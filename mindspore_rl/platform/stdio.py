"""Standard streams: progress messages, and output that survives a closed pipe."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 160
"""Characters of a line of tables that do not go to a terminal."""


def say(text: str) -> None:
    """Prints a progress message on standard error."""
    print(f"msrl: {text}", file=sys.stderr, flush=True)


class Steady:
    """A stream that drops its output once its reader is gone.

    Args:
        stream: standard output or standard error.
        log: file that gets a line when that happens.
    """

    def __init__(self, stream: Any, log: Path) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        """Writes text, or drops it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream, if it still has a reader."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError), self._log.open("a") as log:
            name = self._stream.name.strip("<>")
            log.write(f"msrl: {name} is closed ({error.strerror or error}); training goes on\n")


@contextlib.contextmanager
def steady(log: Path) -> Iterator[None]:
    """A context in which output that cannot be written is dropped, see `Steady`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and Steady(stream, log) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before
