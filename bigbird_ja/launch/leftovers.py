"""The function `down`: list and delete the machines that `launch` rented, at all services."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bigbird_ja.errors import BadInput, CommandError, StorageError
from bigbird_ja.launch import backends
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.display import contain
from bigbird_ja.launch.files import find_projects, find_supervisor
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Presence, Tpu, Tpus, check_still_there
from bigbird_ja.launch.state import ABSENT_POLLS
from bigbird_ja.process.console import log

# Maximum seconds for all deletions.
DELETE_SECONDS = 900.0
# Clients by service and project.
Clients = Mapping[tuple[str, str], Tpus]


@dataclass(frozen=True)
class ListedTpu:
    """Machine of a run, as a service lists it.

    Attributes:
        name: Name of the machine.
        run: Name of its run.
        run_id: Id of its run.
        run_dir: BUCKET/NAME of its run, or "" if it is unknown.
        zone: Zone of the machine.
        state: State in the service's words.
        accelerator_type: Type of the TPU.
        service: Service that rents it.
        resource: Full name of the resource.
    """

    name: str
    run: str
    run_id: str
    run_dir: str
    zone: str
    state: str
    accelerator_type: str
    service: str
    resource: str

    @classmethod
    def of(cls, tpu: Tpu) -> "ListedTpu":
        """Return the public fields of a machine."""
        return cls(**{name: getattr(tpu, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class DownResult:
    """Result of `down`.

    Attributes:
        deleted: Full names of the deleted machines.
        left: Full names of machines that may still exist.
    """

    deleted: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """Machines of runs that the services listed. The listing may be incomplete.

    Attributes:
        tpus: machines that were listed.
        now: UNIX seconds by a service's clock.
        fault: error if a service or zone refused or did not answer, or None.
    """

    tpus: tuple[Tpu, ...]
    now: float
    fault: CommandError | None = None


def down(
    *,
    project: str,
    name: str | None = None,
    bucket: str | None = None,
    yes: bool = False,
    confirm: Callable[[Sequence[ListedTpu]], bool] | None = None,
) -> DownResult:
    """Delete the machines that `launch` rented, and wait until they are absent.

    Damaged files on a bucket and zones that do not answer do not prevent the deletion of the listed
    machines.

    Args:
        project: id of the Google Cloud project.
        name: run whose machines are deleted; all runs by default.
        bucket: gs://BUCKET[/FOLDER]. Only machines of its runs are deleted, in all projects of the
            runs.
        yes: whether to delete without confirmation.
        confirm: callback that receives the machines to delete, and returns whether to delete them.

    Raises:
        BadInput: The deletion was not confirmed, no listed machine matches `name` and `bucket`, a
            service refuses the listing, or a running `launch` watches a machine. A watched machine
            is not deleted, since `launch` would create it again.
        StorageError: A machine could not be deleted, or may exist in a zone that did not answer.
    """
    projects = {project, *(find_projects(bucket) if bucket else ())}
    clients = backends.CLOUD.connect_all(*projects)
    listing = list_ours(clients)
    folder = f"{(bucket or '').rstrip('/')}/"
    tpus = [tpu for tpu in listing.tpus if name in (None, tpu.run)]
    tpus = [tpu for tpu in tpus if not bucket or tpu.run_dir.startswith(folder)]
    watchers = {tpu.resource: _find_watcher(tpu, listing.now) for tpu in tpus}
    watched = [tpu for tpu in tpus if watchers[tpu.resource]]
    free = [tpu for tpu in tpus if not watchers[tpu.resource]]
    result = DownResult()
    if free:
        shown = [ListedTpu.of(tpu) for tpu in free]
        if not (confirm(shown) if confirm else yes):
            raise BadInput(
                "nothing was deleted, since the deletion was not confirmed"
                if confirm
                else "deletion requires confirmation: set `yes`"
            )
        left = delete_all(clients, free, DELETE_SECONDS, time.monotonic, time.sleep)
        deleted = [tpu.resource for tpu in free if tpu.resource not in left]
        result = DownResult(tuple(deleted), tuple(left))
    if result.left:
        raise StorageError(
            f"not deleted and perhaps billed: {', '.join(result.left)}; rerun the same command, or"
            " use the console",
            results=asdict(result),
        )
    if watched:
        which = "; ".join(f"{tpu.run} by {watchers[tpu.resource]}" for tpu in watched)
        raise BadInput(
            f"a running `launch` would create this TPU again: {which}; stop it with Ctrl-C, which"
            " deletes the TPU",
            asdict(result),
        )
    if listing.fault is not None:
        listing.fault.results |= asdict(result)
        raise listing.fault
    if listing.tpus and not tpus:
        where = ", ".join(sorted({f"{tpu.run} in {tpu.zone}" for tpu in listing.tpus}))
        given = [f"`{key}` {value}" for key, value in (("name", name), ("bucket", bucket)) if value]
        raise BadInput(f"{' '.join(given)}: no TPU is listed for this; TPUs exist for {where}")
    return result


def _find_watcher(tpu: Tpu, now: float) -> str:
    """Return the name of the supervisor that watches a machine, or ""."""
    return (find_supervisor(tpu.run_dir, now) or "") if tpu.run_dir else ""


def list_ours(clients: Clients) -> Listing:
    """List the TPUs that `launch` rented, in all zones.

    A service whose API is off in a project rents no machines there, so it is skipped. If the APIs
    of all services are off, the listing contains an error.

    Args:
        clients: clients by service and project.
    """
    tpus: list[Tpu] = []
    faults: list[tuple[ServiceFault, str]] = []
    off: list[tuple[ServiceFault, str]] = []
    now = 0.0
    for (_, project), client in clients.items():
        try:
            tpus += client.list()
        except ServiceFault as fault:
            tpus += fault.listed
            (off if fault.is_switched_off else faults).append((fault, project))
        now = client.time() or now
    ours = tuple(tpu for tpu in tpus if tpu.run_id)
    now = now or time.time()
    if not faults and len(off) < len(clients):
        return Listing(ours, now)
    first, project = (faults or off)[0]
    if first.is_passing:
        text = f"some zones did not answer ({first.message}), and may contain machines"
        return Listing(ours, now, StorageError(f"{text}: rerun the same command"))
    place = LaunchedRun("", "", project=project, accelerator_type="a TPU")
    return Listing(ours, now, BadInput(advise(first, place)))


def delete_all(
    clients: Clients,
    tpus: Sequence[Tpu],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Delete TPUs until two successive polls do not find their names.

    Args:
        clients: clients by service and project.
        tpus: machines as they were listed.
        timeout: maximum seconds for all deletions.
        clock: monotonic clock, in seconds.
        sleep: callback that waits some seconds.

    Returns:
        The full names of machines that may still exist.
    """
    start, pause = clock(), 1.0
    # Number of successive polls that did not find each machine.
    absences = {tpu.resource: 0 for tpu in tpus}
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
    """Request the deletion of a TPU if it exists.

    Returns:
        The number of successive polls that did not find it.
    """
    try:
        if check_still_there(service, tpu).presence is not Presence.DELETING:
            service.delete(tpu)
    except Exception as error:
        # A failure with one machine must not prevent the deletion of others.
        if isinstance(error, ServiceFault) and error.kind is Kind.NOT_FOUND:
            return absences + 1
        text = f"{tpu.resource}: {error}"
        contain(lambda: log(text), None)
        return absences
    return 0
