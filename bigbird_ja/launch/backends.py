"""Chooses the service that rents a machine; lists and deletes on both."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigbird_ja import accelerators
from bigbird_ja.accelerators import CHIPS, Prices, Rental
from bigbird_ja.accelerators.rentals import FLEX_START
from bigbird_ja.launch import LaunchedRun, Presence, Tpu, Tpus, check_still_there, compute, tpu_api
from bigbird_ja.launch.advice import advise, quota_name
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import ABSENT_LOOKS
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput, StorageError

MODULES = {"tpu": tpu_api, "compute": compute}
NAMES = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}


def find_rentals(flags: Mapping[str, Any], table: Prices) -> list[Rental]:
    """List the services that may rent a machine, by the package's table, the preferred one first.

    Args:
        flags: of `launch`, by name.
        table: rentals of each chip.

    Raises:
        BadInput: not a TPU type, a size that does not exist, or no service rents it that way.
    """
    names = ("accelerator_type", "service", "pricing", "queued")
    accelerator_type, service, pricing, queued = (flags[name] for name in names)
    try:
        machine = accelerators.find(accelerator_type)
    except BadInput as error:
        raise BadInput(f"--accelerator_type: {error}") from error
    rented: dict[str, Rental] = {}
    for one in table.rented(machine, pricing):
        rented.setdefault(one.service, one)
    flag = "--queued" if queued and service == "auto" else f"--service {service}"
    wanted = "tpu" if queued and service == "auto" else service
    if queued and wanted == "compute":
        raise BadInput("--queued: Compute Engine has no queue: leave --service out, or --queued")
    if not rented and pricing == FLEX_START:
        machines = {chip: accelerators.find(f"{chip}-8") for chip in CHIPS}
        chips = ", ".join(chip for chip, one in machines.items() if table.rented(one, pricing))
        raise BadInput(f"--pricing {pricing}: only for {chips}, not for {accelerator_type}")
    if not rented:
        raise BadInput(
            f"--accelerator_type {accelerator_type}: no service rents slices of several hosts of"
            f" {machine.chip}: start `pretrain` on a slice of your own (docs/pods.md)"
        )
    if wanted not in ("auto", *rented):
        other = next(iter(rented.values()))
        raise BadInput(
            f"{flag}: {NAMES[wanted]} does not rent {accelerator_type}, but {NAMES[other.service]}"
            f" does ({other.documented_by} on cloud.google.com): leave {flag} out"
        )
    found = [one for name, one in rented.items() if wanted in ("auto", name)]
    return [one for one in found if one.service in emulated()] or found


def image(rental: Rental, accelerator_type: str, engine: str) -> str:
    """Name the image that a machine boots."""
    if engine_on(accelerator_type, engine) == "estimator":
        return tpu_api.ESTIMATOR_IMAGE
    return f"{compute.IMAGES}/{rental.image}" if rental.service == "compute" else rental.image


def engine_on(accelerator_type: str, engine: str) -> str:
    """Choose the engine of a new run on a TPU of this type, as `pretrain --engine` does."""
    if engine == "auto":
        return "estimator" if accelerators.find(accelerator_type).generation in (2, 3) else "pjrt"
    return engine


def check_engine(accelerator_type: str, engine: str = "auto") -> None:
    """Refuse a machine that the engine is known to fail on, before anything is created.

    Args:
        accelerator_type: such as `v3-8`.
        engine: as `pretrain --engine`.

    Raises:
        BadInput: a slice of several hosts for the engine of one, or a generation that the engine
            fails on.
    """
    machine = accelerators.find(accelerator_type)
    chosen = engine_on(accelerator_type, engine)
    if chosen == "estimator" and machine.generation >= 5:
        raise BadInput(
            f"{accelerator_type}: tf.estimator of TensorFlow 2.15 fails on TPU v5 and later"
            " (tensorflow/tensorflow#90807, open): use --engine auto"
        )
    if chosen == "estimator" and machine.hosts > 1:
        raise BadInput(
            f"{accelerator_type} has {machine.hosts} hosts, of which the estimator engine uses one:"
            " use --engine pjrt, or an -8 type"
        )


def describe(run: LaunchedRun) -> str:
    """Name the service of a run, its quota, its engine and its hosts."""
    quota = quota_name(run.accelerator_type, run.service, run.pricing)
    engine = engine_on(run.accelerator_type, run.engine)
    hosts = f" on {run.hosts} hosts (docs/pods.md)" if run.hosts > 1 else ""
    place = f"rented from {NAMES[run.service]} (quota {quota})"
    return f"{run.accelerator_type}: {place}, engine {engine}{hosts}"


def emulated() -> list[str]:
    """List the services for which an emulator stands, in tests; empty outside of them."""
    return [name for name, one in MODULES.items() if one.EMULATOR_VARIABLE in os.environ]


def connect(service: str, project: str) -> Tpus:
    """Connect to a service.

    Raises:
        BadInput: no credentials.
    """
    connected: Tpus = MODULES[service].connect(project)
    return connected


def connect_all(project: str) -> dict[str, Tpus]:
    """Connect to both services; where an emulator stands for one, to the emulated ones only.

    Raises:
        BadInput: no credentials.
    """
    return {name: connect(name, project) for name in emulated() or MODULES}


def list_ours(services: Mapping[str, Tpus], project: str) -> tuple[list[Tpu], float]:
    """List the TPUs that `launch` made, in all zones of both services.

    A service that is switched off in the project rents nothing and is passed over, unless all are.

    Args:
        services: by their names.
        project: id of the Google Cloud project.

    Returns:
        The TPUs, and UNIX seconds by a service's clock.

    Raises:
        BadInput: a service refuses; the message has what to do.
        StorageError: a part of one does not answer, so that something may be left there.
    """
    tpus: list[Tpu] = []
    faults: list[ServiceFault] = []
    off: list[ServiceFault] = []
    now = 0.0
    for service in services.values():
        try:
            tpus += service.list("-")
            now = service.time()
        except ServiceFault as fault:
            tpus += fault.listed
            (off if fault.is_switched_off else faults).append(fault)
    tpus = [tpu for tpu in tpus if tpu.run_id]
    if faults or len(off) == len(services):
        first = (faults or off)[0]
        for tpu in tpus:
            log(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}")
        if first.is_passing:
            text = f"some zones did not answer ({first.message}); machines may remain there"
            results = {"tpus": [tpu.to_json() for tpu in tpus]}
            raise StorageError(f"{text}: try again", results=results) from first
        raise BadInput(
            advise(first, LaunchedRun("", "", project=project, accelerator_type="a TPU"))
        ) from first
    return tpus, now


def delete_all(
    services: Mapping[str, Tpus],
    tpus: Sequence[Tpu],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Delete these TPUs, until two looks in a row do not find them under their names any more.

    Args:
        services: by their names.
        tpus: as they were listed.
        timeout: seconds.
        clock: seconds, monotonic.
        sleep: waits some seconds.

    Returns:
        The full names of what still is there.
    """
    start, pause = clock(), 1.0
    looks = {tpu.resource: 0 for tpu in tpus}  # that have not found it, in a row
    while True:
        for tpu in tpus:
            if looks[tpu.resource] < ABSENT_LOOKS:
                looks[tpu.resource] = _delete(services[tpu.service], tpu, looks[tpu.resource])
        left = [name for name, absent in looks.items() if absent < ABSENT_LOOKS]
        if not left or clock() - start > timeout:
            return left
        sleep(pause)
        pause = min(pause * 1.5, 15.0)


def _delete(service: Tpus, tpu: Tpu, looks: int) -> int:
    """Look for a TPU and ask for its deletion; return how often it has not been found in a row."""
    try:
        if check_still_there(service, tpu).presence is not Presence.DELETING:
            service.delete(tpu)
    except ServiceFault as fault:
        if fault.kind is Kind.NOT_FOUND:
            return looks + 1
        log(f"{tpu.resource}: {fault}")
        return looks
    return 0
