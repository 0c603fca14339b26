"""List and delete the machines that `launch` made, on both services."""

from collections.abc import Callable, Mapping, Sequence

from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Presence, Tpu, Tpus, check_still_there
from bigbird_ja.launch.state import ABSENT_POLLS
from bigbird_ja.process.console import log

Clients = Mapping[tuple[str, str], Tpus]  # by service and project


def list_ours(clients: Clients) -> tuple[list[Tpu], float]:
    """List the TPUs that `launch` made, in all zones.

    A service that is off in a project rents nothing and is left out, unless all are off.

    Args:
        clients: clients by service and project.

    Returns:
        The TPUs, and UNIX seconds by a service's clock.

    Raises:
        BadInput: a service refuses; the message has the remedy.
        StorageError: some zones do not answer, so that machines may be left there.
    """
    tpus: list[Tpu] = []
    faults: list[tuple[ServiceFault, str]] = []
    off: list[tuple[ServiceFault, str]] = []
    now = 0.0
    for (_, project), client in clients.items():
        try:
            tpus += client.list()
            now = client.time() or now
        except ServiceFault as fault:
            tpus += fault.listed
            (off if fault.is_switched_off else faults).append((fault, project))
    tpus = [tpu for tpu in tpus if tpu.run_id]
    if not faults and len(off) < len(clients):
        return tpus, now
    first, project = (faults or off)[0]
    for tpu in tpus:
        log(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}")
    if first.is_passing:
        text = f"some zones did not answer ({first.message}); machines may remain there"
        results = {"tpus": [tpu.to_json() for tpu in tpus]}
        raise StorageError(f"{text}: try again", results=results) from first
    place = LaunchedRun("", "", project=project, accelerator_type="a TPU")
    raise BadInput(advise(first, place)) from first


def delete_all(
    clients: Clients,
    tpus: Sequence[Tpu],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Delete these TPUs, until two polls in a row do not find them under their names.

    Args:
        clients: clients by service and project.
        tpus: machines as they were listed.
        timeout: seconds for all of them.
        clock: monotonic clock, in seconds.
        sleep: callback that waits some seconds.

    Returns:
        The full names of machines that are still there.
    """
    start, pause = clock(), 1.0
    absences = {tpu.resource: 0 for tpu in tpus}  # polls in a row without it
    while True:
        for tpu in tpus:
            count = absences[tpu.resource]
            if count < ABSENT_POLLS:
                absences[tpu.resource] = _delete(clients[tpu.service, tpu.project], tpu, count)
        left = [name for name, absent in absences.items() if absent < ABSENT_POLLS]
        if not left or clock() - start > timeout:
            return left
        sleep(pause)
        pause = min(pause * 1.5, 15.0)


def _delete(service: Tpus, tpu: Tpu, absences: int) -> int:
    """Request the deletion of a TPU if it is there; return the polls in a row without it."""
    try:
        if check_still_there(service, tpu).presence is not Presence.DELETING:
            service.delete(tpu)
    except ServiceFault as fault:
        if fault.kind is Kind.NOT_FOUND:
            return absences + 1
        log(f"{tpu.resource}: {fault}")
        return absences
    return 0
