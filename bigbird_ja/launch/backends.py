"""The choice of the service, image and engine for a machine; connections to the services."""

import os
from dataclasses import replace

from bigbird_ja.accelerators.chips import CHIPS, Accelerator, find
from bigbird_ja.accelerators.prices import FLEX_START, Prices, Rental
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import compute, rest, tpu_api
from bigbird_ja.launch.advice import quota_name
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.service import Tpus

MODULES = {"tpu": tpu_api, "compute": compute}
NAMES = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}


def find_rentals(
    machine: Accelerator, service: str, pricing: str, queued: bool, table: Prices
) -> list[Rental]:
    """List the services that may rent a machine, by the package's table, the preferred one first.

    Args:
        machine: slice to rent.
        service: value of `--service`.
        pricing: value of `--pricing`.
        queued: value of `--queued`.
        table: rentals of each chip.

    Raises:
        BadInput: no service rents the machine that way.
    """
    rented: dict[str, Rental] = {}
    for one in table.rented(machine, pricing):
        rented.setdefault(one.service, one)
    flag = "--queued" if queued and service == "auto" else f"--service {service}"
    wanted = "tpu" if queued and service == "auto" else service
    if queued and wanted == "compute":
        raise BadInput("--queued: Compute Engine has no queue: leave --service out, or --queued")
    if not rented and pricing == FLEX_START:
        machines = {chip: find(f"{chip}-8") for chip in CHIPS}
        chips = ", ".join(chip for chip, one in machines.items() if table.rented(one, pricing))
        raise BadInput(f"--pricing {pricing}: only for {chips}, not for {machine.name}")
    if not rented:
        raise BadInput(
            f"--accelerator_type {machine.name}: no service rents slices of several hosts of"
            f" {machine.chip}: start `pretrain` on a slice of your own (docs/pods.md)"
        )
    if wanted not in ("auto", *rented):
        other = next(iter(rented.values()))
        raise BadInput(
            f"{flag}: {NAMES[wanted]} does not rent {machine.name}, but {NAMES[other.service]}"
            f" does ({other.documented_by} on cloud.google.com): leave {flag} out"
        )
    found = [one for name, one in rented.items() if wanted in ("auto", name)]
    return [one for one in found if one.service in emulated()] or found


def rented(run: LaunchedRun, rental: Rental, image: str | None = None) -> LaunchedRun:
    """Add the service that rents the machine, and the machine's image, to a run's record.

    Args:
        run: record with type of machine and engine.
        rental: service that rents the machine.
        image: value of `--runtime_version`.
    """
    known = f"{compute.IMAGES}/{rental.image}" if rental.service == "compute" else rental.image
    if engine_on(run.accelerator, run.engine) == "estimator":
        known = tpu_api.ESTIMATOR_IMAGE
    return replace(run, service=rental.service, runtime_version=image or known)


def engine_on(machine: Accelerator, engine: str) -> str:
    """Return the engine of a new run on such a TPU, as `pretrain --engine` chooses it."""
    if engine == "auto":
        return "estimator" if machine.generation in (2, 3) else "pjrt"
    return engine


def check_engine(machine: Accelerator, engine: str) -> None:
    """Check that the engine is not known to fail on a machine.

    Args:
        machine: slice to rent.
        engine: value of `--engine`.

    Raises:
        BadInput: a slice of several hosts for the engine of one, or a generation that the engine
            fails on.
    """
    chosen = engine_on(machine, engine)
    if chosen == "estimator" and machine.generation >= 5:
        raise BadInput(
            f"{machine.name}: tf.estimator of TensorFlow 2.15 fails on TPU v5 and later"
            " (tensorflow/tensorflow#90807, open): use --engine auto"
        )
    if chosen == "estimator" and machine.hosts > 1:
        raise BadInput(
            f"{machine.name} has {machine.hosts} hosts, of which the estimator engine uses one:"
            " use --engine pjrt, or an -8 type"
        )


def describe(run: LaunchedRun) -> str:
    """Return a line with service, quota, engine and hosts of a run."""
    quota = quota_name(run.accelerator, run.service, run.pricing)
    engine = engine_on(run.accelerator, run.engine)
    hosts = f" on {run.hosts} hosts (docs/pods.md)" if run.hosts > 1 else ""
    place = f"rented from {NAMES[run.service]} (quota {quota})"
    return f"{run.accelerator_type}: {place}, engine {engine}{hosts}"


def emulated() -> list[str]:
    """List the services that tests emulate; empty outside of tests."""
    return [name for name, one in MODULES.items() if one.EMULATOR_VARIABLE in os.environ]


def connect(service: str, project: str) -> Tpus:
    """Connect to a service in one project.

    Raises:
        BadInput: no credentials.
    """
    module = MODULES[service]
    client: Tpus = module.Client(project, rest.connect_rest(module.API, module.EMULATOR_VARIABLE))
    return client


def connect_all(*projects: str) -> dict[tuple[str, str], Tpus]:
    """Connect to both services in some projects; in tests only to the emulated services.

    Raises:
        BadInput: no credentials.
    """
    places = [(service, project) for project in projects for service in emulated() or MODULES]
    return {place: connect(*place) for place in places}
