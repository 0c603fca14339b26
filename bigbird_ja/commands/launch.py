"""rent a spot TPU VM, train on it, recreate it after preemption, delete it at the end

  bigbird-ja launch --name base-1 --config configs/base-4096.yaml --project MY-PROJECT \\
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 300

Reads the config and the data set's manifest. Writes BUCKET/NAME/model (checkpoints, metrics,
events: see `pretrain`) and BUCKET/NAME/supervisor. Stays in the foreground until the run is
finished, which takes days: keep it in tmux, or on a small VM. If it dies, run the same command
again: it adopts what is there. --dry_run needs no credentials, no project and no data, and takes a
second.
docs/cloud-setup.md leads from an empty project to here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from absl import flags

if TYPE_CHECKING:
    from bigbird_ja.cloud.launch import Options, Prepared
    from bigbird_ja.cloud.run_state import RunState

EXAMPLE = "bigbird-ja launch --config configs/base-4096.yaml --dry_run"


def define_flags(values: flags.FlagValues) -> None:
    """The command's own flags."""
    _define_what(values)
    _define_limits(values)
    _define_machine(values)


def _define_what(values: flags.FlagValues) -> None:
    flags.DEFINE_string("name", None, "Name of run, TPU and folder.", flag_values=values)
    flags.DEFINE_string("project", None, "Id of the Google Cloud project.", flag_values=values)
    flags.DEFINE_list(
        "zones", [], "Zones to try in this order (none: those known for the type).",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("accelerator_type", "v3-8", "v2-8, v3-8 or v4-8.", flag_values=values)
    flags.DEFINE_string("bucket", None, "gs://BUCKET[/FOLDER] for everything.", flag_values=values)
    flags.DEFINE_string("data_dir", None, "Data set of `make-data`, on gs://.", flag_values=values)
    flags.DEFINE_integer(
        "num_train_steps", None, "Steps in all; sets training.num_train_steps.",
        lower_bound=1, flag_values=values,
    )  # fmt: skip
    flags.DEFINE_enum(
        "pricing", "spot", ["spot", "preemptible", "on_demand"],
        "preemptible is spot's older form, ended after 24 hours at the latest.", flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "queued", False, "Asks through a queued resource, which waits for capacity in line.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Prints all requests and the cost plan; does nothing.",
        flag_values=values,
    )
    flags.DEFINE_bool("force", False, "Rents what is known not to work.", flag_values=values)


def _define_limits(values: flags.FlagValues) -> None:
    flags.DEFINE_float(
        "max_hours", None, "Ends the run after so many hours since its start (none: no limit).",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "max_cost", None, "Ends the run at so many US dollars of TPU (none: no limit).",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "stall_minutes",
        15.0,
        "READY so long without a new step is deleted.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "startup_minutes", 45.0, "The same until the first step of a TPU.", flag_values=values
    )
    flags.DEFINE_float(
        "poll_seconds", 30.0, "Seconds between two looks.", lower_bound=0.05, flag_values=values
    )
    flags.DEFINE_enum(
        "on_interrupt", "ask", ["ask", "delete", "detach"],
        "At Ctrl-C: asks on a terminal, and deletes where there is none.", flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("prices", None, "YAML file over the table of prices.", flag_values=values)


def _define_machine(values: flags.FlagValues) -> None:
    string = [
        ("runtime_version", None, "Image of the TPU VM (none: chosen for the type)."),
        ("service_account", None, "Account of the VM (none: the project's default)."),
        ("network", None, "VPC network."),
        ("subnetwork", None, "VPC subnetwork."),
        ("vm_python", "python3", "Python on the VM that has TensorFlow."),
        ("vm_api", "https://tpu.googleapis.com/v2", "Where the VM asks for its own deletion."),
        ("vm_metadata", "http://metadata.google.internal", "The VM's metadata server."),
    ]
    for name, default, text in string:
        flags.DEFINE_string(name, default, text, flag_values=values)
    flags.DEFINE_bool("external_ip", True, "Gives the VM an external address.", flag_values=values)
    flags.DEFINE_bool(
        "update_package",
        False,
        "An existing run gets this installed code.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "vm_device",
        "tpu",
        ["tpu", "cpu"],
        "What the VM trains on.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "vm_service_manager", "systemd", ["systemd", "none"],
        "Who runs training on the VM; none: the start-up script itself.", flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "vm_install", True, "The VM installs what the package needs beside TensorFlow.",
        flag_values=values,
    )  # fmt: skip
    for name, seconds, text in (
        ("vm_poll_seconds", 60, "Between two looks of the dead man's switch."),
        ("vm_ended_seconds", 1200, "Training has ended so long: the VM deletes itself."),
        ("vm_stalled_seconds", 5400, "No heartbeat for so long: the VM deletes itself."),
    ):
        flags.DEFINE_integer(name, seconds, text, lower_bound=1, flag_values=values)


def options_of(args: flags.FlagValues) -> Options:
    """The flags as `cloud.launch` takes them."""
    import dataclasses

    from bigbird_ja.cloud.launch import Options

    return Options(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Options)})


