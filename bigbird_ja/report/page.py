"""The report as one HTML page: everything inline, nothing fetched."""

from __future__ import annotations

import datetime
import html
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.process.console import human_count, human_time
from bigbird_ja.report import charts
from bigbird_ja.report.charts import NUM_COLOURS, Series
from bigbird_ja.report.collect import Run, counts, timeline_marks
from bigbird_ja.run.records import Example
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten

_SMOOTHING = 20  # logged steps


def page(runs: Sequence[Run], now: float, refresh_seconds: int | None = None) -> str:
    """The page.

    Args:
        runs: in the order of their colours.
        now: UNIX seconds, for the line that says when it was written.
        refresh_seconds: the browser loads it again so often; None: never.
    """
    template = importlib.resources.files("bigbird_ja.report").joinpath("template.html")
    names = ", ".join(run.name for run in runs)
    title = f"bigbird-ja: {names}"
    refresh = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    written = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    body = [
        f"<h1>{_escape(names)}</h1>",
        f'<p class="sub">pretraining report, written {written:%Y-%m-%d %H:%M:%S} UTC'
        + (f", renewed every {refresh_seconds} s" if refresh_seconds else "")
        + "</p>",
        _grid([_card(run, index) for index, run in enumerate(runs)]),
        "<h2>Training</h2>",
        _grid(_training(runs)),
        "<h2>Time line</h2>",
        _grid([charts.timeline("Sessions, checkpoints and interruptions", _rows(runs))]),
        "<h2>Held-out text</h2>",
        _grid(_evaluation(runs)),
        *_examples(runs),
        "<h2>Data, settings, environment</h2>",
        _grid([_data_card(runs), _environment_card(runs), _config_card(runs)]),
        f"<footer>bigbird-ja {__version__}; from metrics.jsonl, eval.jsonl, events.jsonl,"
        " heartbeat.json and config.yaml of each run.</footer>",
    ]
    text = template.read_text(encoding="utf-8")
    for mark, value in (("refresh", refresh), ("title", _escape(title)), ("body", "\n".join(body))):
        text = text.replace(f"<!--{mark}-->", value)
    return text


def _escape(value: Any) -> str:
    return html.escape(str(value))


def _grid(parts: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(part for part in parts if part)}</div>'


def _card(run: Run, index: int) -> str:
    """The numbers that one looks for first."""
    last: Mapping[str, Any] = run.metrics[-1] if run.metrics else {}
    total = run.total_steps
    share = min(1.0, run.step / total) if total else 0.0
    kind, state = _state(run)
    number = counts(run)
    facts: list[tuple[str, str]] = [
        ("step", f"{run.step:,}" + (f" / {total:,}" if total else "")),
        ("loss", _format(last.get("loss"), ".4f")),
        ("masked-LM accuracy", _format(last.get("masked_lm_accuracy"), ".2%")),
        ("tokens per second", _format(last.get("tokens_per_second"), ",.0f")),
        ("ETA" if run.is_running else "trained for", _eta(run)),
        ("interrupted", _times(number["interruptions"])),
        ("preempted", _times(number["preemptions"])),
        ("cost so far", _money(run.cost_usd)),
        ("budget" if run.budget_usd is not None else "cost at the end", _money(run.planned_usd)),
    ]
    if run.evaluations:
        facts.append(("held-out loss", _format(run.evaluations[-1]["masked_lm_loss"], ".4f")))
    cells = "".join(f"<div><span>{_escape(k)}</span><b>{_escape(v)}</b></div>" for k, v in facts)
    colour = index % NUM_COLOURS
    return (
        f'<div class="card"><strong>{_escape(run.name)}</strong>'
        f'<span class="state {kind}">{_escape(state)}</span>'
        f'<div class="bar-track"><i class="b{colour}" style="width:{share:.1%}"></i></div>'
        f'<div class="facts">{cells}</div></div>'
    )


def _state(run: Run) -> tuple[str, str]:
    state = run.heartbeat["state"] if run.heartbeat else "no heartbeat"
    reason = run.heartbeat.get("reason") if run.heartbeat else None
    if run.is_running:
        return "run", state
    if state == "stopped":
        return ("good" if reason == "finished" else "bad"), str(reason or "stopped")
    return "bad", f"silent (was {state})"


def _eta(run: Run) -> str:
    seconds = run.eta_seconds if run.is_running else run.seconds
    return "-" if seconds is None else human_time(seconds)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _money(usd: float | None) -> str:
    return "not counted" if usd is None else f"${usd:,.2f}"


