"""The interface to a service that rents TPUs: machines as they are listed, calls, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bigbird_ja.launch.launched_run import LaunchedRun, Service
from bigbird_ja.launch.rest import Kind, ServiceFault

RUN_LABEL = "bigbird-ja-run"
ID_LABEL = "bigbird-ja-id"  # Its random value proves that a machine belongs to the run.
ATTEMPT_LABEL = "bigbird-ja-attempt"
RUN_DIR_KEY = "bigbird-ja-run-dir"  # in a machine's metadata: BUCKET/NAME of its run


class Presence(Enum):
    """State of a TPU, as far as decisions depend on it."""

    WAITING = "waiting"  # queued, no machine yet
    PENDING = "pending"  # being created, started or repaired
    READY = "ready"  # billed
    DELETING = "deleting"
    GONE = "gone"  # dead but listed: it holds quota and its name


@dataclass(frozen=True)
class Tpu:
    """Node, queued resource or VM, as it is listed under a name in a zone."""

    name: str
    zone: str
    presence: Presence
    state: str  # state in the service's words
    accelerator_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0  # UNIX seconds by the service's clock; distinguishes two of one name
    fault: ServiceFault | None = None  # reason why there is no machine yet
    resource: str = ""
    run_dir: str = ""  # BUCKET/NAME of the run, empty without a label
    service: Service = "tpu"
    project: str = ""
    is_queued: bool = False  # a queued resource holds it

    @property
    def run(self) -> str:
        """Return the name of the run in its labels."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def run_id(self) -> str:
        """Return the id of the run that created the machine, or "" if none did."""
        return self.labels.get(ID_LABEL, "")

    def belongs_to(self, run: LaunchedRun) -> bool:
        """Return whether a run may adopt, count or delete it, by id and place.

        The id proves nothing without the place: a copy of the run's folder has it, too.
        """
        return bool(run.run_id) and (self.run_id, self.run_dir) == (run.run_id, run.run_dir)

    @property
    def owner(self) -> str:
        """Return its labels for a message."""
        words = [f"{key}: {value}" for key, value in self.labels.items()]
        return ", ".join([*words, *([f"run {self.run_dir}"] if self.run_dir else [])]) or "no label"

    @property
    def attempt(self) -> int:
        """Return the number of its creation within its run, or 0 if unknown."""
        text = self.labels.get(ATTEMPT_LABEL, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Operation:
    """State of a long-running operation."""

    done: bool
    fault: ServiceFault | None = None


class Tpus(Protocol):
    """Calls that the supervisor makes to a service. Each may raise `ServiceFault`."""

    def list(self) -> Sequence[Tpu]:
        """List the TPUs of all zones."""

    def find(self, zone: str, name: str) -> Tpu | None:
        """Look up a name in a zone, of any owner."""

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Request a TPU, without waiting.

        Its maximum lifetime is `limit` seconds. The service deletes the machine then, if it has
        such a limit; else the machine's own watcher does.

        Returns:
            The name of the operation.
        """

    def delete(self, tpu: Tpu) -> str:
        """Request the deletion of a machine by its full name.

        It is first verified to be the listed machine.

        Returns:
            The name of the operation.
        """

    def operation(self, name: str) -> Operation:
        """Return the state of an operation, without waiting."""

    def time(self) -> float | None:
        """Return UNIX seconds by the service's clock, or None without a recent answer."""


def labels_of(run: LaunchedRun, attempt: int) -> dict[str, str]:
    """Return the labels that mark a machine as its run's own."""
    return {RUN_LABEL: run.name, ID_LABEL: run.run_id, ATTEMPT_LABEL: str(attempt)}


def check_still_there(service: Tpus, expected: Tpu) -> Tpu:
    """Verify before a deletion that the machine that was listed still has its name.

    Raises:
        ServiceFault: Nothing has it, or a machine of another run or creation time.
    """
    tpu = service.find(expected.zone, expected.name)
    if tpu is None:
        raise ServiceFault(Kind.NOT_FOUND, f"no {expected.name} in {expected.zone}")
    same_time = not expected.created or tpu.created == expected.created
    is_same = (tpu.run_id, tpu.run_dir) == (expected.run_id, expected.run_dir)
    if not is_same or not same_time:
        raise ServiceFault(Kind.NOT_FOUND, f"{tpu.resource} is another's now: {tpu.owner}")
    return tpu
