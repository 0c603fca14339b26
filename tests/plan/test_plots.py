"""The pictures: axes that people read, no line through a legend, curves that coincide."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.accelerators import prices
from bigbird_ja.plan import cost, plots
from bigbird_ja.plan import rows as plan
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.storage import plotting

pytest.importorskip("matplotlib")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were drawn, laid out; they are written as well."""
    figures: list[Any] = []
    save = plotting.save

    def keep(figure: Any, path: str, dpi: int) -> None:
        save(figure, path, dpi)
        figures.append(figure)

    monkeypatch.setattr(plotting, "save", keep)
    return figures


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_majorticklabels() if label.get_text()]


def check_legend(figure: Any) -> None:
    """It lies beside the axes."""
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_days_and_dollars_are_read_without_powers(tmp_path: Path, drawn: list[Any]) -> None:
    config = complete_config(resolve_config("base-4096")[0])
    run = plan.Run(config, 10_000, plan.estimated_data(config), prices.load(), cost.Overheads())
    rows = plan.make_rows(run, ("v3-8", "v6e-8"))
    spread = [
        dataclasses.replace(row, wall_hours=24.0 * days, cost_usd=usd)
        for row, days, usd in zip(rows, (0.7, 3.0, 80.0), (9.0, 100.0, 1500.0), strict=False)
    ]
    plots.cost_against_time(spread, str(tmp_path / "x.png"), "title")
    (figure,) = drawn
    (axes,) = figure.axes
    assert labels(axes.xaxis) == ["1", "2", "5", "10", "20", "50", "100"]
    assert labels(axes.yaxis) == ["10", "20", "50", "100", "200", "500", "1,000"]
    check_legend(figure)


def test_what_is_free_or_unpriced_is_no_point(tmp_path: Path, drawn: list[Any]) -> None:
    config = complete_config(resolve_config("base-4096")[0])
    run = plan.Run(config, 10_000, plan.estimated_data(config), prices.load(), cost.Overheads())
    rows = plan.make_rows(run)
    plots.cost_against_time(rows, str(tmp_path / "x.png"), "title")
    said = [text.get_text() for text in drawn[0].axes[0].texts]
    assert sorted(said) == sorted(
        row.accelerator for row in rows if row.cost_usd and row.wall_hours is not None
    )
    assert "v7x-8" not in said and "v5e-1" not in said and "v5e-8" in said


def test_curves_that_coincide_are_both_seen(tmp_path: Path, drawn: list[Any]) -> None:
    points = [(minutes, 0.9, 0.89, 0.91) for minutes in (1.0, 2.0, 5.0, 10.0)]
    plots.useful_share({"a": points, "b": points}, 10.0, str(tmp_path / "x.png"))
    (figure,) = drawn
    first, second, *_ = figure.axes[0].lines
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    assert labels(figure.axes[0].xaxis) == ["1", "2", "5", "10"]
    check_legend(figure)
