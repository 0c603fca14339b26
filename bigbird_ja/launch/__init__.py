"""Rents, watches and deletes TPUs: the record of a launched run, and its machines as listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from bigbird_ja import accelerators, storage
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.storage.decode import Amount, Count

Service = Literal["tpu", "compute"]  # the Cloud TPU API, Compute Engine

RUN_LABEL = "bigbird-ja-run"
ID_LABEL = "bigbird-ja-id"  # of the run, random: proves that a machine is its own
ATTEMPT_LABEL = "bigbird-ja-attempt"
RUN_DIR_KEY = "bigbird-ja-run-dir"  # in a machine's metadata: BUCKET/NAME of its run


@dataclass(frozen=True)
class LaunchedRun:
    """A run as `launch.json` keeps it: where it lies, what is rented for it, and its limits.

    `prepare.py` makes it of the flags; every other module reads it. Seconds and US dollars.
    """

    bucket: str
    name: str
    run_id: str = ""
    project: str = ""
    data_dir: str = ""
    engine: str = "auto"
    init_from: str = ""  # on the bucket; empty: from scratch
    mode: str = "train"
    target_step: Count = 0
    # --- the machine
    accelerator_type: str = "v3-8"
    runtime_version: str = ""  # the image, by the name that its service uses
    zones: tuple[str, ...] = ()
    service: Service = "tpu"  # rents the machines
    pricing: str = "spot"  # spot | on_demand | flex-start
    queued: bool = False  # a queued resource holds the machine
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True
    vm_python: str = "python3"
    package: str = ""  # path of the code on the bucket, a zip
    package_sha256: str = ""
    # --- its limits
    usd_per_hour: Amount = 0.0  # 0: not known
    max_seconds: Amount | None = None  # since the first launch, whoever watched
    max_usd: Amount | None = None
    poll: Amount = 30.0  # between two looks
    lease: Amount = 12 * 3600.0  # a machine lives so long after the last sign of a supervisor
    copy_of: str = ""  # BUCKET/NAME of the run of which this folder is a copy; set by reading

    @property
    def hosts(self) -> int:
        """Count the virtual machines of one slice."""
        return accelerators.find(self.accelerator_type).hosts

    @property
    def run_dir(self) -> str:
        """Name the folder of the run."""
        return storage.join(self.bucket, self.name)

    @property
    def model_dir(self) -> str:
        """Name the folder that `pretrain` writes."""
        return storage.join(self.run_dir, "model")

    @property
    def config_path(self) -> str:
        """Name the config that `pretrain` reads on the machine."""
        return self.supervisor("config.yaml")

    def supervisor(self, name: str) -> str:
        """Name a file of the supervisor's folder."""
        return storage.join(self.run_dir, "supervisor", name)


@dataclass(frozen=True)
class Machine:
    """The facts of a machine since its request, whatever the record of its run says later."""

    service: Service
    project: Annotated[str, Meta(pattern=r"^[a-z0-9.:-]*\Z")]
    accelerator_type: str
    pricing: str
    queued: bool
    usd_per_hour: Amount
    requested: Amount = 0.0  # UNIX seconds by the service's clock; 0: not known

    @classmethod
    def of(cls, run: LaunchedRun, requested: float = 0.0) -> "Machine":
        """Return the facts of a machine that is requested with this record."""
        return cls(
            run.service,
            run.project,
            run.accelerator_type,
            run.pricing,
            run.queued,
            run.usd_per_hour,
            requested,
        )

    def is_as(self, run: LaunchedRun) -> bool:
        """Return whether a run's record asks for a machine with these facts, whatever its price."""
        same = replace(self, usd_per_hour=run.usd_per_hour)
        return same == Machine.of(run, self.requested)

    def __str__(self) -> str:
        """Describe it for people."""
        place = f"{self.service} service, project {self.project}"
        return f"{self.accelerator_type} ({self.pricing}, {place}, {self.usd_per_hour:.2f} USD/h)"


