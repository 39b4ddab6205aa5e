"""Link between a worker and its coordinator: JSON lines over TCP, outside of MPI.

A worker that dies closes its end, and so does a coordinator: each side learns of the other's death
from the operating system, whatever state MPI is in. A host that is cut off closes nothing: for that
case TCP keepalive probes detect the silence, whatever the processes do.

The first line is the job's token, which only its ranks know; a connection without it is closed, and
nothing that it sends is parsed.

Worker to coordinator, each with `rank`:
    hello       pid, proxy (the process that has started it), host
    iteration   iteration, env_steps, episodes [[return, length], ...], metrics {name: number},
                age_s (how long ago)
    saving      (all iterations that the next checkpoint has are reported)
    stamp       iteration, stage, age_s (only from workers whose stamps the coordinator cannot see)
    checkpoint  iteration, path
    note        iteration, note (text for the user, no failure)
    error       iteration, stage, message, traceback, mistake (True: the user's, no traceback),
                symptom (whether another rank's error may have caused it),
                echo (whether another rank's end may have caused it)
    finished    iteration, iterations_here (done in this process), traffic {name: [calls, bytes]}
Coordinator to the leader (rank 0; in asynchronous jobs the server):
    stop        finish this iteration, write a checkpoint, end
    checkpoint  write a checkpoint at the next iteration boundary
Coordinator to rank 0:
    logged      all ranks are saving, and the metrics before are in their file
"""

import hmac
import json
import selectors
import socket
import threading
import time
from collections import deque
from typing import Any

SILENCE_S = 10
"""Seconds of silence after which the other host is taken to be gone."""
TOGETHER_S = 0.05
"""Messages that are not urgent wait up to this long for others: in one process a reader takes the
interpreter's lock from the rank that computes."""
LINE_BYTES = 1 << 24
"""Maximum length of a message."""


class Link:
    """One end of a connection; of its methods only sends and `wait` are thread-safe.

    Args:
        token: that the other end must send first; empty: the other end is trusted.

    Attributes:
        known: whether the other end belongs to the job.
        closed: whether the other end is gone, or was refused.
        lost: the reason, if the other end's host has fallen silent.
    """

    def __init__(self, connection: socket.socket, token: str = "") -> None:
        self.connection = connection
        self._token = token.encode()
        self.known = not token
        self.closed, self.lost = False, ""
        self._sending = threading.Lock()
        self._waiting: list[tuple[float, dict[str, Any]]] = []
        self._sent_s = 0.0
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            _ask_for_signs_of_life(connection)

    @classmethod
    def connect(cls, host: str, port: int, token: str, timeout_s: float = 30.0) -> "Link":
        """Connects to a coordinator with its job's token."""
        connection = socket.create_connection((host, port), timeout=timeout_s)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token.encode() + b"\n")
        return cls(connection)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message at once. Raises: OSError if the other end is gone."""
        with self._sending:
            self._flush([{"kind": kind, **fields}])

    def send_soon(self, kind: str, **fields: Any) -> None:
        """Sends a message a little later, with its age in seconds, `age_s`.

        It is sent before the next `send`, by `flush`, or with the first `send_soon` that comes
        `TOGETHER_S` after the last transmission.

        Raises: OSError if the other end is gone.
        """
        with self._sending:
            now = time.monotonic()
            self._waiting.append((now, {"kind": kind, **fields}))
            if now - self._sent_s >= TOGETHER_S:
                self._flush([])

    def flush(self) -> None:
        """Sends the messages that wait. Raises: OSError if the other end is gone."""
        with self._sending:
            if self._waiting:
                self._flush([])

    def _flush(self, last: list[dict[str, Any]]) -> None:
        self._sent_s = time.monotonic()
        waiting, self._waiting = self._waiting, []
        messages = [{**message, "age_s": self._sent_s - made} for made, message in waiting]
        lines = [json.dumps(message).encode() + b"\n" for message in [*messages, *last]]
        self.connection.sendall(b"".join(lines))

    def wait(self, timeout_s: float) -> None:
        """Waits until the other end has sent something, or is gone; thread-safe."""
        self._selector.select(timeout_s)

    def poll(self, timeout_s: float = 0.0) -> dict[str, Any] | None:
        """Returns the next message, or None; `closed` tells whether the other end is gone.

        Raises:
            ValueError: a known peer sent something that is no message.
        """
        if not self._lines and not self.closed and self._selector.select(timeout_s):
            try:
                data = self.connection.recv(1 << 16)
            except OSError as error:
                data = b""
                if not isinstance(error, ConnectionError):  # timeouts, not resets
                    self.lost = error.strerror or str(error)
            if not data:
                self.closed = True
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not self.known:
                lines = self._introduced(lines)
            self._lines.extend(lines)
            if not self._lines and len(self._rest) > LINE_BYTES:
                raise ValueError(f"a message of more than {LINE_BYTES} bytes")
        return _message(self._lines.popleft()) if self._lines else None

    def _introduced(self, lines: list[bytes]) -> list[bytes]:
        """Checks the token. Returns: the lines after it; none from a stranger."""
        first = lines[0] if lines else self._rest
        if lines and hmac.compare_digest(first, self._token):
            self.known = True
            return lines[1:]
        if lines or len(first) > len(self._token):
            self.closed, self._rest = True, b""
        return []

    def close(self) -> None:
        """Closes this end."""
        self._selector.close()
        self.connection.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise ValueError(f"what is no message: {line[:80]!r}")
    return found


def _ask_for_signs_of_life(connection: socket.socket) -> None:
    """Sets TCP keepalive, to end a connection whose other host is silent for `SILENCE_S`."""
    interval_s = max(1, SILENCE_S // 5)
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, interval_s)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, interval_s)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)  # unacknowledged data too
