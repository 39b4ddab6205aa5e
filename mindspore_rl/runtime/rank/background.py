"""Background thread of a rank: writes to the disk while the rank trains."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread that does one thing after the other.

    Attributes:
        ended: set by `close`; whoever waits for other ranks gives up then.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "disk")
        self._begun = deque[Future[None]]()
        self.ended = threading.Event()

    def begin(self, work: Callable[[], None]) -> None:
        """Does some work after what was begun before."""
        self._begun.append(self._thread.submit(work))

    @property
    def busy(self) -> bool:
        """True if there is work that `look` and `wait` have not found done."""
        return bool(self._begun)

    def look(self) -> None:
        """Raises the error of work that has failed."""
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()

    def wait(self) -> None:
        """Waits for all work. Raises: the error of work that has failed."""
        while self._begun:
            self._begun.popleft().result()

    def close(self) -> None:
        """Ends what is under way, and begins nothing more: nobody writes after a rank has ended."""
        self.ended.set()
        self._thread.shutdown(cancel_futures=True)
