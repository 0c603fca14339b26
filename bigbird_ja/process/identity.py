"""Identifies processes, for leases and temporary files that name an owner.

A process id means something on one machine alone, in one namespace, until the next boot, and is
used again. So an owner is recorded with all of these, and the time at which it started.
"""

import hashlib
import os
import re
import socket
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Identifies a process among all that ever ran."""

    host: str
    machine: str  # boot and process namespace, within which `pid` is unique: see `_machine`
    pid: int
    started: int  # kernel clock ticks after boot

    @property
    def name(self) -> str:
        """Names the process for messages."""
        return f"process {self.pid} on host {self.host}"

    @property
    def is_here(self) -> bool:
        """Tells whether it ran where this process runs, so that its end can be detected."""
        return self.machine == _machine()

    @property
    def has_ended(self) -> bool:
        """Tells whether it is known to have ended; False for a process on another machine."""
        return self.is_here and not (
            is_running(self.pid) and _start_ticks(self.pid) == self.started
        )

    @property
    def is_of_another_boot(self) -> bool:
        """Tells whether it ran before this machine's last boot, or on another machine."""
        return self.machine.partition(".")[0] != _machine().partition(".")[0]

    @property
    def tag(self) -> str:
        """Encodes it for the name of a file; `from_tag` reads it back."""
        return f"{self.machine}-{self.pid}-{self.started}"


def from_tag(tag: str) -> Owner | None:
    """Reads the process that a file's name records; None where it records none."""
    match = re.fullmatch(r"([0-9a-f]{12}\.\d+)-(\d+)-(\d+)", tag)
    if match is None:
        return None
    return Owner(host="?", machine=match[1], pid=int(match[2]), started=int(match[3]))


def this_process() -> Owner:
    """Identifies this process."""
    pid = os.getpid()
    return Owner(host=socket.gethostname(), machine=_machine(), pid=pid, started=_start_ticks(pid))


def is_running(pid: int) -> bool:
    """Checks whether a process of this machine has this id now; a zombie does not count."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat_fields(pid)[0:1] != ["Z"]


def _machine() -> str:
    """Returns `BOOT.NAMESPACE`; without /proc, made from the host's name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        boot, namespace = socket.gethostname(), 0
    return f"{hashlib.sha256(boot.encode()).hexdigest()[:12]}.{namespace}"


def _start_ticks(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _stat_fields(pid: int) -> list[str]:
    """Reads fields 3 and on of /proc/PID/stat; [] where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
