r"""Train or resume, on CPU, GPU or TPU.

  bigbird-ja pretrain --config base-4096 --use_tpu \
    --data_dir gs://BUCKET/data --model_dir gs://BUCKET/run

Reads DATA_DIR (manifest.json, tokenizer.model, shards). Writes MODEL_DIR: checkpoints, config.yaml,
tokenizer.model, metrics.jsonl, eval.jsonl, heartbeat.json, events.jsonl, TensorBoard event files.
Rerun the same command to resume from the last checkpoint; --config may be left out, and --set may
change settings of `training`. A finished run says so. SIGTERM, SIGHUP, Ctrl-C, --max_train_minutes
and a closed standard error save first and exit with status 75. The preset tiny-cpu takes minutes on
two CPU cores, base-4096 7.0 hours on a v5e-8; `bigbird-ja plan` estimates time and cost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process import streams
from bigbird_ja.process.errors import BadInput, Interrupted
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.provenance import Override, echo_settings
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config, used_by
from bigbird_ja.settings.values import flatten

if TYPE_CHECKING:
    from bigbird_ja.data.check import DataGuard
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.train.exit import ProcessExit
    from bigbird_ja.train.job import Dependencies
    from bigbird_ja.train.run_dir import RunDir

EXAMPLE = "bigbird-ja pretrain --config tiny-cpu --data_dir out/data --model_dir out/model"
NEEDS = ("tensorflow",)  # an engine's own: train/engines names them by the device
SETTINGS = used_by("pretrain")


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
        "Engine that runs the step. estimator: TPUEstimator (TensorFlow 2.15; CPU, TPU v2 and v3);"
        " pjrt: JAX's runtime (CPU, GPU, any TPU). auto: estimator on a TPU v2 or v3 with"
        " TensorFlow 2.15, else pjrt; the log states the choice and the reason.",
    )
    flags.switch("use_tpu", "Trains on a TPU instead of CPU or GPU.")
    flags.setting("tpu.name", "tpu_name", needs="use_tpu")
    wait = "Maximum wait at the start for the other processes of a pod (docs/pods.md)."
    flags.integer("pod_wait_seconds", 300, wait, unit="seconds", low=1, high=86_400)
    flags.path(
        "init_from",
        "Initial weights: a Hugging Face folder or its name on the Hub, a MODEL_DIR of bigbird-ja,"
        " or Google's BigBird TensorFlow checkpoint. Resuming needs no flag.",
    )
    flags.number(
        "max_train_minutes",
        None,
        "Saves and stops (status 75) this many minutes after the command started, start-up and"
        " compilation included.",
        unit="minutes",
        low=0.01,
        high=1e6,
        none="until training.num_train_steps",
    )
    evaluates = "Mode. train_and_eval also evaluates every training.eval_every_steps steps."
    flags.choice("mode", ("train", "train_and_eval"), evaluates)
    moved = "Moves an existing run to MODEL_DIR.replaced-N and starts a new one."
    flags.switch("overwrite", moved)
    flags.text(
        "profile_steps",
        "Steps to profile, as FIRST-LAST, such as 100-110; TensorBoard's profile plug-in and xprof"
        " show MODEL_DIR/plugins/profile.",
    )
    flags.switch("wandb", "Also logs to Weights & Biases, which must be installed.")


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
    from bigbird_ja.train.notices import cpu_warning
    from bigbird_ja.train.profile import read_profile_steps
    from bigbird_ja.train.run_dir import RunDir

    if args.init_from:
        args["init_from"].value = hub.fetched(args.init_from, "--init_from", weights=True)
    if args.overwrite:  # the run in MODEL_DIR moves away
        outputs.refuse_overlap({"--data_dir": args.data_dir}, args.model_dir, "--model_dir")
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
    from bigbird_ja.train.notices import plateau

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
