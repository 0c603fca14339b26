"""The function `launch`: checks, dry run, lock, the machine's files, supervision and results."""

import datetime
import functools
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bigbird_ja import errors, storage
from bigbird_ja.accelerators.prices import Prices, Rental, describe_age, load_prices
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub, run_settings
from bigbird_ja.launch import backends, dry_run, package, prepare, supervise, uploaded_model
from bigbird_ja.launch.backends import Cloud
from bigbird_ja.launch.decide import is_refused_everywhere
from bigbird_ja.launch.dry_run import DryRun
from bigbird_ja.launch.files import RunFiles, make_lock, read_run
from bigbird_ja.launch.interrupts import Interrupts
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.prepare import Request
from bigbird_ja.launch.service import Tpus
from bigbird_ja.launch.state import Ending, RunState
from bigbird_ja.launch.supervise import SupervisorIO
from bigbird_ja.process.console import log, outlive_reader, warn
from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Layer, Override, echo_settings
from bigbird_ja.settings.resolve import base_layers, given_layers, refuse_settings, resolve_config
from bigbird_ja.settings.schema import EVALUATION_KEYS, Config
from bigbird_ja.settings.values import list_changes
from bigbird_ja.settings.variants import list_used_settings
from bigbird_ja.storage.lease import LeaseLost


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """Outcome of a launched run.

    Attributes:
        name: Name of the run.
        state: "ended", or "detached" if the user stopped watching the run.
        ending: "finished", "gave_up", "budget" or "interrupted"; None if the run continues.
        message: Description of the ending.
        global_step: Highest step of the run.
        preemptions: Number of preempted machines.
        failures: Number of failures of training.
        leases_over: Number of machines that were deleted at the end of their lease.
        tpu_hours: Billed hours of all machines.
        hours: Hours since the run's first launch.
        cost_usd: Cost of all machines.
        model_dir: Folder of checkpoints and logs.
    """

    name: str
    state: str
    ending: str | None = None
    message: str = ""
    global_step: int = 0
    preemptions: int = 0
    failures: int = 0
    leases_over: int = 0
    tpu_hours: float = 0.0
    hours: float = 0.0
    cost_usd: float = 0.0
    model_dir: str = ""


def launch(
    *,
    config: str | os.PathLike[str] | Config | None = None,
    overrides: Mapping[str, Any] | None = None,
    num_train_steps: int | None = None,
    name: str | None = None,
    project: str | None = None,
    bucket: str | None = None,
    data_dir: str | None = None,
    init_from: str | os.PathLike[str] | None = None,
    mode: str = "train",
    accelerator_type: str = "v5e-8",
    zones: Sequence[str] = (),
    engine: str = "auto",
    service: str = "auto",
    pricing: str = "spot",
    queued: bool = False,
    max_hours: float | None = None,
    max_cost: float | None = None,
    price_per_hour: float | None = None,
    lease_hours: float = 12.0,
    poll_seconds: float = 30.0,
    on_interrupt: str = "ask",
    price_file: str | None = None,
    runtime_version: str | None = None,
    service_account: str | None = None,
    network: str | None = None,
    subnetwork: str | None = None,
    external_ip: bool = True,
    vm_python: str = "python3",
    dry_run: bool = False,
) -> LaunchResult | DryRun:
    """Rent a TPU, train on it, recreate it after preemption, and delete it at the end.

    The function returns when the run has ended or the user has detached. A second call with the
    same arguments continues the run and adopts its machine.

    Args:
        config: preset, file of settings, or config.
        overrides: values of settings, by key.
        num_train_steps: value of training.num_train_steps.
        name: name of the run, its TPU and its folder.
        project: id of the Google Cloud project.
        bucket: gs://BUCKET[/FOLDER] for all files of the run.
        data_dir: data set on gs://.
        init_from: model to start from. A local model is uploaded to the bucket.
        mode: `train` or `train_and_eval`.
        accelerator_type: TPU to rent, such as v5e-8.
        zones: zones to try, in this order; by default the zones in the package's table.
        engine: `auto`, `estimator` or `pjrt`.
        service: `auto`, or the service that rents the TPU: `compute` or `tpu`.
        pricing: `spot` or `on_demand`.
        queued: whether to request a queued resource, which waits for capacity.
        max_hours: maximum hours from the start of the run to its end.
        max_cost: maximum cost of the TPU in US dollars, at which the run ends.
        price_per_hour: price of the TPU, in place of the table's price; 0 for a grant.
        lease_hours: maximum lifetime of a TPU without a supervisor.
        poll_seconds: seconds between polls of the service.
        on_interrupt: reaction to Ctrl-C: `ask`, `delete` or `detach`.
        price_file: YAML file that overrides the package's prices.
        runtime_version: image of the TPU VM.
        service_account: account of the VM.
        network: VPC network.
        subnetwork: VPC subnetwork.
        external_ip: whether to give the VM an external address.
        vm_python: Python of the VM's image.
        dry_run: whether to return the requests instead of sending them.

    Raises:
        BadInput: A parameter, the config or the data set is wrong, or the run, its name or its lock
            belongs to another owner.
        CommandError: The run ended without finishing. The error's `reason` is the exit reason.
    """
    request = Request(**locals())
    package.check_lock()
    prepare.check_request(request)
    return _launch(request, backends.CLOUD)


