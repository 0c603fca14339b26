"""The record of a launched run, and the facts of a machine that was requested for it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import Accelerator, find
from bigbird_ja.storage.decode import Amount, Count

Service = Literal["tpu", "compute"]  # the Cloud TPU API, Compute Engine


@dataclass(frozen=True)
class LaunchedRun:
    """Content of `launch.json`: places of a run, the machine to rent for it, and its limits.

    `prepare.py` builds it from the parameters; every other module reads it. Seconds and US dollars.
    """

    bucket: str
    name: str
    run_id: str = ""
    project: str = ""
    data_dir: str = ""
    engine: str = "auto"
    init_from: str = ""  # path on the bucket, empty for a run from scratch
    mode: str = "train"
    target_step: Count = 0
    # --- the machine
    accelerator_type: str = "v3-8"
    runtime_version: str = ""  # image, by its name at the service
    zones: tuple[str, ...] = ()
    service: Service = "tpu"
    pricing: str = "spot"  # spot | on_demand
    queued: bool = False  # a queued resource holds the machine
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True
    vm_python: str = "python3"
    package: str = ""  # path of the code on the bucket, a zip
    package_sha256: str = ""
    # --- its limits
    usd_per_hour: Amount = 0.0  # 0 if unknown, or for a grant
    max_seconds: Amount | None = None  # since the first launch, watched or not
    max_usd: Amount | None = None
    poll: Amount = 30.0  # seconds between polls
    lease: Amount = 12 * 3600.0  # lifetime of a machine without a supervisor
    copy_of: str = ""  # BUCKET/NAME of the original run, set by `read_run` for a copied folder

    @cached_property
    def accelerator(self) -> Accelerator:
        """Look up the slice to rent."""
        return find(self.accelerator_type)

    @property
    def hosts(self) -> int:
        """Return the number of virtual machines of the slice."""
        return self.accelerator.hosts

    @property
    def run_dir(self) -> str:
        """Return the path of the run's folder."""
        return storage.join(self.bucket, self.name)

    @property
    def model_dir(self) -> str:
        """Return the path of MODEL_DIR."""
        return storage.join(self.run_dir, "model")

    @property
    def config_path(self) -> str:
        """Return the path of the config that `pretrain` reads on the machine."""
        return self.supervisor("config.yaml")

    @property
    def most_hours(self) -> float | None:
        """Return the maximum of rented hours by both limits, or None if unlimited."""
        limits = [] if self.max_seconds is None else [self.max_seconds / 3600]
        if self.max_usd is not None and self.usd_per_hour:
            limits.append(self.max_usd / self.usd_per_hour)
        return min(limits, default=None)

    def supervisor(self, name: str) -> str:
        """Return the path of a file of the supervisor."""
        return storage.join(self.run_dir, "supervisor", name)


@dataclass(frozen=True)
class Machine:
    """Facts of a requested machine, which later changes of the record leave alone."""

    service: Service
    project: Annotated[str, Meta(pattern=r"^[a-z0-9.:-]*\Z")]
    accelerator_type: str
    pricing: str
    queued: bool
    usd_per_hour: Amount
    requested: Amount = 0.0  # UNIX seconds by the service's clock, 0 if unknown

    @classmethod
    def of(cls, run: LaunchedRun, requested: float = 0.0) -> "Machine":
        """Return the facts of a machine that is requested with this record."""
        kind, pricing, usd = run.accelerator_type, run.pricing, run.usd_per_hour
        return cls(run.service, run.project, kind, pricing, run.queued, usd, requested)

    def is_as(self, run: LaunchedRun) -> bool:
        """Return whether a run's record asks for such a machine, at whatever price."""
        same = replace(self, usd_per_hour=run.usd_per_hour)
        return same == Machine.of(run, self.requested)

    @cached_property
    def hosts(self) -> int:
        """Return the number of virtual machines of the slice."""
        return find(self.accelerator_type).hosts

    def __str__(self) -> str:
        """Return a description for messages."""
        place = f"{self.service} service, project {self.project}"
        return f"{self.accelerator_type} ({self.pricing}, {place}, {self.usd_per_hour:.2f} USD/h)"
