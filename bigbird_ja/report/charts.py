"""Charts as SVG text: no library, no network, colours from the page's style sheet."""

from __future__ import annotations

import datetime
import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 14, 34
_MOST_POINTS = 500
NUM_COLOURS = 6


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    points: Sequence[Point]
    colour: int  # 0 .. NUM_COLOURS - 1
    style: str = "line"  # line | dots | faint | dashed


@dataclass(frozen=True)
class Scale:
    """From data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values, about `count`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A short number for an axis."""
    magnitude = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if magnitude >= limit:
            return f"{value / limit:.4g}{unit}"
    if magnitude and magnitude < 0.001:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.4g}"


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Fewer points: means of equal runs, the last point kept as it is."""
    finite = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if len(finite) <= most:
        return finite
    size = math.ceil(len(finite) / most)
    groups = [finite[i : i + size] for i in range(0, len(finite) - 1, size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [*means, finite[-1]]


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Means over `window` neighbours on both sides together: no lag, narrower at the ends."""
    half = window // 2
    sums = list(itertools.accumulate((y for _, y in points), initial=0.0))
    found = []
    for place, (x, _) in enumerate(points):
        reach = min(half, place, len(points) - 1 - place)
        low, high = place - reach, place + reach + 1
        found.append((x, (sums[high] - sums[low]) / (high - low)))
    return found


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str = "step",
    y_format: Callable[[float], str] = number,
    y_from_zero: bool = False,
) -> str:
    """A chart of lines over a shared x axis; an empty note where there is nothing to draw."""
    drawn = [Series(s.label, thin(s.points), s.colour, s.style) for s in series]
    drawn = [s for s in drawn if s.points]
    if not drawn:
        return _frame(title, '<p class="none">nothing logged yet</p>')
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points]
    low, high = _range(ys, y_from_zero)
    x_scale = Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    y_scale = Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_y_axis(y_scale, y_format), _x_axis(x_scale, x_label, number)]
    parts += [_draw(s, x_scale, y_scale, y_format) for s in drawn]
    return _frame(title, _svg("".join(parts), title) + _legend(drawn))


def bar_chart(
    title: str, labels: Sequence[str], series: Sequence[tuple[str, int, Sequence[float | None]]]
) -> str:
    """Groups of bars in per cent: one group for each label, one bar for each series."""
    values = [v for _, _, column in series for v in column if v is not None]
    if not labels or not values:
        return _frame(title, '<p class="none">not measured yet</p>')
    y_scale = Scale(0, max([*values, 1.0]) * 1.05, HEIGHT - _BOTTOM, _TOP)
    group = (WIDTH - _LEFT - _RIGHT) / len(labels)
    width = group * 0.8 / len(series)
    parts = [_y_axis(y_scale, lambda v: f"{v:g}%")]
    for place, label in enumerate(labels):
        left = _LEFT + place * group + group * 0.1
        middle = _LEFT + (place + 0.5) * group
        parts.append(_text(middle, HEIGHT - _BOTTOM + 14, label, "middle"))
        for index, (name, colour, column) in enumerate(series):
            value = column[place]
            if value is None:
                continue
            top = y_scale(value)
            parts.append(
                f'<rect class="bar c{colour}" x="{left + index * width:.1f}" y="{top:.1f}"'
                f' width="{width * 0.92:.1f}" height="{max(0.5, HEIGHT - _BOTTOM - top):.1f}">'
                f"<title>{html.escape(f'{name}, {label}: {value:.1f}%')}</title></rect>"
            )
    legend = [Series(name, [], colour) for name, colour, _ in series]
    return _frame(title, _svg("".join(parts), title) + _legend(legend))


@dataclass(frozen=True)
class Row:
    """One run on the time line; times are UNIX seconds."""

    label: str
    colour: int
    spans: Sequence[tuple[float, float, str]]  # start, end, what it was
    ticks: Sequence[tuple[float, str]]  # checkpoints
    marks: Sequence[tuple[float, str, str]]  # time, kind, text