def _launch(request: Request, cloud: Cloud) -> LaunchResult | DryRun:
    model, adopted = _find_model(request)
    config, overrides = _resolve(request, adopted)
    table = load_prices(request.price_file)
    run, warnings = prepare.make_record(request, config, cloud.vm)
    reads = model and not (request.dry_run and storage.is_remote(model))
    source = (
        uploaded_model.find(model, run.bucket) if reads else uploaded_model.UploadedModel(model)
    )
    run = replace(run, init_from=source.path)
    if request.dry_run:
        run, rental, more = next(prepare.offer(run, request, table, ""))
        warnings = [*warnings, *more]
        result = dry_run.make(run, rental, config, cloud.vm, table, warnings)
        warn([*warnings, *list_config_warnings(config, not model)])
        log(backends.describe(run))
        return result
    # Resolve the config again, since model and data set together determine more settings than the
    # model's own files.
    if model:
        manifest = manifest_lib.load(run.data_dir)
        known = run_settings.adopt_settings(model, manifest, run.data_dir)
        config, overrides = _resolve(request, known)
    echo = echo_settings(config, overrides, list_used_settings("launch"))
    config, data = prepare.check_data(run, config, overrides)
    log(f"settings:\n{echo}")
    warn([*warnings, *list_config_warnings(config, not model, overrides, data)])
    near, state = prepare.find_bucket_region(run.bucket), None
    for record, asked, warnings in prepare.offer(run, request, table, near):
        if state is not None:
            log(
                f"{state.ending_message}; falling back to {backends.NAMES[record.service]}, where"
                " only a program on the machine limits its lifetime: check the machine now and then"
            )
        run, rental = record, asked
        warn(warnings)
        log(backends.describe(run))
        log(describe_age(table.find_oldest_date(run.accelerator, run.zones), datetime.date.today()))
        log(dry_run.estimate(run, config, data)[0])
        tpus = cloud.connect(run.service, run.project)
        prepare.check_name_is_free(run, tpus)
        source.upload()
        state = _watch(run, config, data, request, cloud, tpus)
        if state is None:
            return LaunchResult(name=run.name, state="detached", model_dir=run.model_dir)
        if not is_refused_everywhere(state, run):
            return _finish(run, state, "")
    assert state is not None
    return _finish(run, state, _describe_zones(rental, table))


def _describe_zones(rental: Rental, table: Prices) -> str:
    """Return the end of an error message, which lists the zones that offer the machine."""
    zones, day = ", ".join(rental.zones), rental.as_of
    return f"; the page {rental.zones_by} of {day} lists this machine in {zones}"


def _find_model(request: Request) -> tuple[str, list[Layer]]:
    """Return the path of the model `init_from`, and the settings that the model states."""
    if not request.init_from:
        return "", []
    path = hub.fetch_model(os.fspath(request.init_from), "`init_from`", weights=True)
    if request.dry_run and storage.is_remote(path):
        warn([f"a dry run does not read {path}: it uses the sizes in the config"])
        return path, []
    return path, run_settings.read_stated_settings(path)


def _resolve(request: Request, adopted: Iterable[Layer]) -> tuple[Config, list[Override]]:
    """Resolve the config from the parameters and a model's settings.

    Returns:
        The config, and the settings that were given, with their sources.
    """
    steps = {"training.num_train_steps": request.num_train_steps}
    layers = [*base_layers(request.config), *adopted, *given_layers(request.overrides, steps)]
    config, overrides = resolve_config(layers, list_used_settings("launch"))
    if request.mode != "train_and_eval":
        refuse_settings(overrides, EVALUATION_KEYS, "`mode` train_and_eval")
    return config, overrides