def _format(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _training(runs: Sequence[Run]) -> list[str]:
    loss = _series(runs, "loss", smoothed=True)
    accuracy = _series(runs, "masked_lm_accuracy", smoothed=True)
    for index, run in enumerate(runs):
        colour = index % NUM_COLOURS
        suffix = f"{run.name}, " if len(runs) > 1 else ""
        for target, key in ((loss, "masked_lm_loss"), (accuracy, "masked_lm_accuracy")):
            points = _points(run.evaluations, key)
            target.append(Series(f"{suffix}held out", points, colour, "dots"))
    parts = [
        charts.line_chart("Loss", loss),
        charts.line_chart("Masked-LM accuracy", accuracy, y_format=_percent, y_from_zero=True),
        charts.line_chart("Learning rate", _series(runs, "learning_rate"), y_from_zero=True),
        charts.line_chart(
            "Tokens per second", _series(runs, "tokens_per_second"), y_from_zero=True
        ),
    ]
    costs = [_cost_series(run, index) for index, run in enumerate(runs) if run.cost_usd is not None]
    if costs:
        parts.append(
            charts.line_chart(
                "Cost so far (full) and planned (dashed), USD",
                [series for pair in costs for series in pair],
                y_format=lambda v: f"${charts.number(v)}",
                y_from_zero=True,
            )
        )
    return parts


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _series(runs: Sequence[Run], key: str, smoothed: bool = False) -> list[Series]:
    found = []
    for index, run in enumerate(runs):
        colour = index % NUM_COLOURS
        points = _points(run.metrics, key)
        if smoothed and len(points) > 2 * _SMOOTHING:
            found.append(Series(run.name, points, colour, "faint"))
            points = charts.smooth(points, _SMOOTHING)
        found.append(Series(run.name, points, colour))
    return found


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """A quantity against the step, where it was measured and is a number."""
    return [(float(line["step"]), line[key]) for line in lines if line.get(key) is not None]


def _cost_series(run: Run, index: int) -> list[Series]:
    """Cost against the step: counted over the time something ran, and on a straight line."""
    colour = index % NUM_COLOURS
    cost, seconds = run.cost_usd or 0.0, run.seconds
    points = [(0.0, 0.0)]
    for m in run.metrics:
        spent = sum(max(0.0, min(s.end, m["time"]) - s.start) for s in run.sessions)
        points.append((float(m["step"]), cost * spent / seconds if seconds else 0.0))
    planned = run.planned_usd
    line = [(0.0, 0.0), (float(run.total_steps or run.step), planned)] if planned else []
    return [
        Series(f"{run.name}, so far", points, colour),
        Series(f"{run.name}, planned", line, colour, "dashed"),
    ]


def _rows(runs: Sequence[Run]) -> list[charts.Row]:
    return [
        charts.Row(
            label=run.name[:16],
            colour=index % NUM_COLOURS,
            spans=[
                (s.start, s.end, f"{human_time(s.end - s.start)}, {s.ending or 'training'}")
                for s in run.sessions
            ],
            ticks=[(time, f"checkpoint {step:,}") for time, step in run.checkpoints],
            marks=timeline_marks(run),
        )
        for index, run in enumerate(runs)
    ]


def _evaluation(runs: Sequence[Run]) -> list[str]:
    parts = [
        _bars("Accuracy by position in the sequence", runs, "by_position"),
        _bars("Accuracy by distance to the nearest visible same token", runs, "by_distance"),
    ]
    if any(_newest(run).get("by_sub_corpus") for run in runs):
        parts.append(_bars("Accuracy by corpus", runs, "by_sub_corpus"))
    for index, run in enumerate(runs):
        if run.probes:
            parts.append(_probe(run, index))
    return parts


def _bars(title: str, runs: Sequence[Run], key: str) -> str:
    """The newest evaluation of each run, bucket by bucket."""
    tables = [
        {
            _bucket(row): 100 * row["accuracy"]
            for row in (_newest(run).get(key) or [])
            if row["accuracy"] is not None
        }
        for run in runs
    ]
    labels = list(dict.fromkeys(label for table in tables for label in table))
    series = [
        (run.name, index % NUM_COLOURS, [table.get(label) for label in labels])
        for index, (run, table) in enumerate(zip(runs, tables, strict=True))
    ]
    return charts.bar_chart(title, labels, series)


def _newest(run: Run) -> Mapping[str, Any]:
    return run.evaluations[-1] if run.evaluations else {}


def _probe(run: Run, index: int) -> str:
    found = run.probes[-1]["probe"]
    rows: Sequence[Mapping[str, Any]] = found["by_distance"]
    series = [
        (name, (index + place) % NUM_COLOURS, [100 * row[key] for row in rows])
        for place, (key, name) in enumerate(
            (
                ("model", "whole sequence"),
                ("window", f"{found['window_tokens']} tokens"),
                ("unigram", "best constant guess"),
            )
        )
    ]
    title = f"{run.name}: names filled in again, by distance to the mention before"
    return charts.bar_chart(title, [_bucket(row) for row in rows], series)


def _bucket(row: Mapping[str, Any]) -> str:
    if "name" in row:  # of a corpus
        return str(row["name"])
    return "none" if row["from"] is None else f"{row['from']}+"


def _examples(runs: Sequence[Run]) -> list[str]:
    """The same masked places of held-out text, early, midway and now."""
    parts = []
    for run in runs:
        shown = [e for e in run.evaluations if e.get("examples")]
        if not shown:
            continue
        chosen = shown if len(shown) <= 3 else [shown[0], shown[len(shown) // 2], shown[-1]]
        name = f": {run.name}" if len(runs) > 1 else ""
        tables = "".join(
            f"<details{' open' if e is chosen[-1] else ''}><summary>step {e['step']:,}</summary>"
            f"{_example_table(e['examples'])}</details>"
            for e in chosen
        )
        title = f"<figcaption>Masked examples{_escape(name)}</figcaption>"
        parts.append(f'<div class="card wide">{title}{tables}</div>')
    return [_grid(parts)] if parts else []


def _example_table(examples: Sequence[Example]) -> str:
    rows = []
    for e in examples:
        verdict = "right" if e["truth"] == e["guess"] else "wrong"
        rows.append(
            f"<tr><td>…{_escape(e['before'])}</td><td><b>{_escape(e['truth'])}</b></td>"
            f'<td class="{verdict}"><b>{_escape(e["guess"])}</b> {e["probability"]:.0%}</td>'
            f"<td>{_escape(e['after'])}…</td></tr>"
        )
    head = "<tr><th>before</th><th>was there</th><th>guess</th><th>after</th></tr>"
    return f"<table{_lang(examples)}>{head}{''.join(rows)}</table>"


def _lang(examples: Sequence[Example]) -> str:
    """The `lang` attribute of the examples: Japanese where they hold kana, else none.

    Without it a browser may draw Han characters in their Chinese forms.
    """
    text = "".join(part for e in examples for part in (e["before"], e["truth"], e["after"]))
    return ' lang="ja"' if any("ぁ" <= character <= "ヿ" for character in text) else ""


def _table(
    title: str, runs: Sequence[Run], get: Callable[[Run], dict[str, Any]], wide: bool
) -> str:
    """One row per key, one column per run; rows that differ between runs stand out."""
    columns = [get(run) for run in runs]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = []
    for key in keys:
        values = [column.get(key, "-") for column in columns]
        differs = ' class="differs"' if len({str(v) for v in values}) > 1 else ""
        cells = "".join(f"<td>{_escape(v)}</td>" for v in values)
        rows.append(f"<tr{differs}><th>{_escape(key)}</th>{cells}</tr>")
    head = "".join(f"<th>{_escape(run.name)}</th>" for run in runs)
    body = f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>" if rows else ""
    body = body or '<p class="none">not given: add --data_dir</p>'
    kind = "card wide" if wide else "card"
    return f'<div class="{kind}"><figcaption>{_escape(title)}</figcaption>{body}</div>'


def _data_card(runs: Sequence[Run]) -> str:
    def facts(run: Run) -> dict[str, Any]:
        data = dict(run.data or {})
        if "density" in data:
            data["density"] = f"{data['density']:.2%} of positions are tokens"
        for key in ("documents", "tokens", "sequences", "sequence length"):
            if key in data:
                data[key] = human_count(data[key])
        return data

    return _table("Data", runs, facts, wide=False)


def _environment_card(runs: Sequence[Run]) -> str:
    def facts(run: Run) -> dict[str, Any]:
        starts = [e for e in run.events if e["event"] in ("started", "resumed")]
        last: Mapping[str, Any] = starts[-1] if starts else {}
        known = {
            "sessions": len(run.sessions),
            "checkpoints saved": len(run.checkpoints),
            "wall time training": human_time(run.seconds),
        }
        left_out = ("event", "time", "global_step", "interruptions", "pid")
        flat: dict[str, Any] = {}
        for key, value in last.items():
            if isinstance(value, dict):
                flat.update(value)
            elif key not in left_out:
                flat[key] = value
        return {**known, **flat}

    return _table("Environment", runs, facts, wide=False)


def _config_card(runs: Sequence[Run]) -> str:
    defaults = flatten(Config())

    def settings(run: Run) -> dict[str, Any]:
        return flatten(run.config) if run.config else {}

    changed = {
        key for run in runs for key, value in settings(run).items() if value != defaults.get(key)
    }
    short = _table(
        "Settings that are not defaults",
        runs,
        lambda run: {k: v for k, v in settings(run).items() if k in changed},
        wide=True,
    )
    full = _table("All settings", runs, settings, wide=True)
    return f'{short}<details class="wide"><summary>all settings</summary>{full}</details>'
