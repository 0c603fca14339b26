"""list runs and TPUs

  bigbird-ja status --bucket gs://MY-BUCKET --project MY-PROJECT

Reads the runs' states, heartbeats and events from the bucket and, where a project is given, what
TPUs exist, on both services. Shows for each run its state, step, rate, ETA,
preemptions and money so far. Changes nothing; takes a second or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.launch.run_story import Story
    from bigbird_ja.launch.services import Tpu

EXAMPLE = "bigbird-ja status --bucket gs://MY-BUCKET --name base-1 --events 20"


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`.")
    flags.text("name", "One run.", none="all")
    flags.text("project", "Google Cloud project whose TPUs are listed too.")
    flags.words("zones", ["-"], "Zones to list (-: every zone).", needs="project")
    flags.integer(
        "events", 0, "Also prints so many of the last events.", low=0, high=10**6, needs="name"
    )


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Shows."""
    from bigbird_ja.launch import run_story
    from bigbird_ja.launch.backends import list_ours
    from bigbird_ja.launch.run_files import find_runs

    if not args.bucket and not args.project:
        raise BadInput("--bucket or --project is needed: see `bigbird-ja status --help`")
    if args.events and not (args.name and args.bucket):
        raise BadInput("--events needs --bucket and --name")
    tpus = list_ours(args.project, args.zones) if args.project else []
    names = []
    if args.bucket:
        names = find_runs(args.bucket)
        if args.name and args.name not in names:
            raise BadInput(
                f"no run {args.name!r} on {args.bucket}: there are {', '.join(names) or 'none'}"
            )
    if args.name:
        names = [args.name] if args.bucket else []
        tpus = [tpu for tpu in tpus if tpu.belongs_to(args.name)]
    stories = [
        run_story.read(args.bucket, name, tpus, _tokens_per_step(args.bucket, name))
        for name in names
    ]
    strays = [tpu for tpu in tpus if tpu.run not in names]
    _print(stories, strays, asked=bool(args.project))
    if args.events:
        _print_events(args)
    return {"runs": [vars(story) for story in stories], "tpus": [tpu.to_json() for tpu in tpus]}


def _tokens_per_step(bucket: str, name: str) -> int:
    from bigbird_ja.launch.run_files import Run
    from bigbird_ja.plan.rows import tokens_per_step
    from bigbird_ja.settings.resolve import complete_config, read_config

    try:
        config = read_config(Run(bucket, name).config_path)
    except BadInput:
        return 0
    return tokens_per_step(complete_config(config))


def _print(stories: list[Story], strays: list[Tpu], asked: bool) -> None:
    from bigbird_ja.process.console import human_time, table

    rows = [
        (
            s.name, s.state, f"{s.step:,}/{s.target_step:,}", f"{s.tokens_per_second:,.0f}",
            human_time(s.eta_seconds) if s.eta_seconds is not None else "-", s.preemptions,
            s.failures, f"{s.tpu_hours:.1f}", f"{s.cost_usd:.2f}",
            "; ".join(s.tpus) or ("none" if asked else "not asked (--project)"),
            s.watched_by or "nobody",
        )
        for s in stories
    ]  # fmt: skip
    header = (
        "run", "state", "step", "tokens/s", "ETA", "preempted", "failed", "TPU h", "$", "TPU",
        "watched by",
    )  # fmt: skip
    print(table(rows, header) if rows else "no runs")
    for story in stories:
        if story.message:
            print(f"{story.name}: {story.message}")
        if story.tpus and story.watched_by is None:
            print(f"{story.name}: nobody watches its TPU: run `launch` again, or `bigbird-ja down`")
    for tpu in strays:
        print(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}, of no run shown here")


def _print_events(args: absl_flags.FlagValues) -> None:
    import time

    from bigbird_ja.launch import run_story
    from bigbird_ja.launch.run_state import Event
    from bigbird_ja.launch.supervise import describe

    for event in run_story.events(args.bucket, args.name)[-args.events :]:
        when = time.strftime("%F %T", time.localtime(event["time"]))
        hidden = ("event", "time", "source", "run", "host", "pid")
        fields = {key: value for key, value in event.items() if key not in hidden}
        print(f"{when}  {describe(Event(event['event'], fields))}")
