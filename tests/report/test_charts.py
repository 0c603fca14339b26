"""Numbers become the right marks."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from bigbird_ja.report import charts
from bigbird_ja.report.charts import Series


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 1e-4, [0, 2.5e-5, 5e-5, 7.5e-5, 1e-4]), (3, 3, [3])],
)
def test_ticks_are_round(low, high, expected):
    found = charts.ticks(low, high)
    assert found == pytest.approx(expected) or all(low <= t <= high for t in found)
    assert 1 <= len(found) <= 8


def test_thinning_keeps_the_last_point_and_drops_what_is_not_finite():
    points = [(float(i), 1.0) for i in range(5000)] + [(5000.0, math.nan), (5001.0, 7.0)]
    thinned = charts.thin(points, 100)
    assert len(thinned) <= 101 and thinned[-1] == (5001.0, 7.0)


def test_smoothing_has_no_lag():
    line = [(float(i), 3.0 * i) for i in range(200)]
    assert [y for _, y in charts.smooth(line, 20)] == pytest.approx([y for _, y in line])


def test_a_chart_is_well_formed_and_escapes():
    series = [Series("<a & b>", [(0, 1), (10, 5)], 0), Series("dots", [(5, 2)], 1, "dots")]
    text = charts.line_chart("Loss <now>", series)
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    root = ElementTree.fromstring(svg)
    line = next(e for e in root.iter() if e.tag == "polyline")
    pixels = [tuple(map(float, p.split(","))) for p in line.get("points", "").split()]
    assert pixels[0][0] < pixels[1][0] and pixels[0][1] > pixels[1][1]  # up is more
    assert "<a & b>" not in text and "&lt;a &amp; b&gt;" in text


def test_nothing_to_draw_says_so():
    assert "nothing logged yet" in charts.line_chart("x", [Series("a", [], 0)])
    assert "not measured yet" in charts.bar_chart("x", [], [])
    assert "nothing has started" in charts.timeline("x", [])


def test_bars_leave_out_what_is_missing():
    text = charts.bar_chart("x", ["0+", "16+"], [("a", 0, [50.0, None]), ("b", 1, [10.0, 20.0])])
    assert len(re.findall(r'<rect class="bar', text)) == 3
