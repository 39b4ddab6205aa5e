"""The line between a worker and its coordinator: JSON lines over TCP, outside of MPI.

A worker that dies closes its end, and so does a coordinator: each side learns of the other's death
from the operating system, whatever state MPI is in.

Worker to coordinator, each with `rank`:
    hello       pid, host
    iteration   iteration, env_steps, episodes [[return, length], ...], metrics {name: number}
    checkpoint  iteration, path
    resumed     iteration, note
    error       iteration, stage, message, traceback, mistake (True: the user's, message suffices)
    finished    iteration, iterations_here (done in this process), traffic {name: [calls, bytes]}
Coordinator to the leader (rank 0):
    stop        finish this iteration, write a checkpoint, end
    checkpoint  write a checkpoint at the next iteration boundary
"""

import json
import selectors
import socket
from collections import deque
from typing import Any


class Link:
    """One end of a connection; not safe to use from several threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.closed = False
        self._rest = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float = 30.0) -> "Link":
        """Connects to a coordinator."""
        connection = socket.create_connection((host, port), timeout=timeout_s)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connection)

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message. Raises: OSError if the other end is gone."""
        self.connection.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def poll(self, timeout_s: float = 0.0) -> dict[str, Any] | None:
        """The next message, or None; `closed` tells whether the other end is gone."""
        if not self._messages and not self.closed and self._selector.select(timeout_s):
            try:
                data = self.connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.closed = True
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._messages.extend(json.loads(line) for line in lines)
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Closes this end."""
        self._selector.close()
        self.connection.close()