def timeline(title: str, rows: Sequence[Row]) -> str:
    """When each run trained, saved and was stopped."""
    times = [t for row in rows for start, end, _ in row.spans for t in (start, end)]
    if not times:
        return _frame(title, '<p class="none">nothing has started yet</p>', wide=True)
    width, height = 2 * WIDTH + 28, 46 * len(rows) + 40
    low, high = min(times), max(times)
    scale = Scale(low, max(high, low + 1), 130, width - 20)
    parts = [_time_axis(scale, height)]
    for index, row in enumerate(rows):
        parts.append(_timeline_row(row, 16 + 46 * index, scale))
    note = '<div class="legend"><span><i class="key tick"></i>checkpoint</span>'
    for kind, name in (("bad", "preempted, interrupted or killed"), ("good", "finished")):
        note += f'<span><i class="key mark {kind}"></i>{name}</span>'
    return _frame(title, _svg("".join(parts), title, width, height) + note + "</div>", wide=True)


def _timeline_row(row: Row, top: float, scale: Scale) -> str:
    parts = [_text(120, top + 17, row.label, "end")]
    for start, end, what in row.spans:
        left, right = scale(start), scale(end)
        parts.append(
            f'<rect class="span c{row.colour}" x="{left:.1f}" y="{top}" rx="3"'
            f' width="{max(1.5, right - left):.1f}" height="24"><title>{html.escape(what)}</title>'
            "</rect>"
        )
    for time, what in thin_ticks(row.ticks, scale):
        x = scale(time)
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 24}" y2="{top + 31}">'
            f"<title>{html.escape(what)}</title></line>"
        )
    for time, kind, what in row.marks:
        x = scale(time)
        verdict = "good" if kind == "finished" else "bad" if kind not in _NEUTRAL else "neutral"
        parts.append(
            f'<path class="mark {verdict}" d="M{x:.1f} {top - 4} l5 -7 h-10 z">'
            f"<title>{html.escape(what)}</title></path>"
        )
    return "".join(parts)


_NEUTRAL = ("created", "deleted", "set_aside")


def thin_ticks(marks: Sequence[tuple[float, str]], scale: Scale) -> list[tuple[float, str]]:
    """Leaves out ticks that would stand closer than two pixels."""
    kept: list[tuple[float, str]] = []
    for mark in sorted(marks):
        if not kept or scale(mark[0]) - scale(kept[-1][0]) >= 2:
            kept.append(mark)
    return kept


def _range(values: Sequence[float], from_zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if from_zero:
        low = min(low, 0.0)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return (low if from_zero and low == 0 else low - margin), high + margin


def _draw(series: Series, x: Scale, y: Scale, y_format: Callable[[float], str]) -> str:
    name = html.escape(series.label)
    if series.style == "dots":
        return "".join(
            f'<circle class="dot c{series.colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.2">'
            f"<title>{name}, {number(a)}: {y_format(b)}</title></circle>"
            for a, b in series.points
        )
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in series.points)
    data = ";".join(f"{a:g},{b:.6g}" for a, b in series.points)
    listens = f' data-name="{name}" data-points="{data}"' if series.style != "faint" else ""
    return f'<polyline class="{series.style} c{series.colour}" points="{path}"{listens}/>'


def _y_axis(scale: Scale, text: Callable[[float], str]) -> str:
    parts = []
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, text(value), "end"))
    return "".join(parts)


def _x_axis(scale: Scale, label: str, text: Callable[[float], str]) -> str:
    parts = [
        _text(scale(value), HEIGHT - _BOTTOM + 14, text(value), "middle")
        for value in ticks(scale.low, scale.high)
    ]
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, label, "end"))
    return "".join(parts)


def _time_axis(scale: Scale, height: float) -> str:
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = scale.low + share * (scale.high - scale.low)
        moment = datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
        x = scale(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{height - 22}"/>')
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(_text(x, height - 6, f"{moment:%m-%d %H:%M:%S} UTC", anchor))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(body: str, title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">'
        f"{body}</svg>"
    )


def _legend(series: Sequence[Series]) -> str:
    items = "".join(
        f'<span><i class="key c{s.colour} {s.style}"></i>{html.escape(s.label)}</span>'
        for s in series
        if s.style != "faint"
    )
    return f'<div class="legend">{items}</div>'


def _frame(title: str, body: str, wide: bool = False) -> str:
    kind = "card wide" if wide else "card"
    return f'<figure class="{kind}"><figcaption>{html.escape(title)}</figcaption>{body}</figure>'
