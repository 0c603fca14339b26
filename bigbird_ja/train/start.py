"""Start of a run: settings, data set, pod and engine, checked before anything is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from bigbird_ja.data import check
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput, Interrupted
from bigbird_ja.huggingface import state_dict
from bigbird_ja.huggingface.run_settings import adopted_settings, attention_notice
from bigbird_ja.model.flops import check_length
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.process import console
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.provenance import Layer, Override, echo_settings
from bigbird_ja.settings.resolve import Resolve, fit_to_data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import used_by
from bigbird_ja.storage import hub, outputs
from bigbird_ja.train import hosts
from bigbird_ja.train.engines.choose import choose
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.job import Dependencies, Job
from bigbird_ja.train.notices import cpu_warning
from bigbird_ja.train.profile import read_profile_steps


def run(args: Any, resolve: Resolve, deps: Dependencies) -> dict[str, Any]:
    """Train or resume as the flags of `pretrain` specify; return the `--json` results.

    Args:
        args: arguments of `pretrain`.
        resolve: returns the config, and the values that were set, in order.
        deps: log, clocks and timers.

    Raises:
        CommandError: See `train.train`; or the run is refused.
    """
    exit_process = ProcessExit()
    with (
        StopRequest(deps.log, lambda message: exit_process(Interrupted(message))) as stop,
        console.outlive_reader(lambda: stop.ask("the reader of the log has gone")),
        contextlib.ExitStack() as at_end,
    ):
        if args.max_train_minutes is not None:
            limit = f"`max_train_minutes` {args.max_train_minutes:g}"
            # Not urgent: the machine stays, so a long step may end first.
            timer = deps.timer(
                args.max_train_minutes * 60, lambda: stop.ask(limit, is_urgent=False)
            )
            timer.start()
            at_end.callback(timer.cancel)
        return _prepare_and_train(args, resolve, deps, stop, exit_process)


def _prepare_and_train(
    args: Any, resolve: Resolve, deps: Dependencies, stop: StopRequest, exit_process: ProcessExit
) -> dict[str, Any]:
    if args.init_from:
        args["init_from"].value = hub.fetched(args.init_from, "`init_from`", weights=True)
    if args.overwrite:  # the run in MODEL_DIR moves away
        outputs.refuse_overlap({"`data_dir`": args.data_dir}, args.model_dir, "`model_dir`")
    model_dir = ModelDir(args.model_dir, args.overwrite, log=deps.log, clock=deps.clock)
    config, overrides, manifest, notices = _settings(args, resolve, model_dir, deps.log)
    model_dir.check_settings(config, manifest, [o.key for o in overrides if o.is_explicit])
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
            data_dir=args.data_dir,
            engine=engine,
            pod=pod,
            init_from=args.init_from,
            evaluates=args.mode == "train_and_eval",
            wandb=args.wandb and pod.is_writer,
            profiled=profiled,
            deps=deps,
        )
        return train(job, model_dir, stop, exit_process)


def _settings(
    args: Any, resolve: Resolve, model_dir: ModelDir, log: Callable[[str], None]
) -> tuple[Config, list[Override], Manifest, list[str]]:
    """Return config, overrides in order, manifest, and notices.

    The config is completed by the data set. The notices are logged once nothing is refused.
    """
    manifest = check.fast_check(args.data_dir)
    if args.mode == "train_and_eval":
        check.check_held_out(manifest, args.data_dir)
    so_far = model_dir.settings[0] if model_dir.settings else None
    settings_of_run = model_dir.join("config.yaml") if so_far and args.config is None else None
    if settings_of_run:
        log(f"no `config`: the run in {args.model_dir} continues with its own settings")
    adopted = []
    if so_far is None:
        if args.init_from:
            adopted = adopted_settings(args.init_from, manifest, args.data_dir)
    elif settings_of_run or (args.init_from and state_dict.has_weights(args.init_from)):
        # With `config` the run keeps what it adopted from `init_from` when it began.
        kept = "" if settings_of_run else "model."
        source = settings_of_run or "the run"
        values = {key: value for key, value in flatten(so_far).items() if key.startswith(kept)}
        adopted = [Layer(source, values, is_complete=not kept)]
    config, overrides = resolve(adopted)
    config = fit_to_data(config, manifest, overrides, args.data_dir)
    check_length(config, manifest.seq_length)
    echo = echo_settings(config, overrides, used_by("pretrain"), settings_of_run, manifest)
    notices = [f"settings:\n{echo}"]
    if args.init_from and so_far is None:
        notices += filter(None, [attention_notice(args.init_from, config, manifest)])
    warnings = config_warnings(config, not args.init_from, overrides, manifest)
    notices += [f"warning: {warning}" for warning in warnings]
    return config, overrides, manifest, notices


def _refuse_cores(overrides: list[Override]) -> None:
    """Refuse `tpu.num_cores` if the user sets it for JAX's runtime.

    In a preset, or in a file that states every setting, it is meant for other commands.
    """
    for override in overrides:
        if override.key == "tpu.num_cores" and not (override.is_of_preset or override.is_complete):
            raise BadInput(
                f"tpu.num_cores ({override.source}) has no effect under `engine` pjrt, which trains"
                " on all devices that it finds: leave it out"
            )
