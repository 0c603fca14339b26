"""Chooses the service that rents a machine; lists and deletes on both services as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from bigbird_ja import accelerators
from bigbird_ja.accelerators import generation_of
from bigbird_ja.launch import compute, tpu_api
from bigbird_ja.launch.files import find_runs, read_run
from bigbird_ja.launch.record import Presence, Tpu, Tpus
from bigbird_ja.launch.rest import Kind, ServiceFault, advice
from bigbird_ja.launch.state import ABSENT_LOOKS
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput, StorageError

MODULES = {"tpu": tpu_api, "compute": compute}
NAMES = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}


def service_of(accelerator_type: str) -> str:
    """Choose `compute` for v5e and later, `tpu` for v2 to v4 and for v5e of several hosts.

    Neither service sees what the other rents.
    """
    return "compute" if compute.serves(accelerator_type) else "tpu"


def image(accelerator_type: str) -> str:
    """Name the image that such a machine boots."""
    return MODULES[service_of(accelerator_type)].image(accelerator_type)


def engine_on(accelerator_type: str, engine: str) -> str:
    """Choose the engine of a new run on a TPU of this type, as `pretrain --engine` does."""
    if engine == "auto":
        return "estimator" if generation_of(accelerator_type) in (2, 3) else "pjrt"
    return engine


def check_rentable(accelerator_type: str, engine: str = "auto", queued: bool = False) -> list[str]:
    """Refuse what cannot work, before anything is created.

    Args:
        accelerator_type: as the Cloud TPU API names it, such as `v3-8`.
        engine: as `pretrain --engine`.
        queued: whether a queue is to be used.

    Returns:
        Warnings to show.

    Raises:
        BadInput: not a TPU type, a size that there is not, a slice of several hosts for the engine
            of one, a generation that the engine is known to fail on, or no queue there.
    """
    try:
        machine = accelerators.find(accelerator_type)
    except BadInput as error:
        raise BadInput(f"--accelerator_type: {error}") from error
    if compute.serves(accelerator_type):
        compute.machine_type(accelerator_type)
        if queued:
            raise BadInput(
                f"--queued: Compute Engine, which rents {accelerator_type}, has no queue: leave it"
                " out, and name several --zones"
            )
    generation = generation_of(accelerator_type)
    if engine_on(accelerator_type, engine) == "pjrt":
        hosts = f", of a slice of {machine.hosts} hosts (docs/pods.md)" if machine.hosts > 1 else ""
        return [
            f"{accelerator_type}: trained by JAX's runtime{hosts}, which no run of ours has used on"
            " a TPU yet: watch its first hour"
        ]
    if generation >= 5:
        raise BadInput(
            f"{accelerator_type}: tf.estimator of TensorFlow 2.15 fails on TPU v5 and later"
            " (tensorflow/tensorflow#90807, open): use --engine auto"
        )
    if machine.hosts > 1:
        raise BadInput(
            f"{accelerator_type} has {machine.hosts} hosts, of which the estimator engine uses one:"
            " use --engine pjrt, or an -8 type"
        )
    if generation < 4:
        return []
    return [f"{accelerator_type}: TPUEstimator on v4 is unproven; v2-8 and v3-8 are known"]


def connect_all(project: str) -> Everywhere:
    """Connect to both services; where an emulator stands for one, to the emulated ones only.

    Raises:
        BadInput: no credentials.
    """
    emulated = [name for name, one in MODULES.items() if one.EMULATOR_VARIABLE in os.environ]
    return Everywhere({name: MODULES[name].connect(project) for name in emulated or MODULES})


class Everywhere:
    """Both services as one; a fault of one hides nothing that the other lists.

    Args:
        services: by their names.
    """

    def __init__(self, services: Mapping[str, Tpus]) -> None:
        self._services = dict(services)

    def list(self, zone: str) -> list[Tpu]:
        """List all TPUs of a zone, or of all ("-").

        Raises:
            ServiceFault: a service, or a part of it, did not answer; `listed` is what others list.
                A service that is switched off in the project rents nothing and is passed over,
                unless all are.
        """
        tpus: list[Tpu] = []
        faults: list[ServiceFault] = []
        off: list[ServiceFault] = []
        for service in self._services.values():
            try:
                tpus += service.list(zone)
            except ServiceFault as fault:
                tpus += fault.listed
                (off if fault.is_switched_off else faults).append(fault)
        if faults or len(off) == len(self._services):
            first = (faults or off)[0]
            raise ServiceFault(first.kind, first.message, tpus)
        return tpus

    def delete(self, tpu: Tpu) -> str:
        """Delete a machine by the service that lists it."""
        return self._services[tpu.service].delete(tpu)

    def time(self) -> float:
        """Return UNIX seconds by the clock of a service that has answered.

        Raises:
            ServiceFault: none has.
        """
        fault = ServiceFault(Kind.UNAVAILABLE, "no service has answered")
        for service in self._services.values():
            try:
                return service.time()
            except ServiceFault as error:
                fault = error
        raise fault

    def check_zones(self, zones: Sequence[str]) -> None:
        """Check that zones exist: in one that does not, nothing is left.

        Raises:
            BadInput: one does not.
            ServiceFault: the services do not answer.
        """
        named = [zone for zone in zones if zone != "-"]
        known: set[str] = set()
        for service in self._services.values() if named else ():
            try:
                known |= {*service.zones()}
            except ServiceFault as fault:
                if not fault.is_switched_off:
                    raise
        for zone in named:
            if zone not in known:
                raise BadInput(
                    f"--zones: no service knows {zone!r}: a zone looks like us-central1-a"
                )


def list_ours(project: str, zones: Sequence[str], bucket: str | None) -> tuple[list[Tpu], float]:
    """List the TPUs that `launch` made in these zones, whichever service rents them.

    Args:
        project: id of the Google Cloud project.
        zones: "-" is every zone.
        bucket: only those of the runs that lie there, by their ids; None: of all.

    Returns:
        The TPUs, and UNIX seconds by the service's clock.

    Raises:
        BadInput: the service refuses, or knows no such zone; the message has what to do.
        StorageError: a part of it does not answer, so that something may be left there.
    """
    service = connect_all(project)
    ids = _ids_on(bucket) if bucket else None
    tpus: list[Tpu] = []
    for zone in zones:
        try:
            service.check_zones([zone])
            listed = [tpu for tpu in service.list(zone) if tpu.run_id]
            tpus += [tpu for tpu in listed if ids is None or tpu.run_id in ids]
            now = service.time()
        except ServiceFault as fault:
            for tpu in fault.listed:
                log(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}")
            if fault.is_passing:
                raise StorageError(
                    f"some zones did not answer ({fault.message}); machines may remain there: try"
                    " again",
                    results={"tpus": [tpu.to_json() for tpu in fault.listed]},
                ) from fault
            raise BadInput(advice(fault, project, zone, "TPUs")) from fault
    return tpus, now


def _ids_on(bucket: str) -> set[str]:
    """Read the ids of the runs on a bucket; a damaged record hides no other run's machines."""
    ids = set()
    for name in find_runs(bucket):
        try:
            run = read_run(bucket, name)
        except BadInput as error:
            log(str(error))
        else:
            ids |= {run.run_id} if run else set()
    return ids


