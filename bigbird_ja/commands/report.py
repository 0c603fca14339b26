"""one self-contained HTML page about one run or several

  bigbird-ja report --model_dir out/model --output out/report.html
  bigbird-ja report --model_dir out/a --model_dir out/b --output out/both.html
  bigbird-ja report --model_dir gs://BUCKET/run --output report.html --watch

Reads what runs write about themselves (metrics.jsonl, eval.jsonl, events.jsonl, heartbeat.json,
config.yaml). Writes one file that needs no network: loss, accuracy, learning rate, tokens per
second, sessions with checkpoints and preemptions on a time line, cost so far against plan,
evaluation by position and distance, masked examples, settings side by side. Takes a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.errors import BadInput

EXAMPLE = "bigbird-ja report --model_dir out/model --output out/report.html"


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path("model_dir", "Folder of a run, on disk or gs://.", many=True, required=True)
    flags.path("output", "HTML file to write, on disk or gs://.", default="report.html")
    flags.path(
        "data_dir",
        "Data set, for its density and counts: one for all runs, or one for each.", many=True,
    )  # fmt: skip
    flags.switch(
        "watch",
        "Writes the page again every --interval seconds while a run is training, and has the"
        " browser load it again; ends when all have stopped.",
    )
    flags.integer(
        "interval", 30, "Between two writes.", unit="seconds", low=1, high=86_400, needs="watch"
    )
    flags.number(
        "usd_per_hour", None, "Price of the machine, where no supervisor counts the cost.",
        unit="US dollars", low=0.0, high=1e6,
    )  # fmt: skip
    flags.number(
        "budget_usd", None, "Planned cost.", unit="US dollars", low=0.0, high=1e9,
        none="cost so far carried on to the last step",
    )  # fmt: skip


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Writes the page, once or again and again."""
    return run_with(args, time.time, time.sleep)


def run_with(
    args: absl_flags.FlagValues, clock: Callable[[], float], sleep: Callable[[float], None]
) -> dict[str, Any]:
    """`run` with clock and sleep given."""
    from bigbird_ja.report import collect
    from bigbird_ja.report.page import page
    from bigbird_ja.storage import outputs

    if len(args.data_dir) not in (0, 1, len(args.model_dir)):
        raise BadInput("--data_dir: give one for all runs, or one for each --model_dir")
    data_dirs = list(args.data_dir) or [None]
    data_dirs *= len(args.model_dir) // len(data_dirs)
    outputs.check_output_file(args.output, "--output", True, outputs.is_our_page, "report")
    written = 0
    while True:
        now = clock()
        runs = collect.distinct(
            [
                collect.collect(
                    model_dir,
                    now,
                    data_dir=data_dir,
                    usd_per_hour=args.usd_per_hour,
                    budget_usd=args.budget_usd,
                )
                for model_dir, data_dir in zip(args.model_dir, data_dirs, strict=True)
            ]
        )
        goes_on = args.watch and any(found.is_running for found in runs)
        text = page(runs, now, args.interval if goes_on else None)
        outputs.write(args.output, text.encode())
        written += 1
        if not goes_on:
            break
        sleep(args.interval)
    print(f"report: {args.output}")
    return {
        "output": args.output,
        "written": written,
        "runs": [
            {"model_dir": found.model_dir, "step": found.step, "cost_usd": found.cost_usd}
            for found in runs
        ],
    }
