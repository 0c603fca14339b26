r"""Train or resume, on CPU, GPU or TPU.

  bigbird-ja pretrain --config base-4096 --use_tpu \
    --data_dir gs://BUCKET/data --model_dir gs://BUCKET/run

Reads DATA_DIR (manifest.json, tokenizer.model, shards). Writes MODEL_DIR: checkpoints, config.yaml,
tokenizer.model, metrics.jsonl, eval.jsonl, heartbeat.json, events.jsonl, TensorBoard event files.
Running the same command again continues where the last checkpoint was saved, also without --config,
and then with what --set changes of `training`; on finished work it says so. SIGTERM, SIGHUP,
Ctrl-C, --max_train_minutes and a standard error that closes save first (status 75). The tiny preset
takes minutes on two CPU cores, the base one 7.0 hours on a v5e-8: `bigbird-ja plan` says how long
and how much.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process import streams
from bigbird_ja.process.console import human_time
from bigbird_ja.process.errors import BadInput, Interrupted
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Override, echo_settings
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config, used_by
from bigbird_ja.settings.values import flatten

if TYPE_CHECKING:
    from bigbird_ja.data.check import DataGuard
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.train.engines.choose import Choice
    from bigbird_ja.train.exit import ProcessExit
    from bigbird_ja.train.job import Dependencies
    from bigbird_ja.train.run_dir import RunDir

EXAMPLE = "bigbird-ja pretrain --config tiny-cpu --data_dir out/data --model_dir out/model"
NEEDS = ("tensorflow",)  # an engine's own: train/engines names them by the device
SETTINGS = used_by("pretrain")
_CORE_FLOPS = 50e9  # a second, of one core of a CPU: few reach as much with float32
_LONG_DAYS = 30  # on a CPU, from which a run is warned of
# Tokens until small models of real text left the plateau of frequencies (docs/lab/recipe.md): with
# learned positions and normal first values, and otherwise.
_PLATEAU = (4_000_000, 600_000)
_MOST_PROFILED = 1000  # steps: a TPU's profile has some megabytes for each
_SMALL = 256  # the largest hidden size that `plateau` speaks of


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("data_dir", "Data set made by `make-data`, on disk or gs://.", required=True)
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.setting("training.num_train_steps")
    flags.setting("training.learning_rate")
    flags.setting("training.global_batch_size", "batch_size")
    flags.choice(
        "engine",
        ("auto", "estimator", "pjrt"),
        "What runs the step: TPUEstimator (TensorFlow 2.15; CPU, TPU v2 and v3), or JAX's runtime"
        " (CPU, GPU, any TPU). auto takes TPUEstimator on a TPU v2 or v3 with TensorFlow 2.15, else"
        " JAX's runtime. It says which and why.",
    )
    flags.switch("use_tpu", "Trains on a TPU; else on CPU or GPU.")
    flags.setting("tpu.name", "tpu_name", needs="use_tpu")
    wait = "How long processes that train together wait for each other at the start (docs/pods.md)."
    flags.integer("pod_wait_seconds", 300, wait, low=1, high=86_400)
    flags.path(
        "init_from",
        "Parameters to start from: a Hugging Face folder or its name on the Hub, a MODEL_DIR of"
        " ours, or Google's BigBird TensorFlow checkpoint. Not for resuming, which needs no flag.",
    )
    flags.number(
        "max_train_minutes",
        None,
        "Save and stop (status 75) this many minutes after the command started,"
        " start-up and compilation included: for a session that ends by the clock.",
        unit="minutes",
        low=0.01,
        high=1e6,
        none="until training.num_train_steps",
    )
    evaluates = "train_and_eval also evaluates every training.eval_every_steps steps."
    flags.choice("mode", ("train", "train_and_eval"), evaluates)
    moved = "Moves a run that is in MODEL_DIR aside (MODEL_DIR.replaced-N) and starts a new one."
    flags.switch("overwrite", moved)
    flags.text(
        "profile_steps",
        "FIRST-LAST, such as 100-110: steps to profile, for TensorBoard's profile plug-in and"
        " xprof, into MODEL_DIR/plugins/profile.",
    )
    flags.switch("wandb", "Also logs to Weights & Biases, if it is installed.")


def run(args: Args, deps: Dependencies | None = None) -> dict[str, Any]:
    """Train or resume; tests give dependencies that stop the process at chosen instants."""
    from bigbird_ja.train.exit import ProcessExit
    from bigbird_ja.train.job import Dependencies

    deps, exit_process = deps or Dependencies(), ProcessExit()
    with (
        StopRequest(deps.log, lambda message: exit_process(Interrupted(message))) as stop,
        streams.guard_stderr(lambda: stop.ask("the reader of the log has gone")),
        contextlib.ExitStack() as at_end,
    ):
        if args.max_train_minutes is not None:
            limit = f"--max_train_minutes {args.max_train_minutes:g}"
            # Not urgent: the machine stays, so a long step may end first.
            timer = deps.timer(
                args.max_train_minutes * 60, lambda: stop.ask(limit, is_urgent=False)
            )
            timer.start()
            at_end.callback(timer.cancel)
        return _prepare_and_train(args, deps, stop, exit_process)


def _prepare_and_train(
    args: Args, deps: Dependencies, stop: StopRequest, exit_process: ProcessExit
) -> dict[str, Any]:
    """Prepare MODEL_DIR, settings, data set, the pod and the engine, and train."""
    from bigbird_ja.storage import hub, outputs
    from bigbird_ja.train import hosts
    from bigbird_ja.train.engines.choose import choose
    from bigbird_ja.train.job import Job
    from bigbird_ja.train.run_dir import RunDir

    if args.init_from:
        args["init_from"].value = hub.fetched(args.init_from, "--init_from", weights=True)
    if args.overwrite:  # the run in MODEL_DIR moves away
        outputs.refuse_overlap({"--data_dir": args.data_dir}, {"--model_dir": args.model_dir})
    run_dir = RunDir(args.model_dir, args.overwrite)
    config, overrides, manifest, guard, notices = _settings(args, run_dir, deps.log)
    run_dir.check_settings(config, manifest, [o.key for o in overrides if o.is_explicit])
    profiled = range(0)
    if args.profile_steps is not None:
        profiled = read_profile_steps(args.profile_steps, config.training.num_train_steps)
    with hosts.joined(args, config, manifest, stop, exit_process, deps.log) as pod:
        engine = choose(args.engine, args.use_tpu, config, pod.count)
        if engine.name == "pjrt":
            _refuse_cores(overrides)
        from bigbird_ja.train.train import train  # after refusals, as this takes seconds

        for notice in (*notices, str(engine)):
            deps.log(notice)
        if warning := cpu_warning(config, manifest, engine):
            deps.log(f"warning: {warning}")
        job = Job(
            config=config,
            manifest=manifest,
            guard=guard,
            data_dir=args.data_dir,
            engine=engine,
            pod=pod,
            init_from=args.init_from,
            evaluates=args.mode == "train_and_eval",
            wandb=args.wandb and pod.is_writer,
            profiled=profiled,
            deps=deps,
        )
        return train(job, run_dir, stop, exit_process)


def _settings(
    args: Args, run_dir: RunDir, log: Callable[[str], None]
) -> tuple[Config, list[Override], Manifest, DataGuard, list[str]]:
    """Return the config, completed by the data set, what was set, in order, and the data set.

    The last are notices about these, to be logged once nothing is refused.
    """
    from bigbird_ja.data import check
    from bigbird_ja.huggingface.run_settings import adopted_settings, attention_notice
    from bigbird_ja.model import pattern

    manifest, guard = check.fast_check(args.data_dir)
    so_far = run_dir.settings[0] if run_dir.settings else None
    adopted = []
    if args.init_from:
        adopted = adopted_settings(args.init_from, so_far, manifest, args.data_dir)
    settings_of_run = None
    if args.config is None and so_far is not None:
        log(f"no --config: the run in {args.model_dir} continues with its own settings")
        settings_of_run = run_dir.join("config.yaml")
        stated = flatten(so_far).items()
        adopted = [Override(key, value, settings_of_run, True) for key, value in stated] + adopted
    config, overrides = resolve(args, adopted)
    config = fit_to_data(config, manifest, overrides, args.data_dir)
    try:
        pattern.is_full(config, manifest.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    echo = echo_settings(config, overrides, SETTINGS, settings_of_run, manifest)
    notices = [f"settings:\n{echo}"]
    if args.init_from and so_far is None:
        notices += filter(None, [attention_notice(args.init_from, config, manifest)])
    elif not args.init_from and so_far is None and (hint := plateau(config, manifest)):
        notices.append(hint)
    warnings = config_warnings(config, not args.init_from, overrides, manifest)
    notices += [f"warning: {warning}" for warning in warnings]
    return config, overrides, manifest, guard, notices


def plateau(config: Config, data: Data) -> str | None:
    """Return a notice about the unigram plateau of a small model trained from scratch, or None."""
    model, training = config.model, config.training
    if model.hidden_size > _SMALL:
        return None
    tokens = _PLATEAU[model.architecture == "modernbert" or model.initializer == "subspaces"]
    steps = tokens // (training.global_batch_size * data.seq_length)
    end = "" if steps < training.num_train_steps else "; this run ends before that"
    return (
        f"what to expect: the loss first falls to what token frequencies alone give; until about"
        f" step {steps:,} ({tokens / 1e6:g} M tokens) little more is learned{end}"
        " (docs/lab/recipe.md)"
    )


def cpu_warning(config: Config, data: Data, engine: Choice) -> str | None:
    """Word what a CPU would take for the whole run, where that is over `_LONG_DAYS`."""
    from bigbird_ja.model.flops import model_flops
    from bigbird_ja.train.engines import devices

    is_gpu = engine.devices.platform != "cpu" if engine.devices else devices.has_gpu()
    if engine.use_tpu or is_gpu:
        return None
    cores = (os.cpu_count() or 1) * engine.processes
    step = model_flops(config, data, config.training.global_batch_size)
    seconds = config.training.num_train_steps * step / (cores * _CORE_FLOPS)
    if seconds < _LONG_DAYS * 86_400:
        return None
    return (
        f"a model of this size on a CPU: about {human_time(seconds)} for"
        f" {config.training.num_train_steps:,} steps ({cores} cores of {_CORE_FLOPS / 1e9:g}"
        " GFLOP/s, assumed): `bigbird-ja plan` shows machines for it"
    )


def read_profile_steps(text: str, total: int) -> range:
    """Read the value of `--profile_steps`, such as "100-110", both steps included.

    Raises:
        BadInput: another form, or steps that the run does not have.
    """
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= total or last - first >= _MOST_PROFILED:
        raise BadInput(
            f"--profile_steps {text}: give the first and the last step, such as 100-110, from 1 to"
            f" {total} (training.num_train_steps), and {_MOST_PROFILED:,} steps at most"
        )
    return range(first, last + 1)


def _refuse_cores(overrides: list[Override]) -> None:
    """Refuse `tpu.num_cores` where the user sets it for JAX's runtime.

    In a preset, or in a file that states every setting, it is meant for other commands.
    """
    for override in overrides:
        if override.key == "tpu.num_cores" and not (override.is_of_preset or override.is_complete):
            raise BadInput(
                f"tpu.num_cores ({override.source}) has no effect under --engine pjrt, which trains"
                " on all devices that it finds: leave it out"
            )