class Presence(Enum):
    """A TPU's state as far as a decision depends on it."""

    WAITING = "waiting"  # queued, no machine yet
    PENDING = "pending"  # being created, started or repaired
    READY = "ready"  # billed
    DELETING = "deleting"
    GONE = "gone"  # listed, dead, holding quota and its name


@dataclass(frozen=True)
class Tpu:
    """A node, a queued resource or a VM, as it is listed under a name in a zone."""

    name: str
    zone: str
    presence: Presence
    state: str  # as the service calls it
    accelerator_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0  # UNIX seconds by the service's clock; distinguishes two of one name
    fault: ServiceFault | None = None  # why there is no machine yet
    resource: str = ""  # its full name
    run_dir: str = ""  # BUCKET/NAME of the run; empty where it is not labelled
    service: Service = "tpu"  # that lists it
    project: str = ""
    is_queued: bool = False  # a queued resource holds it

    @property
    def run(self) -> str:
        """Return the name of the run that it is labelled with."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def run_id(self) -> str:
        """Return the id of the run that made it; empty where no run of ours did."""
        return self.labels.get(ID_LABEL, "")

    def belongs_to(self, run: LaunchedRun) -> bool:
        """Decide by id and place whether a run may adopt, count or delete it.

        The id alone proves nothing: who copies or writes a folder on a bucket has it, too.
        """
        return bool(run.run_id) and (self.run_id, self.run_dir) == (run.run_id, run.run_dir)

    @property
    def owner(self) -> str:
        """Quote its labels, for people."""
        words = [f"{key}: {value}" for key, value in self.labels.items()]
        return ", ".join([*words, *([f"run {self.run_dir}"] if self.run_dir else [])]) or "no label"

    def to_json(self) -> dict[str, str]:
        """Return its fields for the `--json` results of commands."""
        keys = ("name", "run", "run_id", "zone", "state", "accelerator_type", "resource")
        return {key: getattr(self, key) for key in keys}

    @property
    def attempt(self) -> int:
        """Return the number of its creation within its run; 0 where unknown."""
        text = self.labels.get(ATTEMPT_LABEL, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Operation:
    """A long-running operation of a service, looked at once."""

    done: bool
    fault: ServiceFault | None = None


class Tpus(Protocol):
    """The calls that the supervisor makes to a service. Each may raise `ServiceFault`."""

    def list(self, zone: str) -> Sequence[Tpu]:
        """List all TPUs of a zone; "-" is every zone."""

    def find(self, zone: str, name: str) -> Tpu | None:
        """Look a name up in a zone, whoever made it; None where nothing has it."""

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Ask for a TPU; return the operation's name at once.

        It may live `limit` seconds. Where the service knows such a limit it deletes the machine
        then; else the machine's own watcher does.
        """

    def delete(self, tpu: Tpu) -> str:
        """Ask for the deletion of a machine by its full name; return the operation's name.

        First it is proved to be the one that was listed.
        """

    def operation(self, name: str) -> Operation:
        """Look at an operation, without waiting."""

    def time(self) -> float:
        """Return UNIX seconds by the service's clock."""


def labels_of(run: LaunchedRun, attempt: int) -> dict[str, str]:
    """Make the labels by which a machine is known as its run's own."""
    return {RUN_LABEL: run.name, ID_LABEL: run.run_id, ATTEMPT_LABEL: str(attempt)}


def check_still_there(service: Tpus, expected: Tpu) -> Tpu:
    """Prove before a deletion that the machine that was listed still has its name.

    Raises:
        ServiceFault: nothing has it, or a machine of another run or of another time of creation.
    """
    tpu = service.find(expected.zone, expected.name)
    if tpu is None:
        raise ServiceFault(Kind.NOT_FOUND, f"no {expected.name} in {expected.zone}")
    same_time = not expected.created or tpu.created == expected.created
    is_same = (tpu.run_id, tpu.run_dir) == (expected.run_id, expected.run_dir)
    if not is_same or not same_time:
        raise ServiceFault(Kind.NOT_FOUND, f"{tpu.resource} is another's now: {tpu.owner}")
    return tpu
