"""Numbers become the right marks."""

from __future__ import annotations

import math

import pytest

from bigbird_ja.report import charts
from bigbird_ja.report.charts import Series

pytest.importorskip("matplotlib", reason="draws the charts")


def test_thinning_keeps_the_last_point_and_drops_what_is_not_finite():
    points = [(float(i), 1.0) for i in range(5000)] + [(5000.0, math.nan), (5001.0, 7.0)]
    steps, values = charts.thin(points, 100)
    assert len(steps) == 100 and (steps[-1], values[-1]) == (5001.0, 7.0)
    assert steps.mean() == pytest.approx(2500, rel=0.05)


def test_a_chart_is_the_same_bytes_again_and_escapes_and_takes_the_pages_colours():
    series = [
        Series("<a & b> $x$ 日本", [(0, 1), (10, 5)], 0),
        Series("dots", [(5, 2)], 7, is_dots=True),
    ]
    text = charts.line_chart("Loss <now>", series)
    assert text == charts.line_chart("Loss <now>", series)
    assert "&lt;a &amp; b&gt; $x$ 日本" in text and "Loss &lt;now&gt;" in text
    assert "var(--c0)" in text and "var(--c1)" in text and "#0969da" not in text
    assert "://" not in text  # neither a name space nor a licence: nothing that looks like a link


def test_bars_leave_out_what_is_missing():
    text = charts.bar_chart("x", {"a": {"0+": 0.5, "16+": None}, "b": {"0+": 0.1, "16+": 0.2}})
    assert text.count("fill: var(--c0)") == 2 and text.count("fill: var(--c1)") == 3  # and a key
