"""Fake Google Cloud Storage on loopback, for google-cloud-storage and for TensorFlow.

The server accepts two protocols on one port. google-cloud-storage uses plain HTTP, by
STORAGE_EMULATOR_HOST. TensorFlow uses the server as an HTTPS proxy, by `https_proxy`. A request
`CONNECT *.googleapis.com` switches the connection to TLS. CONNECT to any other host is refused, so
that no test can connect to a remote machine. POST /_fake/ACT calls the method ACT of `FakeServer`
with the JSON object in the body. By such requests, tests add faults, and read the log and names.

`python -m testkit.fakes.gcs CA_FILE` starts the server, and prints its port. The server ends when
its standard input closes, so that it does not outlive a killed test. `gcs_process.FakeGcs` runs
this command.
"""

import contextlib
import json
import os
import random
import re
import socket
import socketserver
import ssl
import struct
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

import trustme

from testkit.fakes.gcs_store import Request, Store, error_reply, json_reply

_CHUNK = 64 << 10
_STALL_SECONDS = 9.0
_AT_A_BYTE = frozenset({"reset", "stall", "truncate", "short", "corrupt"})


@dataclass
class Rule:
    """Fault of the requests that match a pattern.

    Attributes:
        match: regular expression for "METHOD host/path?query", with unquoted names.
        do: kind of fault. "status" answers with `code`. "reset", "stall" and "truncate" interrupt
            the transfer after `bytes` bytes of the object (not of the request). "lost_reply"
            processes the request, but does not answer. "short" answers with only `bytes` bytes.
            "corrupt" changes the byte number `bytes`.
        times: number of requests that fail, -1 for all.
        skip: number of matching requests that succeed first.
        p: probability of the fault.
    """

    match: str
    do: str
    times: int = 1
    skip: int = 0
    p: float = 1.0
    code: int = 503
    bytes: int = 0


class _Abort(Exception):
    """Raised to end the handling of a connection that is interrupted."""


