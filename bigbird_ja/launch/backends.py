"""Choice of a machine's service, image and engine, and connections to the services."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.accelerators.prices import Prices, Rental
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import compute, rest, tpu_api
from bigbird_ja.launch.advice import format_quota
from bigbird_ja.launch.launched_run import LaunchedRun, Service
from bigbird_ja.launch.service import Tpus

MODULES = {"tpu": tpu_api, "compute": compute}
NAMES = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}


@dataclass(frozen=True)
class Vm:
    """Environment of a rented machine. Tests replace it.

    Attributes:
        device: "tpu" or "cpu".
        service_manager: "systemd", or "none" if the start-up script supervises its processes.
        installs: Whether to install Python and the locked packages.
        api: Address of the service, or "" for the default.
        terms: Fields of `watcher.Terms` to override.
    """

    device: str = "tpu"
    service_manager: str = "systemd"
    installs: bool = True
    api: str = ""
    terms: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cloud:
    """Services that rent TPUs, and the environment of their machines."""

    services: tuple[Service, ...] = ("tpu", "compute")
    vm: Vm = field(default_factory=Vm)

    def connect(self, service: str, project: str) -> Tpus:
        """Connect to a service in one project.

        Raises:
            BadInput: No credentials are found.
        """
        module = MODULES[service]
        client: Tpus = module.Client(project, rest.connect_rest(module.API))
        return client

    def connect_all(self, *projects: str) -> dict[tuple[str, str], Tpus]:
        """Connect to all services in the given projects. Return the clients by service and project.

        Raises:
            BadInput: No credentials are found.
        """
        places = [(service, project) for project in projects for service in self.services]
        return {place: self.connect(*place) for place in places}


CLOUD = Cloud()


def find_rentals(machine: Accelerator, service: str, queued: bool, table: Prices) -> list[Rental]:
    """List the services that rent a machine, in order of preference.

    Args:
        machine: slice to rent.
        service: `auto`, or the service to use.
        queued: whether a queued resource is requested.
        table: price table, which lists the services that rent each chip.

    Raises:
        BadInput: No service that matches `service` and `queued` rents the machine.
    """
    rented: dict[str, Rental] = {}
    for one in table.list_rentals(machine):
        rented.setdefault(one.service, one)
    parameter = "`queued`" if queued and service == "auto" else "`service`"
    wanted = "tpu" if queued and service == "auto" else service
    if queued and wanted == "compute":
        raise BadInput("Compute Engine has no queue: remove `service` or `queued`")
    if not rented:
        raise BadInput(
            f"`accelerator_type` {machine.name}: `launch` cannot rent {machine.chip} slices of"
            " several hosts, so start `pretrain` on your own slice (docs/pods.md)"
        )
    if wanted not in ("auto", *rented):
        other = next(iter(rented.values()))
        raise BadInput(
            f"{NAMES[wanted]} does not rent {machine.name}, but {NAMES[other.service]} does"
            f" ({other.documented_by} on cloud.google.com): remove {parameter}"
        )
    return [one for name, one in rented.items() if wanted in ("auto", name)]


def add_rental(run: LaunchedRun, rental: Rental, image: str | None = None) -> LaunchedRun:
    """Add the service and the machine's image to a run's record.

    Args:
        run: record with the type of machine and the engine.
        rental: service that rents the machine.
        image: name of the VM's image, or None for the default.
    """
    known = f"{compute.IMAGES}/{rental.image}" if rental.service == "compute" else rental.image
    if choose_engine(run.accelerator, run.engine) == "estimator":
        known = tpu_api.ESTIMATOR_IMAGE
    return replace(run, service=rental.service, runtime_version=image or known)


def choose_engine(machine: Accelerator, engine: str) -> str:
    """Return the engine of training on a TPU, with `auto` replaced by the choice of `pretrain`."""
    if engine == "auto":
        return "estimator" if machine.generation in (2, 3) else "pjrt"
    return engine


def check_engine(machine: Accelerator, engine: str) -> None:
    """Check that an engine supports a machine.

    Args:
        machine: slice to rent.
        engine: engine of the run.

    Raises:
        BadInput: The engine does not support several hosts, or this TPU generation.
    """
    chosen = choose_engine(machine, engine)
    if chosen == "estimator" and machine.generation >= 5:
        raise BadInput(
            f"{machine.name}: tf.estimator of TensorFlow 2.15 fails on TPU v5 and later"
            " (tensorflow/tensorflow#90807), so use `engine` auto"
        )
    if chosen == "estimator" and machine.hosts > 1:
        raise BadInput(
            f"{machine.name} consists of {machine.hosts} hosts, but the engine estimator supports"
            " one: use `engine` pjrt, or a type with 8 cores"
        )


def describe(run: LaunchedRun) -> str:
    """Return a line with the service, quota, engine and hosts of a run's machine."""
    quota = format_quota(run.accelerator, run.service, run.pricing)
    engine = choose_engine(run.accelerator, run.engine)
    hosts = f" on {run.hosts} hosts (docs/pods.md)" if run.hosts > 1 else ""
    place = f"rented from {NAMES[run.service]} (quota {quota})"
    return f"{run.accelerator_type}: {place}, engine {engine}{hosts}"
