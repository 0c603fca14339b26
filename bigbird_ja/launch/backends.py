"""Chooses the service that rents a machine; lists and deletes on both."""

import os
from collections.abc import Callable, Mapping, Sequence

from bigbird_ja import accelerators
from bigbird_ja.accelerators import generation_of
from bigbird_ja.launch import Presence, Tpu, Tpus, check_still_there, compute, tpu_api
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
    machine = accelerators.find(accelerator_type)
    is_node = machine.chip not in compute.MACHINE_TYPES or (
        machine.chip == "v5e" and machine.hosts > 1
    )
    return "tpu" if is_node else "compute"


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
    if service_of(accelerator_type) == "compute":
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


def connect_all(project: str) -> dict[str, Tpus]:
    """Connect to both services; where an emulator stands for one, to the emulated ones only.

    Raises:
        BadInput: no credentials.
    """
    emulated = [name for name, one in MODULES.items() if one.EMULATOR_VARIABLE in os.environ]
    return {name: MODULES[name].connect(project) for name in emulated or MODULES}


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
        raise BadInput(advice(first, project, "-", "TPUs")) from first
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
