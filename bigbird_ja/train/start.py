"""Start of a run, with all checks before anything is written."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bigbird_ja.data import check
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput, CommandError, Interrupted
from bigbird_ja.huggingface import hub, state_dict
from bigbird_ja.huggingface.run_settings import adopt_settings, make_attention_notice
from bigbird_ja.model.flops import check_length
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.process import console
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.provenance import Layer, Override, echo_settings
from bigbird_ja.settings.resolve import (
    ConfigSource,
    base_layers,
    fit_to_data,
    given_layers,
    refuse_settings,
    resolve_config,
)
from bigbird_ja.settings.schema import EVALUATION_KEYS, Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import list_used_settings
from bigbird_ja.storage import outputs
from bigbird_ja.train import hosts
from bigbird_ja.train.engines.choose import ENGINES, choose
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.job import Dependencies, Job, PretrainResult
from bigbird_ja.train.notices import make_cpu_warning
from bigbird_ja.train.profile import read_profile_steps

MODES = ("train", "train_and_eval")


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Arguments of `pretrain` that describe the run."""

    data_dir: str
    model_dir: str
    config: ConfigSource | None
    overrides: Mapping[str, Any] | None
    # Values of the arguments that set one setting each, by the setting's key. The value is None if
    # the argument is not given.
    arguments: Mapping[str, Any]
    engine: str
    use_tpu: bool
    pod_wait_seconds: int
    init_from: str | None
    mode: str
    overwrite: bool
    profile_steps: str | None
    wandb: bool


def pretrain(
    *,
    data_dir: str | os.PathLike[str],
    model_dir: str | os.PathLike[str],
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    num_train_steps: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    engine: str = "auto",
    use_tpu: bool = False,
    tpu_name: str | None = None,
    pod_wait_seconds: int = 300,
    init_from: str | os.PathLike[str] | None = None,
    mode: str = "train",
    max_train_minutes: float | None = None,
    overwrite: bool = False,
    profile_steps: str | None = None,
    wandb: bool = False,
    deps: Dependencies | None = None,
) -> PretrainResult:
    """Train or resume a run.

    A second call with the same arguments continues from the last checkpoint. In the main thread,
    Ctrl-C (a notebook's interrupt), SIGTERM and SIGHUP save and stop. The previous handlers are
    restored when the call ends.

    Args:
        data_dir: data set made by `make_data`, on disk or gs://.
        model_dir: folder of the run, on disk or gs://.
        config: name of a preset, a YAML file or a `Config`. None means the settings of the run in
            `model_dir`, or the defaults for a new run.
        overrides: values of settings by key, such as `{"training.seed": 7}`.
        num_train_steps: length of the run, in steps.
        learning_rate: peak learning rate.
        batch_size: sequences in a step, over all devices.
        engine: "estimator" (TPUEstimator), "pjrt" (JAX's runtime), or "auto".
        use_tpu: whether to train on a TPU instead of CPU or GPU.
        tpu_name: name of the TPU for the engine "estimator".
        pod_wait_seconds: maximum wait at the start for the other processes of a pod.
        init_from: initial weights: a Hugging Face folder or its name on the Hub, a MODEL_DIR, or
            Google's BigBird TensorFlow checkpoint.
        mode: "train", or "train_and_eval" to evaluate on held-out records, too.
        max_train_minutes: time after which the run is saved and stopped, or None for no limit.
        overwrite: whether an existing run is moved to MODEL_DIR.replaced-N.
        profile_steps: steps to profile, such as "100-110".
        wandb: whether to log to Weights & Biases, too.
        deps: log, clocks and timers, or None for the defaults.

    Returns:
        The totals of the finished run.

    Raises:
        BadInput: The run is refused before anything is written.
        Interrupted: The run was saved and stopped. The same call continues it.
        Diverged, OutOfMemory, StorageError, Stalled: See `bigbird_ja.errors`.
    """
    for name, value, choices in (("engine", engine, ENGINES), ("mode", mode, MODES)):
        if value not in choices:
            raise BadInput(f"`{name}` {value}: use one of {', '.join(choices)}")
    deps = deps or Dependencies()
    request = _Request(
        data_dir=os.fspath(data_dir),
        model_dir=os.fspath(model_dir),
        config=config,
        overrides=overrides,
        arguments={
            "training.num_train_steps": num_train_steps,
            "training.learning_rate": learning_rate,
            "training.global_batch_size": batch_size,
            "tpu.name": tpu_name,
        },
        engine=engine,
        use_tpu=use_tpu,
        pod_wait_seconds=pod_wait_seconds,
        init_from=None if init_from is None else os.fspath(init_from),
        mode=mode,
        overwrite=overwrite,
        profile_steps=profile_steps,
        wandb=wandb,
    )
    is_main = threading.current_thread() is threading.main_thread()
    stop = StopRequest(deps.log, lambda message: exit_process(Interrupted(message)))
    interrupt = stop.interrupt if is_main else lambda error: deps.log(str(error))
    exit_process = ProcessExit(deps.leave or interrupt)
    with (
        console.outlive_reader(lambda: stop.ask("the reader of the log has gone")),
        contextlib.ExitStack() as at_end,
    ):
        if is_main:
            at_end.enter_context(stop)
        else:
            deps.log("training is not in the main thread, so an interrupt saves no checkpoint")
            at_end.callback(stop.confirm)
        if max_train_minutes is not None:
            limit = f"`max_train_minutes` {max_train_minutes:g}"
            # The machine does not stop at this limit, so the request is not urgent. The current
            # step may finish, even if it takes long.
            timer = deps.timer(max_train_minutes * 60, lambda: stop.ask(limit, is_urgent=False))
            timer.start()
            at_end.callback(timer.cancel)
        try:
            return _prepare_and_train(request, deps, stop, exit_process)
        except (KeyboardInterrupt, CommandError) as error:
            if exit_process.error is None:
                raise
            raise exit_process.error from error