def delete_all(
    service: Everywhere,
    tpus: Sequence[Tpu],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Delete these TPUs, by their full names, until two looks do not show them any more.

    Args:
        service: both services.
        tpus: as they were listed.
        timeout: seconds.
        clock: seconds, monotonic.
        sleep: waits some seconds.

    Returns:
        The full names of what still is there.
    """
    start, pause = clock(), 1.0
    looks = {_identity(tpu): 0 for tpu in tpus}  # that have not shown it, in a row
    remaining = list(tpus)
    while remaining:
        for tpu in remaining:
            if tpu.presence is not Presence.DELETING and not looks[_identity(tpu)]:
                try:
                    service.delete(tpu)
                except ServiceFault as fault:
                    if fault.kind is not Kind.NOT_FOUND:
                        log(f"{tpu.resource}: {fault}")
        if clock() - start > timeout:
            break
        sleep(pause)
        pause = min(pause * 1.5, 15.0)
        # What a zone that does not answer may hold stays in the list of what must go.
        for zone in sorted({tpu.zone for tpu in remaining}):
            try:
                shown = {_identity(tpu): tpu for tpu in service.list(zone)}
            except ServiceFault as fault:
                log(f"{zone}: {fault}")
                continue
            for tpu in remaining:
                if tpu.zone == zone:
                    one = _identity(tpu)
                    looks[one] = 0 if one in shown else looks[one] + 1
            remaining = [shown.get(_identity(tpu), tpu) for tpu in remaining]
        remaining = [tpu for tpu in remaining if looks[_identity(tpu)] < ABSENT_LOOKS]
    return [tpu.resource for tpu in remaining]


def _identity(tpu: Tpu) -> tuple[str, str, str, float]:
    """Return what distinguishes a machine from every other one, of its name too."""
    return tpu.service, tpu.resource, tpu.run_id, tpu.created
