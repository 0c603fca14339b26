"""Write one self-contained HTML page about one or more runs.

  bigbird-ja report --model_dir out/model --output out/report.html
  bigbird-ja report --model_dir out/a --model_dir out/b --output out/both.html

Reads the logs of the runs (metrics.jsonl, eval.jsonl, events.jsonl, heartbeat.json, config.yaml).
Writes one file that needs no network: loss, accuracy, learning rate, tokens per second,
interruptions and preemptions, cost, evaluation by position and distance, filled masks, and the
settings side by side. Takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.report.page import ReportResult

EXAMPLE = "bigbird-ja report --model_dir out/model --output out/report.html"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("model_dir", "Folder of a run, on disk or gs://.", many=True, required=True)
    flags.path("output", "HTML file to write, on disk or gs://.", default="report.html")


def run(args: Args) -> ReportResult:
    """Write the page, and print its path."""
    from bigbird_ja.report.page import report

    result = report(model_dirs=args.model_dir, output=args.output)
    print(f"report: {result.output}")
    return result
