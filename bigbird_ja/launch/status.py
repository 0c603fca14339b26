"""The function `status`: state of launched runs, from files on the bucket and listed machines."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import backends
from bigbird_ja.launch.files import RunFiles, check_known, find_runs, find_supervisor, read_run
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.leftovers import ListedTpu, Listing, list_ours
from bigbird_ja.launch.service import Presence, Tpu
from bigbird_ja.launch.state import Phase, RunState, TrainerBeat
from bigbird_ja.process.console import log
from bigbird_ja.settings.config_file import read_config


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Status of one run.

    Attributes:
        name: Name of the run.
        run_id: Id of the run.
        state: State of the trainer, phase of the supervisor, or ending of the run; "unreadable" if
            a file is damaged.
        step: Highest step.
        target_step: Last step of the run.
        tokens_per_second: Rate of training.
        compile_seconds: Seconds to compile or load the step.
        eta_seconds: Remaining seconds at `tokens_per_second`, or None if unknown.
        preemptions: Number of preempted machines.
        failures: Number of failures of training.
        cost_usd: Cost of all machines.
        tpu_hours: Billed hours of all machines.
        usd_per_hour: Price of the machine.
        tpus: Descriptions of the listed machines.
        watched_by: Name of the running supervisor, or None.
        heartbeat_age: Seconds since the trainer's last heartbeat, or None.
        ending: Ending of the run, or None if it continues.
        message: Description of the ending, or an error.
    """

    name: str
    run_id: str = ""
    state: str
    step: int = 0
    target_step: int = 0
    tokens_per_second: float = 0.0
    compile_seconds: float = 0.0
    eta_seconds: float | None = None
    preemptions: int = 0
    failures: int = 0
    cost_usd: float = 0.0
    tpu_hours: float = 0.0
    usd_per_hour: float = 0.0
    tpus: tuple[str, ...] = ()
    watched_by: str | None = None
    heartbeat_age: float | None = None
    ending: str | None = None
    message: str = ""


@dataclass(frozen=True)
class StatusResult:
    """Runs on a bucket, and machines of a project."""

    runs: tuple[RunStatus, ...]
    tpus: tuple[ListedTpu, ...]

    def list_strays(self, bucket: str | None) -> list[ListedTpu]:
        """List the machines that belong to none of the runs in this result."""
        shown = {(run.run_id, storage.join(bucket or "", run.name)) for run in self.runs}
        return [tpu for tpu in self.tpus if (tpu.run_id, tpu.run_dir) not in shown]


def status(
    *, bucket: str | None = None, name: str | None = None, project: str | None = None
) -> StatusResult:
    """Return the status of runs, and list their machines.

    Args:
        bucket: gs://BUCKET[/FOLDER] of the runs.
        name: name of a run; all runs by default.
        project: id of a Google Cloud project whose machines are listed, too.

    Raises:
        BadInput: The run or bucket does not exist, or a service refuses to list its machines.
        StorageError: Some zones do not answer.
    """
    if not bucket and not project:
        raise BadInput("`bucket` or `project` is required")
    if bucket and name:
        check_known(bucket, name)
    names = ([name] if name else find_runs(bucket)) if bucket else []
    listing = Listing((), time.time())
    if project:
        listing = list_ours(backends.CLOUD.connect_all(project))
        if listing.fault is not None:
            for tpu in listing.tpus:
                log(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}")
            listing.fault.results |= {"tpus": [asdict(ListedTpu.of(tpu)) for tpu in listing.tpus]}
            raise listing.fault
    tpus = [tpu for tpu in listing.tpus if name in (None, tpu.run)]
    runs = tuple(read_status(bucket or "", one, tpus, listing.now) for one in names)
    return StatusResult(runs, tuple(map(ListedTpu.of, tpus)))


def read_status(bucket: str, name: str, tpus: Sequence[Tpu], now: float) -> RunStatus:
    """Return the status of one run, or a status with an error message if a file is damaged.

    Args:
        bucket: gs://BUCKET[/FOLDER] of the run.
        name: name of the run.
        tpus: listed machines of all runs.
        now: UNIX seconds, by the service's clock if machines were listed.
    """
    try:
        return _read_status(bucket, name, tpus, now)
    except BadInput as error:
        return RunStatus(name=name, state="unreadable", message=str(error))


def _read_status(bucket: str, name: str, tpus: Sequence[Tpu], now: float) -> RunStatus:
    launched = read_run(bucket, name) or LaunchedRun(bucket, name)
    files = RunFiles(launched)
    state, heartbeat = files.load_state() or RunState(), files.read_heartbeat()
    mine = [tpu for tpu in tpus if tpu.belongs_to(launched)]
    target, copy_of = launched.target_step, launched.copy_of
    usd = (state.machine or launched).usd_per_hour
    note = f"a copy of {copy_of}: see the advice of `launch`" if copy_of else state.ending_message
    step = max(state.best_step, heartbeat.global_step if heartbeat else 0, 0)
    rate = heartbeat.tokens_per_second if heartbeat else 0.0
    has_ended = state.phase is Phase.ENDED
    eta = None
    if rate and target > step and not has_ended:
        eta = (target - step) * _read_tokens_per_step(launched.config_path) / rate or None
    # A READY TPU is billed even if no supervisor runs, so the time since the last poll is added.
    is_ready = any(tpu.presence is Presence.READY for tpu in mine)
    unwatched = max(0.0, now - state.saved_at) if state.saved_at and is_ready else 0.0
    return RunStatus(
        name=name,
        run_id=launched.run_id,
        state=_describe_state(state, heartbeat),
        step=step,
        target_step=target,
        tokens_per_second=rate,
        compile_seconds=heartbeat.compile_seconds if heartbeat else 0.0,
        eta_seconds=eta,
        preemptions=state.preemptions,
        failures=state.failures,
        cost_usd=state.cost_usd + unwatched / 3600 * usd,
        tpu_hours=(state.billed_seconds + unwatched) / 3600,
        usd_per_hour=usd,
        tpus=tuple(f"{tpu.accelerator_type} {tpu.state} in {tpu.zone}" for tpu in mine),
        watched_by=find_supervisor(launched.run_dir, now),
        heartbeat_age=now - heartbeat.time if heartbeat else None,
        ending=state.ending.value if state.ending and has_ended else None,
        message=note,
    )


def _describe_state(state: RunState, heartbeat: TrainerBeat | None) -> str:
    if state.phase is Phase.ENDED and state.ending:
        return state.ending.value
    if state.phase is Phase.RUNNING:
        return (heartbeat.state if heartbeat and state.has_stepped else "") or "starting"
    return state.phase.value


def _read_tokens_per_step(config_path: str) -> int:
    """Return the number of tokens per step, or 0 if the config cannot be read."""
    # This import is deferred, since the module imports NumPy, which `--help` does not require.
    from bigbird_ja.plan.estimate import count_tokens_per_step

    try:
        return count_tokens_per_step(*read_config(config_path))
    except BadInput:
        return 0
