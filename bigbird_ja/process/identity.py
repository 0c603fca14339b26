"""Which process is this, and does it still run? For locks and temporary files that name an owner.

A process id means something on one machine alone, in one namespace, until the next boot, and is
used again. So an owner is recorded with all of these, and the time at which it started.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Process:
    """A process, told apart from all others that ever ran."""

    host: str
    machine: str  # boot and process namespace: where `pid` means something
    pid: int
    started: int  # kernel clock ticks after boot

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `is_here`, `has_ended` and `name` read it back."""
        return asdict(self)


def this_process() -> Process:
    """The process that asks."""
    pid = os.getpid()
    return Process(socket.gethostname(), _machine(), pid, _start_ticks(pid))


def is_here(owner: Mapping[str, Any]) -> bool:
    """Whether a recorded process ran where this one runs, so that its end can be told."""
    return owner.get("machine") == _machine()


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Whether a recorded process is known to have ended; False for one on another machine."""
    pid = owner.get("pid")
    if not is_here(owner):
        return False
    if not isinstance(pid, int) or not is_running(pid):
        return True
    return _start_ticks(pid) != owner.get("started")


def is_of_another_boot(owner: Mapping[str, Any]) -> bool:
    """Whether a recorded process ran before this machine's last start, or on another machine."""
    return str(owner.get("machine")).split()[:1] != _machine().split()[:1]


def is_running(pid: int) -> bool:
    """Whether a process of this machine has this id now; a zombie does not count."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat_fields(pid)[0:1] != ["Z"]


def name(owner: Mapping[str, Any]) -> str:
    """A recorded process in words."""
    return f"process {owner.get('pid', '?')} on host {owner.get('host', '?')}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} without /proc"


def _start_ticks(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _stat_fields(pid: int) -> list[str]:
    """Fields 3 and on of /proc/PID/stat; [] where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
