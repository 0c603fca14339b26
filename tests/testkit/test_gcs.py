"""The fake bucket itself: its doors, faults, its end (see tests/storage too)."""

import socket
import subprocess
import sys

import pytest

from testkit import ROOT


def test_connect_to_any_other_host_is_refused(fake_gcs):
    with socket.create_connection(("127.0.0.1", fake_gcs.port), timeout=10) as connection:
        connection.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert b" 403 " in connection.recv(1000)


def test_it_ends_with_its_parent():
    program = (
        "import os, signal\n"
        "from testkit.fakes.gcs_process import FakeGcs\n"
        "fake = FakeGcs().__enter__()\n"
        "print(fake.port, fake._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    # The fake holds our pipe as well: that `run` came back shows that it has ended.
    port = int(done.stdout.split()[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