class FakeServer(ThreadingHTTPServer):
    """Server with the state that all connections share, and with methods that tests call."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, ca_file):
        super().__init__(("127.0.0.1", 0), Handler)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(ca_file)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("*.googleapis.com", "storage.googleapis.com").configure_cert(self.tls)
        self.store = Store()
        self.requests = []
        self._rules = []
        self._random = random.Random(0)
        self.cleared = threading.Event()  # ends all delays when it is set

    def handle_error(self, request, client_address):
        """Ignore clients that disconnect, and report any other fault of this server."""
        if not isinstance(sys.exc_info()[1], (OSError, _Abort)):
            super().handle_error(request, client_address)

    def fault(self, **values):
        """Add a rule. If several rules match a request, the first one applies."""
        rule = Rule(**values)
        assert rule.do in {*_AT_A_BYTE, "status", "lost_reply"}, rule
        self._rules.append(rule)

    def clear(self):
        """Remove all rules and release requests that are being delayed."""
        self._rules = []
        self.cleared.set()
        self.cleared = threading.Event()

    def log(self, clear):
        """Return the requests so far, and delete them if `clear` is true."""
        logged = list(self.requests)
        if clear:
            self.requests.clear()
        return logged

    def names(self, bucket, prefix):
        """List the names of all objects below a prefix."""
        return sorted(name for name in self.store.objects(bucket) if name.startswith(prefix))

    def strike(self, request, first, last):
        """Return the rule that applies to a request, or None, and count the use of the rule.

        Args:
            request: the request as "METHOD host/path?query".
            first, last: range of the object's bytes that the request transfers. A fault at a byte
                applies only to the request that transfers this byte.
        """
        with self.store.lock:
            for rule in self._rules:
                if rule.times == 0 or not re.search(rule.match, request):
                    continue
                if rule.do in _AT_A_BYTE and not first <= rule.bytes <= last:
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                elif rule.p == 1 or self._random.random() < rule.p:
                    rule.times -= rule.times > 0
                    return rule
        return None


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection, with or without TLS."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeServer
    tls_host = ""

    def do_CONNECT(self):
        """Switch the connection to TLS."""
        host = self.path.rsplit(":", 1)[0]
        if not host.endswith(".googleapis.com"):
            self.send_error(403)
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]
        self.tls_host, self.close_connection = host, False

    def _serve(self):
        parts = urlsplit(self.path)
        # The path is split before it is unquoted, since "/" in an object's name is sent as %2F.
        segments = [unquote(segment) for segment in parts.path.split("/")[1:]]
        try:
            if segments[0] == "_fake" and not self.tls_host:
                values = json.loads(self._read_body(None, 0)[0])
                self._send(json_reply(getattr(self.server, segments[1])(**values)), None)
            else:
                self._answer(segments, dict(parse_qsl(parts.query, keep_blank_values=True)))
        except _Abort:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _answer(self, segments, query):
        host = self.tls_host or self.headers["Host"]
        request = f"{self.command} {host}{unquote(self.path)}"
        start, last = _bytes_moved(self.headers)
        rule = self.server.strike(request, start, last)
        entry = {"request": request, "fault": rule and rule.do, "received": 0}
        self.server.requests.append(entry)
        if rule and rule.do == "reset" and rule.bytes == 0:
            self._reset()
        body, is_broken = self._read_body(rule, start)
        entry["received"] = len(body)
        if rule and rule.do == "status":
            reply = error_reply(rule.code, "Injected by the test.")
        else:
            body = _damaged(body, rule, start)
            base = f"{'https' if self.tls_host else 'http'}://{host}"
            reply = self.server.store.serve(
                Request(self.command, segments, query, self.headers, body, base, is_broken)
            )
        if is_broken or (rule and rule.do == "lost_reply"):
            self._reset()
        self._send(reply, rule)

    def _read_body(self, rule, start):
        """Return the request's body, and whether the connection broke before the body's end."""
        body = bytearray()
        limit = rule.bytes - start if rule and rule.do in ("reset", "stall") else None
        try:
            for chunk in self._chunks():
                body += chunk
                if rule and limit is not None and len(body) >= limit:
                    if rule.do == "reset":
                        return bytes(body[:limit]), True
                    limit = None
                    self.server.cleared.wait(_STALL_SECONDS)
        except (OSError, ValueError):
            return bytes(body), True
        return bytes(body), False

    def _chunks(self):
        """Yield the parts of the body.

        TensorFlow sends both Transfer-Encoding and Content-Length. Only Transfer-Encoding is valid.
        """
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
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

    def _exactly(self, count):
        data = self.rfile.read(count)
        if len(data) < count:
            raise ConnectionResetError
        return data

    def _send(self, reply, rule):
        """Send the answer. A fault may change or cut off the content of an object."""
        if rule and reply.is_media:
            body = _damaged(reply.body, rule, reply.first_byte)
            breaks = rule.do in ("reset", "stall", "truncate")
        else:
            body, breaks = reply.body, False
        cut = rule.bytes - reply.first_byte if rule and breaks else len(body) + 1
        try:
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[:cut])
            if rule and cut <= len(body):
                if rule.do == "reset":
                    self._reset()
                if rule.do == "truncate":
                    raise _Abort
                self.server.cleared.wait(_STALL_SECONDS)
                self.wfile.write(body[cut:])
        except OSError as error:
            raise _Abort from error

    def _reset(self):
        """Reset the connection by an RST packet."""
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        raise _Abort

    def log_message(self, format, *args):
        """Print nothing, since `FakeServer.requests` contains the requests."""


def _bytes_moved(headers):
    """Return the range of the object's bytes that a request uploads or downloads."""
    stated = headers.get("Content-Range") or headers.get("Range") or ""
    # With "*/", the client only requests the number of uploaded bytes.
    if "*/" in stated:
        return 0, 0
    result = re.match(r"bytes[ =](\d+)-(\d*)", stated)
    if not result:
        return 0, float("inf")
    return int(result.group(1)), float(result.group(2) or "inf")


def _damaged(data, rule, start):
    """Return the bytes `data`, shortened or changed by the fault of `rule`, if any.

    `start` is the position of `data` in the object.
    """
    at = rule.bytes - start if rule else -1
    if rule and rule.do == "short":
        return data[:at]
    if rule and rule.do == "corrupt" and 0 <= at < len(data):
        return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    return data


def main():
    """Serve requests until standard input closes."""
    server = FakeServer(sys.argv[1])
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
