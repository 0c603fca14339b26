"""Machines behind one small interface, whichever of Google's two services rents them.

`tpu.py` is the Cloud TPU API (v2 to v4), `compute.py` Compute Engine (v5e and later). Neither
decides or waits: `decide.py` does.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bigbird_ja.launch.faults import ServiceFault

RUN_LABEL = "bigbird-ja-run"
ATTEMPT_LABEL = "bigbird-ja-attempt"
# In a machine's metadata: BUCKET/NAME, so that `down` finds who watches it.
RUN_DIR_KEY = "bigbird-ja-run-dir"


class Presence(Enum):
    """A TPU's state as far as anything depends on it."""

    WAITING = "waiting"  # queued, no machine yet
    PENDING = "pending"  # being created, started or repaired
    READY = "ready"  # billed
    DELETING = "deleting"
    GONE = "gone"  # listed, dead, holding quota and its name


@dataclass(frozen=True)
class Tpu:
    """What is listed under one name in one zone: a node, a queued resource, or both."""

    name: str
    zone: str
    presence: Presence
    state: str  # the service's own word
    has_node: bool
    has_queued: bool
    accelerator_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0  # UNIX seconds by the service's clock; tells two lives of one name apart
    detail: str = ""  # health, symptoms or the queue's error
    fault: ServiceFault | None = None  # why a queued resource failed
    run_dir: str = ""  # BUCKET/NAME of the run; empty where it does not say
    service: str = "tpu"  # tpu | compute: which service lists it
    is_group: bool = False  # its service replaces hosts that it loses
    is_partly_up: bool = False  # some of its hosts are there, and billed

    @property
    def run(self) -> str:
        """The run it belongs to; its name where it carries no label."""
        return self.labels.get(RUN_LABEL, self.name)

    @property
    def attempt(self) -> int:
        """Which creation of its run it is; 0 where unknown."""
        text = self.labels.get(ATTEMPT_LABEL, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Operation:
    """A long-running operation, looked at once."""

    done: bool
    fault: ServiceFault | None = None


@dataclass(frozen=True)
class TpuSpec:
    """What is rented; metadata and limit are given per creation."""

    name: str
    accelerator_type: str
    runtime_version: str  # the image, by the name that its service uses
    pricing: str = "spot"  # spot | preemptible | on_demand
    queued: bool = False
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True


class Tpus(Protocol):
    """What the supervisor asks of a service. Every method may raise `ServiceFault`."""

    def list(self, zone: str) -> Sequence[Tpu]:
        """All TPUs of a zone; "-" is every zone."""

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Asks for a TPU; returns the operation's name at once.

        Args:
            limit: seconds that it may live at most. Where the service knows such a limit it deletes
                the machine then; else the machine's own watcher does.
        """

    def delete(self, tpu: Tpu) -> str:
        """Asks for the deletion of all that is listed as `tpu`; returns the operation's name."""

    def operation(self, name: str) -> Operation:
        """Looks at an operation, without waiting."""

    def zones(self) -> Sequence[str]:
        """Every zone that the service knows."""


def seconds_of(timestamp: str) -> float:
    """UNIX seconds of an RFC 3339 time stamp; 0 where there is none."""
    try:
        return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
