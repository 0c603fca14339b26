"""Things at a path that are no regular file: real FIFOs, sockets, devices, loops, long names."""

import os
import socket

# Kind -> words that a refusal says about it.
KINDS = {
    "fifo": "FIFO",
    "socket": "socket",
    "loop": "circle",
    "long": "too long",
    "bytes": "not UTF-8",
    "below a file": "a file, not a folder|is not a folder",
}
SPECIAL = ["fifo", "socket"]
if os.geteuid() == 0:
    KINDS["device"] = "device"
    SPECIAL.append("device")


def make(kind, directory):
    """Makes one; returns its path."""
    path = directory / (kind if kind in SPECIAL else "odd")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(directory)  # a socket's name is short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(kind)
        finally:
            os.chdir(here)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))  # as /dev/null
    elif kind == "long":
        path = directory / ("x" * 300)
    elif kind == "bytes":
        path = directory / os.fsdecode(b"odd-\xff")
    elif kind == "below a file":
        (directory / "file").write_text("x")
        path = directory / "file/odd"
    return str(path)
