"""Interface of the services that rent TPUs: machines, calls, labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bigbird_ja.launch.launched_run import LaunchedRun, Service
from bigbird_ja.launch.rest import Kind, ServiceFault

RUN_LABEL = "bigbird-ja-run"
# Label with the id of a run. The id is random, so the label proves that a machine belongs to the
# run.
ID_LABEL = "bigbird-ja-id"
ATTEMPT_LABEL = "bigbird-ja-attempt"
# Key in a machine's metadata for BUCKET/NAME of its run.
RUN_DIR_KEY = "bigbird-ja-run-dir"


class Presence(Enum):
    """State of a TPU, in the categories that the supervisor distinguishes.

    Attributes:
        WAITING: Queued; no machine exists yet.
        PENDING: Being created, started or repaired.
        READY: Running, and billed.
        DELETING: Being deleted.
        GONE: Dead, but still listed. Quota and name of the TPU remain in use.
    """

    WAITING = "waiting"
    PENDING = "pending"
    READY = "ready"
    DELETING = "deleting"
    GONE = "gone"


@dataclass(frozen=True)
class Tpu:
    """Node, queued resource or VM that a service lists.

    Attributes:
        name: Name of the machine.
        zone: Zone of the machine.
        presence: Category of `state`.
        state: State in the service's words.
        accelerator_type: Type of the TPU.
        labels: Labels of the machine.
        created: Creation time in UNIX seconds by the service's clock, 0 if unknown.
        fault: Fault of a failed creation, or None.
        resource: Full name of the resource.
        run_dir: BUCKET/NAME of its run, or "" if its metadata contain none.
        service: Service that rents it.
        project: Id of its project.
        is_queued: Whether it belongs to a queued resource.
    """

    name: str
    zone: str
    presence: Presence
    state: str
    accelerator_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    fault: ServiceFault | None = None
    resource: str = ""
    run_dir: str = ""
    service: Service = "tpu"
    project: str = ""
    is_queued: bool = False

    @property
    def run(self) -> str:
        """Name of the machine's run, or "" without a label."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def run_id(self) -> str:
        """Id of the machine's run, or "" without a label."""
        return self.labels.get(ID_LABEL, "")

    def belongs_to(self, run: LaunchedRun) -> bool:
        """Return whether the machine belongs to a run, so that the run may adopt or delete it.

        Both id and folder must match, since a copy of the run's folder contains the same id.
        """
        return bool(run.run_id) and (self.run_id, self.run_dir) == (run.run_id, run.run_dir)

    @property
    def owner(self) -> str:
        """Text for a message: the machine's labels, and the folder of its run."""
        words = [f"{key}: {value}" for key, value in self.labels.items()]
        return ", ".join([*words, *([f"run {self.run_dir}"] if self.run_dir else [])]) or "no label"

    @property
    def attempt(self) -> int:
        """Number of the run's request for this machine, counted from 1, or 0 if unknown."""
        text = self.labels.get(ATTEMPT_LABEL, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Operation:
    """State of a long-running operation."""

    done: bool
    fault: ServiceFault | None = None


class Tpus(Protocol):
    """Client of a service that rents TPUs. Each method may raise `ServiceFault`."""

    def list(self) -> Sequence[Tpu]:
        """List the TPUs of all zones."""

    def find(self, zone: str, name: str) -> Tpu | None:
        """Return the machine with this name in the zone, or None. It may belong to any owner."""

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Request a TPU, without waiting for its creation.

        Args:
            run: record of the run.
            zone: zone of the machine.
            attempt: number of the run's request for a TPU, counted from 1.
            metadata: metadata of the machine.
            limit: maximum lifetime in seconds, enforced by the service or by the machine's watcher.

        Returns:
            The name of the operation.
        """

    def delete(self, tpu: Tpu) -> str:
        """Verify that the name still belongs to the listed machine, and request the deletion.

        Returns:
            The name of the operation.
        """

    def get_operation(self, name: str) -> Operation:
        """Return the state of an operation, without waiting for its end."""

    def time(self) -> float | None:
        """Return UNIX seconds by the service's clock, or None without a recent answer."""


def make_labels(run: LaunchedRun, attempt: int) -> dict[str, str]:
    """Return the labels of a run's machine."""
    return {RUN_LABEL: run.name, ID_LABEL: run.run_id, ATTEMPT_LABEL: str(attempt)}


def check_still_there(service: Tpus, expected: Tpu) -> Tpu:
    """Verify before a deletion that a name still belongs to the listed machine.

    Returns:
        The machine in its present state.

    Raises:
        ServiceFault: No machine has the name, or it belongs to another run or to a newer machine.
    """
    tpu = service.find(expected.zone, expected.name)
    if tpu is None:
        raise ServiceFault(Kind.NOT_FOUND, f"no {expected.name} in {expected.zone}")
    same_time = not expected.created or tpu.created == expected.created
    is_same = (tpu.run_id, tpu.run_dir) == (expected.run_id, expected.run_dir)
    if not is_same or not same_time:
        raise ServiceFault(Kind.NOT_FOUND, f"{tpu.resource} has a new owner: {tpu.owner}")
    return tpu
