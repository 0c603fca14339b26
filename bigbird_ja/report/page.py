"""One self-contained HTML page about runs, from their logs."""

import datetime
import html
import importlib.resources
import os
import string
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.errors import check_is_list
from bigbird_ja.process.console import format_time
from bigbird_ja.report.charts import NUM_COLORS, Series, draw_bar_chart, draw_line_chart
from bigbird_ja.report.run_logs import RunLogs, name_apart
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import OPTIONS, list_used_settings
from bigbird_ja.storage import outputs


@dataclass(frozen=True)
class ReportedRun:
    """Run that a report shows."""

    model_dir: str
    step: int
    cost_usd: float | None  # Cost in US dollars that the supervisor of `launch` recorded.


@dataclass(frozen=True)
class ReportResult:
    """Path of a written report, and the runs in it."""

    output: str
    runs: list[ReportedRun]


def report(
    *, model_dirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] = "report.html"
) -> ReportResult:
    """Write one self-contained HTML page about one or more runs.

    Args:
        model_dirs: folders of runs, on disk or gs://. Their order determines their colors.
        output: path of the HTML file, on disk or gs://.

    Raises:
        BadInput: A folder contains no run, or the file cannot be written.
    """
    output = os.fspath(output)
    outputs.check_output_file(output, "`output`")
    now = time.time()
    check_is_list("model_dirs", model_dirs)
    runs = [RunLogs(os.fspath(model_dir), now) for model_dir in model_dirs]
    name_apart(runs)
    outputs.write(output, format_page(runs, now).encode())
    return ReportResult(output, [ReportedRun(r.model_dir, r.step, r.cost_usd) for r in runs])


def format_page(runs: Sequence[RunLogs], now: float) -> str:
    """Format the page as HTML.

    Args:
        runs: runs to show. Their order determines their colors.
        now: time of writing, UNIX seconds.
    """
    template = importlib.resources.files("bigbird_ja.report").joinpath("template.html")
    written = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    parts: dict[str, list[str]] = {
        "cards": [_format_card(run, index) for index, run in enumerate(runs)],
        "training": _draw_training(runs),
        "evaluation": _draw_evaluations(runs),
        "examples": [_format_examples(run) for run in runs],
        "facts": [
            _format_table("Settings that are not defaults", runs, _list_changed_settings),
            _format_table("Environment", runs, _get_environment),
        ],
    }
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        {name: "\n".join(part) for name, part in parts.items()},
        names=_escape(", ".join(run.name for run in runs)),
        written=f"{written:%Y-%m-%d %H:%M:%S} UTC",
        version=__version__,
    )


def _escape(value: Any) -> str:
    return html.escape(str(value))


def _format_card(run: RunLogs, index: int) -> str:
    """Return the card with a run's main figures."""

    def format_number(value: Any, form: str) -> str:
        return "-" if value is None else format(value, form)

    last: Mapping[str, Any] = run.metrics[-1] if run.metrics else {}
    total = run.total_steps
    seconds = run.eta_seconds if run.is_running else run.train_seconds
    facts = {
        "step": f"{run.step:,}" + (f" / {total:,}" if total else ""),
        "loss": format_number(last.get("loss"), ".4f"),
        "masked-LM accuracy": format_number(last.get("masked_lm_accuracy"), ".2%"),
        "tokens per second": format_number(last.get("tokens_per_second"), ",.0f"),
        "ETA" if run.is_running else "trained for": "-"
        if seconds is None
        else format_time(seconds),
        "interruptions": f"{run.interruptions:,}",
        "preemptions": f"{run.count('preempted'):,}",
    }
    if run.cost_usd is not None:
        facts["cost so far"] = f"${run.cost_usd:,.2f}"
    if run.evaluations:
        facts["held-out loss"] = format_number(run.newest_evaluation["masked_lm_loss"], ".4f")
    cells = "".join(f"<div><span>{k}</span><b>{_escape(v)}</b></div>" for k, v in facts.items())
    kind, state = _find_state(run)
    share = min(1.0, run.step / total) if total else 0.0
    return (
        f'<div class="card"><strong>{_escape(run.name)}</strong>'
        f'<span class="state {kind}">{_escape(state)}</span>'
        f'<div class="bar-track"><i class="b{index % NUM_COLORS}" style="width:{share:.1%}"></i>'
        f'</div><div class="facts">{cells}</div></div>'
    )


def _find_state(run: RunLogs) -> tuple[str, str]:
    """Return the state of a run, as a CSS class and as text."""
    state = run.heartbeat["state"] if run.heartbeat else "no heartbeat"
    if run.is_running:
        return "run", state
    if run.heartbeat and state == "stopped":
        reason = run.heartbeat.get("reason")
        return ("good" if reason == "finished" else "bad"), str(reason or state)
    return "bad", f"silent (was {state})"