def run(args: flags.FlagValues) -> dict[str, Any]:
    """Launches, watches, ends."""
    from bigbird_ja import config as config_lib
    from bigbird_ja.cloud import launch, prices, tpu
    from bigbird_ja.console import log

    config, overrides = config_lib.resolve(
        args.config, args.set, {"training.num_train_steps": args.num_train_steps}
    )
    prepared = launch.prepare(options_of(args), config, needs_all=not args.dry_run)
    for warning in prepared.warnings:
        log(f"warning: {warning}")
    if args.dry_run:
        return _dry_run(args, prepared)
    log(f"settings that are not defaults:\n{config_lib.echo(config, overrides)}")
    launch.check_data(prepared, overrides)
    for warning in launch.region_warnings(prepared, prices.load(args.prices)):
        log(f"warning: {warning}")
    tpus = tpu.connect(prepared.project)
    return _supervise(args, prepared, tpus)


def _dry_run(args: flags.FlagValues, prepared: Prepared) -> dict[str, Any]:
    import datetime
    import json

    from bigbird_ja.cloud import launch, prices
    from bigbird_ja.cloud.cost import Overheads

    table = prices.load(args.prices)
    overheads = Overheads(checkpoint_interval=prepared.config.checkpoints.save_every_minutes * 60)
    requests = launch.planned_requests(prepared)
    cost = launch.cost_plan(prepared, table, overheads)
    if not args.json:
        for request in requests:
            print(f"{request['method']}  ({request.get('when', 'first')})")
            print(_indented(request["request"]))
        print("\ncost plan:")
        print(json.dumps(cost, indent=2, ensure_ascii=False))
        print(table.describe_age(datetime.date.today()))
    return {"requests": requests, "cost": cost, "warnings": list(prepared.warnings)}


def _indented(body: dict[str, Any]) -> str:
    """JSON, with a start-up script in its own lines, readable."""
    import json

    text = json.dumps(body, indent=2, ensure_ascii=False)
    return "    " + text.replace("\\n", "\n").replace('\\"', '"').replace("\n", "\n    ")


def _supervise(args: flags.FlagValues, prepared: Prepared, tpus: Any) -> dict[str, Any]:
    import time

    from bigbird_ja.cloud import launch
    from bigbird_ja.cloud.interrupts import Interrupts
    from bigbird_ja.cloud.loop import Detached, Effects, SystemClock, supervise
    from bigbird_ja.cloud.run_files import BucketFiles, supervisor_lease
    from bigbird_ja.console import log
    from bigbird_ja.errors import BadInput
    from bigbird_ja.lease import LeaseLost

    files = BucketFiles(prepared.paths)
    files.prepare()
    lease = supervisor_lease(prepared.paths, log)
    lease.acquire()
    try:
        wheel_path, digest = launch.record(prepared)
        with Interrupts(args.on_interrupt, sys.stdin.isatty(), say=log) as interrupts:
            effects = Effects(
                tpus, files, SystemClock(), interrupts.sleep, lease.renew, interrupts.stop,
                lambda text: log(f"{time.strftime('%F %T')} {prepared.paths.name}: {text}"),
                launch.metadata_source(prepared, wheel_path, digest),
            )  # fmt: skip
            state = supervise(prepared.spec, prepared.settings, effects)
    except Detached:
        log("detached: run the same command to watch again; `bigbird-ja down` deletes the TPU")
        return {"name": prepared.paths.name, "state": "detached"}
    except LeaseLost as error:
        raise BadInput("another `launch` took this run over: this one stops") from error
    finally:
        lease.release()
    return _result(prepared, state)


def _result(prepared: Prepared, state: RunState) -> dict[str, Any]:
    from bigbird_ja.cloud.ending import error_of, results_of
    from bigbird_ja.cloud.run_state import Ending

    results = results_of(state, prepared.paths.model_dir)
    if state.ending is not Ending.FINISHED or state.ending_reason != "finished":
        raise error_of(state, results)
    print(
        f"{state.ending_message}: {state.preemptions} preemptions, {state.failures} failures,"
        f" {state.billed_seconds / 3600:.2f} TPU hours, {state.cost_usd:.2f} US dollars"
    )
    print(f"model: {prepared.paths.model_dir}")
    return results
