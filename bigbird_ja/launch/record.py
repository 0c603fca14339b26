"""The record of a launched run, and the facts of a machine that was requested for it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta

from bigbird_ja import accelerators, storage
from bigbird_ja.accelerators import Accelerator
from bigbird_ja.storage.decode import Amount, Count

Service = Literal["tpu", "compute"]  # the Cloud TPU API, Compute Engine


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

    @cached_property
    def accelerator(self) -> Accelerator:
        """Look up the slice to rent."""
        return accelerators.find(self.accelerator_type)

    @property
    def hosts(self) -> int:
        """Return the number of virtual machines of the slice."""
        return self.accelerator.hosts

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

    @cached_property
    def hosts(self) -> int:
        """Return the number of virtual machines of the slice."""
        return accelerators.find(self.accelerator_type).hosts

    def __str__(self) -> str:
        """Describe it for people."""
        place = f"{self.service} service, project {self.project}"
        return f"{self.accelerator_type} ({self.pricing}, {place}, {self.usd_per_hour:.2f} USD/h)"
