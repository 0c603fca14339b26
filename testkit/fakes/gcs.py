"""A Google Cloud Storage of our own on loopback, for google-cloud-storage and for TensorFlow.

One port with two doors: plain HTTP (STORAGE_EMULATOR_HOST) and `CONNECT *.googleapis.com`, whose
socket is wrapped in TLS on the spot (https_proxy, which TensorFlow's client obeys). CONNECT to any
other host is refused, which proves that a test never leaves the machine. Faults are ordered by
POST /_fake/fault (see gcs_faults.Rule), the log of requests is at /_fake/log.

Run as `python -m testkit.fakes.gcs CA_FILE`: prints its port, and ends when its standard input
closes, so that no kill of a test leaves it behind. `gcs_process.FakeGcs`
starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import trustme

from testkit.fakes.gcs_api import Reply, Request, error_reply, serve
from testkit.fakes.gcs_faults import Rule, Rules
from testkit.fakes.gcs_store import Store

_CHUNK = 64 << 10


class _Abort(Exception):
    """The connection is gone; nothing more is sent on it."""


class FakeServer(ThreadingHTTPServer):
    """The state shared by all connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, ca_file: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(ca_file)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("*.googleapis.com", "storage.googleapis.com").configure_cert(self.tls)
        self.store, self.rules = Store(), Rules()
        self.log: list[dict[str, Any]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what we are here for; anything else is our own fault."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError, ssl.SSLError, _Abort)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection, on either door."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeServer
    tls_host = ""

    def do_CONNECT(self) -> None:
        """Opens the TLS door on this very socket."""
        host = self.path.rsplit(":", 1)[0]
        if not host.endswith(".googleapis.com"):
            self.send_error(403)
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]
        self.tls_host, self.close_connection = host, False

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        # Split before unquoting: an object's name arrives as one segment, a%2Fb.
        segments = [unquote(segment) for segment in parts.path.split("/")[1:]]
        if segments[0] == "_fake" and not self.tls_host:
            self._administer(segments[1])
            return
        host = self.tls_host or self.headers.get("Host", "")
        request = f"{self.command} {host}{unquote(self.path)}"
        rule = self.server.rules.strike(request, *_bytes_moved(self.headers))
        entry = {"request": request, "fault": rule.do if rule else None}
        self.server.log.append(entry)
        try:
            self._answer(segments, query, rule, entry)
        except _Abort:
            entry.setdefault("status", 0)
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _answer(
        self, segments: list[str], query: dict[str, str], rule: Rule | None, entry: dict[str, Any]
    ) -> None:
        if rule and rule.do == "reset" and rule.bytes == 0:
            self._reset()
        start, _ = _bytes_moved(self.headers)
        body, is_broken = self._read_body(rule, start)
        entry["received"] = len(body)
        if rule and rule.do == "status":
            reply = error_reply(rule.code, "Injected by the test.")
        else:
            if rule and rule.do == "corrupt" and body:
                body = _flipped(body, rule.bytes - start)
            base = f"https://{self.tls_host}" if self.tls_host else f"http://{self.headers['Host']}"
            headers = dict(self.headers.items())
            request = Request(self.command, segments, query, headers, body, base, is_broken)
            reply = serve(self.server.store, request)
        if is_broken or (rule and rule.do == "lost_reply"):
            self._reset()
        entry["status"] = reply.status
        self._send(reply, rule)

    def _read_body(self, rule: Rule | None, start: int) -> tuple[bytes, bool]:
        """The request's body, and whether it broke off before its end."""
        body = bytearray()
        is_upload = self.command in ("PUT", "POST")
        limit = rule.bytes - start if rule and rule.do in ("reset", "stall") and is_upload else None
        try:
            for chunk in self._chunks():
                body += chunk
                if limit is not None and len(body) >= limit:
                    if rule and rule.do == "reset":
                        return bytes(body[: max(limit, 0)]), True
                    limit = None
                    self._pause(rule)
        except (ConnectionError, TimeoutError, ssl.SSLError, ValueError):
            return bytes(body), True
        return bytes(body), False

    def _chunks(self) -> Iterator[bytes]:
        """The body as it arrives. Transfer-Encoding wins: TensorFlow sends both."""
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self._exactly(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            chunk = self._exactly(min(left, _CHUNK))
            left -= len(chunk)
            yield chunk

    def _exactly(self, count: int) -> bytes:
        data = self.rfile.read(count)
        if len(data) < count:
            raise ConnectionResetError
        return data

    def _send(self, reply: Reply, rule: Rule | None) -> None:
        body, start = reply.body, reply.first_byte
        rule = rule if reply.is_media else None
        if rule and rule.do == "short":
            body = body[: max(rule.bytes - start, 0)]
        if rule and rule.do == "corrupt":
            body = _flipped(body, rule.bytes - start)
        lines = [f"HTTP/1.1 {reply.status} {reply.words}"]
        headers = {**reply.headers, "Content-Length": str(len(body))}
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self._send_body(head, body, start, rule)
        if rule and rule.do in ("short", "truncate"):
            self.close_connection = True

    def _send_body(self, head: bytes, body: bytes, start: int, rule: Rule | None) -> None:
        """Head and body in one go (else each reply waits for a delayed ACK), or as a fault says."""
        try:
            if rule is None or rule.do not in ("reset", "stall", "truncate"):
                self.wfile.write(head + body)
                return
            cut = max(rule.bytes - start, 0)
            self.wfile.write(head + body[:cut])
            if cut > len(body):
                return
            if rule.do == "reset":
                self._reset()
            if rule.do == "truncate":
                raise _Abort
            self._pause(rule)
            self.wfile.write(body[cut:])
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise _Abort from error

    def _pause(self, rule: Rule | None) -> None:
        if rule:
            self.server.rules.cleared.wait(rule.seconds)

    def _reset(self) -> None:
        """A true RST, as a broken network sends it."""
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        raise _Abort

    def _administer(self, what: str) -> None:
        """Faults, log and state, for the test that owns this server."""
        server = self.server
        body, _ = self._read_body(None, 0)
        answer: Any = {}
        if what == "fault" and self.command == "POST":
            server.rules.add(json.loads(body))
        elif what == "fault":
            server.rules.clear()
        elif what == "log":
            answer = list(server.log)
            if self.command == "DELETE":
                server.log.clear()
        data = json.dumps(answer).encode()
        self._send(Reply(200, data, {"Content-Type": "application/json"}), None)

    def finish(self) -> None:
        """Closes quietly, also after a reset."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """The log is /_fake/log."""


def _bytes_moved(headers: Any) -> tuple[int, float]:
    """First and last byte of the object that a request sends or asks for."""
    stated = headers.get("Content-Range") or headers.get("Range") or ""
    if "*/" in stated:  # asks how much has arrived
        return 0, 0
    result = re.match(r"bytes[ =](\d+)-(\d*)", stated)
    if not result:
        return 0, float("inf")
    return int(result.group(1)), float(result.group(2) or "inf")


def _flipped(data: bytes, at: int) -> bytes:
    if not 0 <= at < len(data):
        return data
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def main() -> None:
    """Serves until standard input closes."""
    server = FakeServer(sys.argv[1])
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