def _draw_training(runs: Sequence[RunLogs]) -> list[str]:
    """Return the charts of loss, accuracy, learning rate and speed over the step."""

    def draw_chart(title: str, key: str, held_out: str = "", is_share: bool = False) -> str:
        lines = []
        for index, run in enumerate(runs):
            name = f"{run.name}, held out"
            lines += [
                Series(run.name, _list_points(run.metrics, key), index),
                Series(name, _list_points(run.evaluations, held_out), index, is_dots=True),
            ]
        return draw_line_chart(title, lines, is_share)

    return [
        draw_chart("Loss", "loss", "masked_lm_loss"),
        draw_chart("Masked-LM accuracy", "masked_lm_accuracy", "masked_lm_accuracy", is_share=True),
        draw_chart("Learning rate", "learning_rate"),
        draw_chart("Tokens per second", "tokens_per_second"),
    ]


def _list_points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """List (step, value) pairs of a quantity, without missing values."""
    return [(float(line["step"]), line[key]) for line in lines if line.get(key) is not None]


def _draw_evaluations(runs: Sequence[RunLogs]) -> list[str]:
    """Return the charts of each run's newest evaluation, or a note if there is none."""
    charts = []
    for title, key in (
        ("Accuracy by position in the sequence", "by_position"),
        ("Accuracy by distance to the nearest visible same token", "by_distance"),
    ):
        tables = {
            run.name: {
                "none" if row["from"] is None else f"{row['from']}+": row["accuracy"]
                for row in (run.newest_evaluation.get(key) or [])
            }
            for run in runs
        }
        if any(tables.values()):
            charts.append(draw_bar_chart(title, tables))
    return charts or ['<p class="none">not evaluated yet</p>']


def _format_examples(run: RunLogs) -> str:
    """Format a table of masked sentences with the model's newest guesses."""
    shown = [evaluation for evaluation in run.evaluations if evaluation.get("examples")]
    if not shown:
        return ""
    rows = ["<tr><th>before</th><th>truth</th><th>guess</th><th>after</th></tr>"]
    for e in shown[-1]["examples"]:
        # A guess also counts as right if it is only the beginning of the masked token.
        is_right = e["guess"] and e["truth"].startswith(e["guess"])
        verdict = "right" if is_right else "wrong"
        rows.append(
            f"<tr><td>{_escape(e['before'])}</td><td><b>{_escape(e['truth'])}</b></td>"
            f'<td class="{verdict}"><b>{_escape(e["guess"])}</b> {e["probability"]:.0%}</td>'
            f"<td>{_escape(e['after'])}</td></tr>"
        )
    # Without the attribute `lang`, a browser may draw kanji in their Chinese forms.
    title = f"Filled masks, {_escape(run.name)}, step {shown[-1]['step']:,}"
    table = f'<table lang="ja">{"".join(rows)}</table>'
    return f'<div class="card wide"><figcaption>{title}</figcaption>{table}</div>'


def _format_table(
    title: str, runs: Sequence[RunLogs], get: Callable[[RunLogs], Mapping[str, Any]]
) -> str:
    """Format a table with a row per key and a column per run.

    A row is bold if its values differ.
    """
    columns = [get(run) for run in runs]
    head = "".join(f"<th>{_escape(run.name)}</th>" for run in runs)
    rows = [f"<tr><th></th>{head}</tr>"]
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [_escape(column.get(key, "-")) for column in columns]
        differs = ' class="differs"' if len(set(values)) > 1 else ""
        cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(f"<tr{differs}><th>{_escape(key)}</th>{cells}</tr>")
    table = f"<table>{''.join(rows)}</table>"
    return f'<div class="card"><figcaption>{title}</figcaption>{table}</div>'


def _get_environment(run: RunLogs) -> dict[str, Any]:
    """Return the machine and package versions that the run's newest start has logged."""
    starts = [e for e in run.events if e["event"] in ("started", "resumed")]
    last: Mapping[str, Any] = starts[-1] if starts else {}
    left_out = ("event", "time", "global_step", "interruptions", "pid", "environment")
    return {
        **{key: value for key, value in last.items() if key not in left_out},
        **(last.get("environment") or {}),
    }


def _list_changed_settings(run: RunLogs) -> dict[str, Any]:
    """Return the settings of `pretrain` that differ from the defaults."""
    values = flatten(*run.settings) if run.settings else {}
    return {
        key: values[key]
        for key in list_used_settings("pretrain")
        if key in values and values[key] != OPTIONS[key].default
    }
