"""Record of a launched run, and properties of a machine that was requested for the run."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import Accelerator, find
from bigbird_ja.storage.decode import Amount, Count

# "tpu" is the Cloud TPU API, "compute" is Compute Engine.
Service = Literal["tpu", "compute"]


@dataclass(frozen=True)
class LaunchedRun:
    """Record of a run, the content of `launch.json`. Times are seconds, costs US dollars.

    `prepare.py` builds the record from the parameters of `launch`. Other modules of `launch` add
    the service, the image, the initial model and the package before the record is stored.

    Attributes:
        bucket: gs://BUCKET[/FOLDER] for all files of the run.
        name: Name of the run.
        run_id: Random id of the run.
        project: Id of the Google Cloud project.
        data_dir: Path of the data set.
        engine: Engine of training.
        init_from: Path of the initial model on the bucket, or "".
        mode: Mode of `pretrain`.
        target_step: Last step of training.
        accelerator_type: Type of the TPU.
        runtime_version: Name of the VM's image.
        zones: Zones to try, in this order.
        service: Service that rents the machine.
        pricing: "spot" or "on_demand".
        queued: Whether to request a queued resource.
        service_account: Account of the VM, or None for the project's default.
        network: VPC network, or None for the default.
        subnetwork: VPC subnetwork, or None for the default.
        external_ip: Whether the VM gets an external address.
        vm_python: Python of the VM's image.
        package: Path of the code on the bucket, a zip.
        package_sha256: Hash of the zip.
        usd_per_hour: Price of the machine; 0 if unknown or free.
        max_seconds: Maximum time since the first launch, or None for unlimited.
        max_usd: Maximum cost, or None for unlimited.
        poll: Time between polls.
        lease: Maximum lifetime of a machine without a supervisor.
        copy_of: BUCKET/NAME of the original run, if the folder is a copy (set by `read_run`).
    """

    bucket: str
    name: str
    run_id: str = ""
    project: str = ""
    data_dir: str = ""
    engine: str = "auto"
    init_from: str = ""
    mode: str = "train"
    target_step: Count = 0
    # --- the machine
    accelerator_type: str = "v3-8"
    runtime_version: str = ""
    zones: tuple[str, ...] = ()
    service: Service = "tpu"
    pricing: str = "spot"
    queued: bool = False
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True
    vm_python: str = "python3"
    package: str = ""
    package_sha256: str = ""
    # --- price and limits of the run
    usd_per_hour: Amount = 0.0
    max_seconds: Amount | None = None
    max_usd: Amount | None = None
    poll: Amount = 30.0
    lease: Amount = 12 * 3600.0
    copy_of: str = ""

    @cached_property
    def accelerator(self) -> Accelerator:
        """The slice to rent."""
        return find(self.accelerator_type)

    @property
    def hosts(self) -> int:
        """Number of virtual machines of the slice."""
        return self.accelerator.hosts

    @property
    def run_dir(self) -> str:
        """Path of the run's folder."""
        return storage.join(self.bucket, self.name)

    @property
    def model_dir(self) -> str:
        """Path of MODEL_DIR."""
        return storage.join(self.run_dir, "model")

    @property
    def config_path(self) -> str:
        """Path of the config that `pretrain` reads on the machine."""
        return self.supervisor("config.yaml")

    @property
    def most_hours(self) -> float | None:
        """Maximum rented hours that `max_seconds` and `max_usd` allow, or None if unlimited."""
        limits = [] if self.max_seconds is None else [self.max_seconds / 3600]
        if self.max_usd is not None and self.usd_per_hour:
            limits.append(self.max_usd / self.usd_per_hour)
        return min(limits, default=None)

    def supervisor(self, name: str) -> str:
        """Return the path of the file `name` in the supervisor's folder."""
        return storage.join(self.run_dir, "supervisor", name)


@dataclass(frozen=True)
class Machine:
    """Properties of a requested machine. Later changes of the run's record do not change them.

    Attributes:
        service: Service that rents the machine.
        project: Id of the machine's Google Cloud project.
        accelerator_type: Type of the TPU.
        pricing: "spot" or "on_demand".
        queued: Whether the machine belongs to a queued resource.
        usd_per_hour: Price of the machine.
        requested: UNIX seconds of the request by the service's clock, 0 if unknown.
    """

    service: Service
    project: Annotated[str, Meta(pattern=r"^[a-z0-9.:-]*\Z")]
    accelerator_type: str
    pricing: str
    queued: bool
    usd_per_hour: Amount
    requested: Amount = 0.0

    @classmethod
    def of(cls, run: LaunchedRun, requested: float = 0.0) -> "Machine":
        """Return the properties of the machine that a run's record specifies."""
        kind, pricing, usd = run.accelerator_type, run.pricing, run.usd_per_hour
        return cls(run.service, run.project, kind, pricing, run.queued, usd, requested)

    def is_as(self, run: LaunchedRun) -> bool:
        """Return whether a run's record specifies a machine with these properties.

        The price and the time of the request are not compared.
        """
        same = replace(self, usd_per_hour=run.usd_per_hour)
        return same == Machine.of(run, self.requested)

    @cached_property
    def hosts(self) -> int:
        """Number of virtual machines of the slice."""
        return find(self.accelerator_type).hosts

    def __str__(self) -> str:
        """Return a description for messages."""
        place = f"{self.service} service, project {self.project}"
        return f"{self.accelerator_type} ({self.pricing}, {place}, {self.usd_per_hour:.2f} USD/h)"
