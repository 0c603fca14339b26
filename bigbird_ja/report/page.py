"""Writes the report as one HTML page: everything inline, nothing fetched."""

import datetime
import html
import importlib.resources
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.process.console import human_time
from bigbird_ja.report.charts import NUM_COLOURS, Series, bar_chart, line_chart, timeline
from bigbird_ja.report.collect import RunLogs
from bigbird_ja.run import Example
from bigbird_ja.settings.schema import Config, used_by
from bigbird_ja.settings.values import flatten


def page(runs: Sequence[RunLogs], now: float) -> str:
    """Return the page.

    Args:
        runs: in the order of their colours.
        now: UNIX seconds, for the line that says when it was written.
    """
    template = importlib.resources.files("bigbird_ja.report").joinpath("template.html")
    written = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    parts: dict[str, list[str]] = {
        "cards": [_card(run, index) for index, run in enumerate(runs)],
        "training": _training(runs),
        "timeline": [timeline("Sessions, checkpoints and interruptions", runs)],
        "evaluation": _evaluation(runs),
        "examples": [_examples(run) for run in runs],
        "facts": [
            _table("Settings that are not defaults", runs, _changed_settings),
            _table("Environment", runs, _environment),
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


def _card(run: RunLogs, index: int) -> str:
    """Show the numbers that one looks for first."""

    def number(value: Any, form: str) -> str:
        return "-" if value is None else format(value, form)

    last: Mapping[str, Any] = run.metrics[-1] if run.metrics else {}
    total = run.total_steps
    seconds = run.eta_seconds if run.is_running else run.train_seconds
    facts = {
        "step": f"{run.step:,}" + (f" / {total:,}" if total else ""),
        "loss": number(last.get("loss"), ".4f"),
        "masked-LM accuracy": number(last.get("masked_lm_accuracy"), ".2%"),
        "tokens per second": number(last.get("tokens_per_second"), ",.0f"),
        "ETA" if run.is_running else "trained for": "-" if seconds is None else human_time(seconds),
        "interruptions": f"{run.interruptions:,}",
        "preemptions": f"{len(run.times_of('preempted')):,}",
    }
    if run.cost_usd is not None:
        facts["cost so far"] = f"${run.cost_usd:,.2f}"
    if run.evaluations:
        facts["held-out loss"] = number(run.evaluations[-1]["masked_lm_loss"], ".4f")
    cells = "".join(f"<div><span>{k}</span><b>{_escape(v)}</b></div>" for k, v in facts.items())
    kind, state = _state(run)
    share = min(1.0, run.step / total) if total else 0.0
    return (
        f'<div class="card"><strong>{_escape(run.name)}</strong>'
        f'<span class="state {kind}">{_escape(state)}</span>'
        f'<div class="bar-track"><i class="b{index % NUM_COLOURS}" style="width:{share:.1%}"></i>'
        f'</div><div class="facts">{cells}</div></div>'
    )


def _state(run: RunLogs) -> tuple[str, str]:
    """Return the state of a run: the style sheet's class, and words."""
    state = run.heartbeat["state"] if run.heartbeat else "no heartbeat"
    if run.is_running:
        return "run", state
    if run.heartbeat and state == "stopped":
        reason = run.heartbeat.get("reason")
        return ("good" if reason == "finished" else "bad"), str(reason or state)
    return "bad", f"silent (was {state})"


def _training(runs: Sequence[RunLogs]) -> list[str]:
    """Draw charts over the steps."""

    def series(key: str, held_out: str = "") -> list[Series]:
        lines = []
        for index, run in enumerate(runs):
            name = f"{run.name}, held out"
            lines += [
                Series(run.name, _points(run.metrics, key), index),
                Series(name, _points(run.evaluations, held_out), index, is_dots=True),
            ]
        return lines

    accuracy = series("masked_lm_accuracy", "masked_lm_accuracy")
    return [
        line_chart("Loss", series("loss", "masked_lm_loss")),
        line_chart("Masked-LM accuracy", accuracy, is_share=True),
        line_chart("Learning rate", series("learning_rate")),
        line_chart("Tokens per second", series("tokens_per_second")),
    ]


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return a quantity against the step, where it was measured and is a number."""
    return [(float(line["step"]), line[key]) for line in lines if line.get(key) is not None]


def _evaluation(runs: Sequence[RunLogs]) -> list[str]:
    """Draw accuracies of the newest evaluation of each run."""
    charts = []
    for title, key in (
        ("Accuracy by position in the sequence", "by_position"),
        ("Accuracy by distance to the nearest visible same token", "by_distance"),
    ):
        tables = {}
        for run in runs:
            newest: Mapping[str, Any] = run.evaluations[-1] if run.evaluations else {}
            tables[run.name] = _shares(newest.get(key) or [], "accuracy")
        if any(tables.values()):
            charts.append(bar_chart(title, tables))
    return charts or ['<p class="none">not evaluated yet</p>']


def _shares(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, float | None]:
    """Return a column by the name of its bucket."""
    return {"none" if row["from"] is None else f"{row['from']}+": row[key] for row in rows}


def _examples(run: RunLogs) -> str:
    """Show masked places of held-out text and the newest guesses."""
    shown = [evaluation for evaluation in run.evaluations if evaluation.get("examples")]
    if not shown:
        return ""
    examples: Sequence[Example] = shown[-1]["examples"]
    rows = ["<tr><th>before</th><th>truth</th><th>guess</th><th>after</th></tr>"]
    for e in examples:
        verdict = "right" if e["truth"] == e["guess"] else "wrong"
        rows.append(
            f"<tr><td>…{_escape(e['before'])}</td><td><b>{_escape(e['truth'])}</b></td>"
            f'<td class="{verdict}"><b>{_escape(e["guess"])}</b> {e["probability"]:.0%}</td>'
            f"<td>{_escape(e['after'])}…</td></tr>"
        )
    # Without `lang` a browser may draw Han characters in their Chinese forms.
    text = "".join(part for e in examples for part in (e["before"], e["truth"], e["after"]))
    lang = ' lang="ja"' if any("ぁ" <= character <= "ヿ" for character in text) else ""
    title = f"Masked examples, {_escape(run.name)}, step {shown[-1]['step']:,}"
    table = f"<table{lang}>{''.join(rows)}</table>"
    return f'<div class="card wide"><figcaption>{title}</figcaption>{table}</div>'


def _table(title: str, runs: Sequence[RunLogs], get: Callable[[RunLogs], Mapping[str, Any]]) -> str:
    """Write a row per key and a column per run; rows that differ between runs stand out."""
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


def _environment(run: RunLogs) -> dict[str, Any]:
    """Return counts, and what the newest start logged about machine and packages."""
    starts = [e for e in run.events if e["event"] in ("started", "resumed")]
    last: Mapping[str, Any] = starts[-1] if starts else {}
    left_out = ("event", "time", "global_step", "interruptions", "pid", "environment")
    return {
        "sessions": len(run.sessions),
        "checkpoints saved": len(run.times_of("saved")),
        "wall time of all sessions": human_time(run.seconds),
        **{key: value for key, value in last.items() if key not in left_out},
        **(last.get("environment") or {}),
    }


def _changed_settings(run: RunLogs) -> dict[str, Any]:
    """Return the settings that the run uses and that are not defaults.

    Those of its tokenizer and its data are in their own records.
    """
    defaults = flatten(Config())
    values = flatten(*run.settings) if run.settings else {}
    return {
        key: value
        for key, value in values.items()
        if value != defaults.get(key) and key in used_by("pretrain")
    }
