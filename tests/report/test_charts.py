import math

import pytest

from bigbird_ja.report import charts

pytest.importorskip("matplotlib.image", reason="draws the charts")


def test_thinning_keeps_the_last_point_and_drops_values_that_are_not_finite():
    points = [(float(i), 1.0) for i in range(5000)] + [(5000.0, math.nan), (5001.0, 7.0)]
    steps, values = charts.thin(points, 100)
    assert len(steps) == 100 and (steps[-1], values[-1]) == (5001.0, 7.0)
    assert steps.mean() == pytest.approx(2500, rel=0.05)


def test_bars_leave_out_missing_values():
    text = charts.draw_bar_chart("x", {"a": {"0+": 0.5, "16+": None}, "b": {"0+": 0.1, "16+": 0.2}})
    # Each color occurs once for each bar, and once in the legend.
    assert text.count("fill: var(--c0)") == 2 and text.count("fill: var(--c1)") == 3
