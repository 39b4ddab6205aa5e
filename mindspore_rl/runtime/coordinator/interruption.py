"""Interruptions of a job: Ctrl-C, SIGTERM, a terminal that closes."""

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from types import FrameType

from mindspore_rl.platform.held_signals import SIGNALS, heard

BURST_S = 0.2


class Burst:
    """Debounces signals: tells a second interruption from repeats of the first one.

    `timeout`, a batch system or a shell signals a process and then its whole process group.
    """

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def is_new(self) -> bool:
        """Returns whether a signal that has just arrived is a new interruption."""
        now = time.monotonic()
        new = now - self._last_s > BURST_S
        self._last_s = now if new else self._last_s
        return new


class Interruption:
    """Counts SIGINT, SIGTERM and SIGHUP (not under `nohup`) as soon as they arrive.

    A Python handler runs only when the main thread returns from native code; the wake-up socket
    informs the monitor's thread at once.
    """

    def __init__(self) -> None:
        self._count = 0
        self._burst = Burst()
        self._raise = False
        self.socket, self._wakeup = socket.socketpair()
        self.socket.setblocking(False)
        self._wakeup.setblocking(False)

    def __enter__(self) -> "Interruption":
        self._previous = {number: signal.signal(number, self._handle) for number in heard()}
        self._previous_wakeup = signal.set_wakeup_fd(
            self._wakeup.fileno(), warn_on_full_buffer=False
        )
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self.socket.close()
        self._wakeup.close()

    def poll(self) -> int:
        """Returns the number of interruptions so far."""
        with contextlib.suppress(BlockingIOError):
            came = any(byte in SIGNALS for byte in self.socket.recv(1 << 10))
            self._count += came and self._burst.is_new()
        return self._count

    @contextlib.contextmanager
    def raised_at_second(self) -> Iterator[None]:
        """A context that raises KeyboardInterrupt in the main thread at the second interruption."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._raise and self.poll() > 1:
            self._raise = False
            raise KeyboardInterrupt