def _watch(
    run: LaunchedRun, config: Config, data: Data, request: Request, cloud: Cloud, tpus: Tpus
) -> RunState | None:
    """Acquire the run's lock, store the machine's files, and supervise until the run ends.

    Returns:
        The last state, or None if the user detached.

    Raises:
        BadInput: Another `launch` watches the run, or has taken it over.
    """
    RunFiles(run).prepare()
    # This clock also counts while the computer is suspended, in contrast to `time.monotonic`.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    # The lease uses the service's clock, since this computer's clock may be wrong by hours.
    lease = make_lock(run, log, wall=lambda: tpus.time() or time.time())
    lease.acquire()
    try:
        stored = store(run, config, data)
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        interrupts = Interrupts(request.on_interrupt, is_terminal, log=log)
        io = SupervisorIO(
            tpus=tpus,
            files=RunFiles(stored),
            monotonic=lambda: time.clock_gettime(clock),
            wall=time.time,
            sleep=interrupts.sleep,
            renew_lock=lease.renew,
            stop=interrupts.stop,
            log=lambda text: log(f"{time.strftime('%F %T')} {run.name}: {text}"),
            metadata=lambda state: startup.make_metadata(stored, cloud.vm, state),
            connect=functools.cache(cloud.connect),
        )
        with interrupts, outlive_reader(interrupts.handle_lost_reader):
            return supervise.supervise(stored, io)
    except supervise.Detached:
        log(
            "detached: rerun the same command to watch again; `bigbird-ja down` deletes the TPU;"
            f" a TPU that nothing watches deletes itself after {run.lease / 3600:g} hours"
        )
        return None
    except LeaseLost as error:
        raise BadInput("another `launch` has taken this run over, so this one stops") from error
    finally:
        lease.release()


def _finish(run: LaunchedRun, state: RunState, advice: str) -> LaunchResult:
    """Return the result of an ended run.

    Raises:
        CommandError: The run ended without finishing. The error's `reason` is the exit reason.
    """
    result = LaunchResult(
        name=run.name,
        state=state.phase.value,
        ending=state.ending.value if state.ending else None,
        message=state.ending_message,
        global_step=max(state.best_step, 0),
        preemptions=state.preemptions,
        failures=state.failures,
        leases_over=state.leases_over,
        tpu_hours=state.billed_seconds / 3600,
        hours=state.elapsed_seconds / 3600,
        cost_usd=state.cost_usd,
        model_dir=run.model_dir,
    )
    if state.ending is Ending.FINISHED and state.ending_reason == "finished":
        return result
    # Linux kills a process that exhausts the memory, so "killed" is reported as lack of memory.
    reasons = {"never_started": errors.Stalled.reason, "killed": errors.OutOfMemory.reason}
    reason = reasons.get(state.ending_reason, state.ending_reason)
    error = errors.make_error(reason, f"{run.name}: {state.ending_message}{advice}")
    error.results = asdict(result)
    raise error


def store(run: LaunchedRun, config: Config, data: Data) -> LaunchedRun:
    """Store the record, config and package of a run on the bucket.

    Returns:
        The record, with the path and the hash of the package.

    Raises:
        BadInput: The run exists with another config, or its state is missing.
    """
    before, files = read_run(run.bucket, run.name), RunFiles(run)
    path, state = run.supervisor("state.json"), files.load_state()
    # The state is stored before the record. So a record without a state means that the state was
    # lost. If both are missing, the run is new.
    if before is None and state is None:
        files.prepare()
        files.save_state(RunState())
    if before is not None:
        _check_unchanged(run, before, config, data)
    if before is not None and state is None:
        raise BadInput(
            f"{path} is missing, so the cost of the run so far is unknown: restore it from a copy,"
            f" or remove {run.run_dir}/supervisor and rerun the same command, which continues from"
            " the checkpoint and counts from 0"
        )
    run = package.store(run)
    if before is not None and before.package_sha256 not in ("", run.package_sha256):
        log("the next machine uses the installed version of this package; the last one differed")
    storage.write_text(run.config_path, config_to_yaml(config, data))
    RunFiles(run).save_run()
    return run


def _check_unchanged(run: LaunchedRun, before: LaunchedRun, config: Config, data: Data) -> None:
    """Check that a run has the same model and config as at its first launch.

    Raises:
        BadInput: The model or the config differs, or another process launched the run meanwhile.
    """
    if before.run_id != run.run_id:
        raise BadInput(
            f"{run.run_dir} was launched by another process meanwhile: rerun the same command"
        )
    if before.init_from != run.init_from:
        raise BadInput(
            f"{run.run_dir} was launched with `init_from` {before.init_from or '(none)'}, not"
            f" {run.init_from or '(none)'}: use the same model, or choose another `name`"
        )
    different = {}
    if storage.exists(run.config_path):
        different = list_changes(read_config(run.config_path), (config, data))
    if changed := [f"{key}: {old} -> {new}" for key, (old, new) in different.items()]:
        raise BadInput(
            f"{run.run_dir} was launched with another config ({'; '.join(changed[:5])}): use the"
            " same config, or choose another `name`"
        )
