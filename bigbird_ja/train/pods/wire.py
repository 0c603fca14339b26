"""A connection between two processes of a pod: lines of JSON, either way, for as long as both live.

A process that is killed, however, closes its connections: the kernel sees to that. A machine that
vanishes does not, so the kernel asks it every now and then whether it is still there.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

# A machine that says nothing is gone after PROBE_SECONDS * (PROBES + 1).
PROBE_SECONDS, PROBES = 10, 3
_MOST_BYTES = 1 << 30  # of a line: a part of an evaluation


class Link:
    """One connection.

    Args:
        connection: an open one; it is closed with this.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", PROBE_SECONDS),
            ("TCP_KEEPINTVL", PROBE_SECONDS),
            ("TCP_KEEPCNT", PROBES),
            ("TCP_USER_TIMEOUT", 1000 * PROBE_SECONDS * (PROBES + 1)),
        ):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.settimeout(None)
        self._buffer, self._searched = bytearray(), 0

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message. That the other is gone is told to the one who reads, not here."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def receive(self, seconds: float | None = None, most: int = _MOST_BYTES) -> dict[str, Any]:
        """The next message.

        Args:
            seconds: to wait at most.
            most: bytes that it may have.

        Raises:
            EOFError: the other is gone.
            TimeoutError: nothing came in time.
            ValueError: what came is no message.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while (size := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > most:
                raise ValueError("too long")
            self._buffer += self._more(end)
        line, self._searched = bytes(self._buffer[:size]), 0
        del self._buffer[: size + 1]
        message = json.loads(line)
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ValueError("no message")
        return message

    def _more(self, end: float | None) -> bytes:
        try:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError
        return data

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All messages until the other is gone."""
        while True:
            try:
                yield self.receive()
            except (EOFError, ValueError):
                return

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()
