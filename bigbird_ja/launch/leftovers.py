"""List and delete the machines that `launch` made, on both services."""

from collections.abc import Callable, Mapping, Sequence

from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.record import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Presence, Tpu, Tpus, check_still_there
from bigbird_ja.launch.state import ABSENT_LOOKS
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput, StorageError


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
