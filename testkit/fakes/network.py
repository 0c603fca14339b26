"""Proxy between a client and a server. A test can interrupt the connections."""

import contextlib
import socket
import socketserver
import threading
from urllib.parse import urlsplit


class Network:
    """Context manager of a proxy that forwards connections to a server on loopback.

    Args:
        url: address of the server.

    Attributes:
        url: address of the proxy, which the client uses in place of the server's.
    """

    def __init__(self, url):
        self._target = (urlsplit(url).hostname, urlsplit(url).port)
        self._is_cut, self._open = False, set()
        network = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                network._forward(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    def cut(self):
        """Close all connections, and refuse new ones."""
        self._is_cut = True
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def restore(self):
        """Accept connections again."""
        self._is_cut = False

    def _forward(self, client):
        if self._is_cut:
            return
        with socket.create_connection(self._target) as server:
            ends = {client, server}
            self._open |= ends
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join()
            self._open -= ends

    def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