def _prepare_and_train(
    request: _Request, deps: Dependencies, stop: StopRequest, exit_process: ProcessExit
) -> PretrainResult:
    if request.init_from:
        folder = hub.fetch_model(request.init_from, "`init_from`", weights=True)
        request = replace(request, init_from=folder)
    if request.overwrite:  # MODEL_DIR will be renamed, so the data set must not be inside it.
        outputs.refuse_overlap({"`data_dir`": request.data_dir}, request.model_dir, "`model_dir`")
    model_dir = ModelDir(request.model_dir, request.overwrite, log=deps.log, clock=deps.clock)
    config, overrides, manifest, notices = _load_settings(request, model_dir)
    model_dir.check_settings(config, manifest, [o.key for o in overrides if o.is_explicit])
    profiled = range(0)
    if request.profile_steps is not None:
        profiled = read_profile_steps(request.profile_steps, config.training.num_train_steps)
    shared = ("mode", "engine", "use_tpu", "init_from", "overwrite", "model_dir")
    with hosts.join_pod(
        engine=request.engine,
        use_tpu=request.use_tpu,
        wait_seconds=request.pod_wait_seconds,
        shared={f"`{name}`": str(getattr(request, name)) for name in shared},
        config=config,
        manifest=manifest,
        stop=stop,
        exit_process=exit_process,
        log=deps.log,
    ) as pod:
        engine = choose(request.engine, request.use_tpu, config, pod.count)
        if engine.name == "pjrt":
            _refuse_cores(overrides)
        from bigbird_ja.train.train import train  # The import takes seconds, so it is after checks.

        for notice in (*notices, str(engine)):
            deps.log(notice)
        if warning := make_cpu_warning(config, manifest, engine):
            console.warn([warning])
        job = Job(
            config=config,
            manifest=manifest,
            data_dir=request.data_dir,
            engine=engine,
            pod=pod,
            init_from=request.init_from,
            evaluates=request.mode == "train_and_eval",
            wandb=request.wandb and pod.is_writer,
            profiled=profiled,
            deps=deps,
        )
        result = train(job, model_dir, stop, exit_process)
        # A failure to display the summary must not change the outcome of the run.
        with contextlib.suppress(Exception):
            deps.summarize(manifest)
        return result


def _load_settings(
    request: _Request, model_dir: ModelDir
) -> tuple[Config, list[Override], Manifest, list[str]]:
    """Load the data set's manifest, and resolve the settings.

    Returns:
        The config, adapted to the data set; the values of settings with their sources (of two
        values of a setting, the later one has priority); the manifest; and notices, which the
        caller logs after all checks.
    """
    data_dir, init_from = request.data_dir, request.init_from
    manifest = check.check_files(data_dir)
    if request.mode == "train_and_eval":
        check.check_held_out(manifest, data_dir)
    so_far = model_dir.settings[0] if model_dir.settings else None
    settings_of_run = model_dir.join("config.yaml") if so_far and request.config is None else None
    adopted: list[Layer] = []
    if so_far is None:
        if init_from:
            adopted = adopt_settings(init_from, manifest, data_dir)
    elif settings_of_run or (init_from and state_dict.has_weights(init_from)):
        # Without `config`, a resumed run keeps all of its settings. With `config`, it keeps only
        # those of `model`, which it adopted from `init_from`.
        kept = "" if settings_of_run else "model."
        values = {key: value for key, value in flatten(so_far).items() if key.startswith(kept)}
        adopted = [Layer(settings_of_run or "the run", values, is_complete=not kept)]
    config, overrides = _resolve(request, adopted)
    config = fit_to_data(config, manifest, overrides, data_dir)
    check_length(config, manifest.seq_length)
    echo = echo_settings(
        config, overrides, list_used_settings("pretrain"), settings_of_run, manifest
    )
    notices = [f"settings:\n{echo}"]
    if settings_of_run:
        own = f"no `config`: the run in {model_dir.path} continues with its own settings"
        notices.insert(0, own)
    if init_from and so_far is None:
        notices += filter(None, [make_attention_notice(init_from, config, manifest)])
    warnings = list_config_warnings(config, not init_from, overrides, manifest)
    notices += [f"warning: {warning}" for warning in warnings]
    return config, overrides, manifest, notices


def _resolve(request: _Request, adopted: Iterable[Layer]) -> tuple[Config, list[Override]]:
    """Return the config of a run, and the values of settings from all sources.

    If several sources contain a setting, the last value in the list has priority.

    Args:
        request: arguments of `pretrain`.
        adopted: settings of the run in MODEL_DIR, or of the model that `init_from` names.
    """
    layers = [
        *base_layers(request.config),
        *adopted,
        *given_layers(request.overrides, request.arguments),
    ]
    config, overrides = resolve_config(layers, list_used_settings("pretrain"))
    if request.mode != "train_and_eval":
        refuse_settings(overrides, EVALUATION_KEYS, "`mode` train_and_eval")
    if not request.use_tpu:
        refuse_settings(overrides, ["tpu.name"], "`use_tpu`")
    return config, overrides


def _refuse_cores(overrides: list[Override]) -> None:
    """Refuse `tpu.num_cores` if the user sets it for JAX's runtime.

    A preset or a complete config may contain the setting, as other commands use it.
    """
    for override in overrides:
        if override.key == "tpu.num_cores" and not (override.is_of_preset or override.is_complete):
            raise BadInput(
                f"tpu.num_cores ({override.source}) has no effect under `engine` pjrt, which trains"
                " on all devices that it finds: leave it out"
            )
