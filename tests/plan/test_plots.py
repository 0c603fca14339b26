"""The pictures: axes that people read, no line through a legend."""

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
CONFIG = complete_config(resolve_config("base-4096")[0])
RUN = plan.Run(CONFIG, 10_000, plan.estimated_data(CONFIG), prices.load(), cost.Overheads())


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


def test_days_and_dollars_are_read_without_powers(tmp_path: Path, drawn: list[Any]) -> None:
    rows = plan.make_rows(RUN, ("v3-8", "v6e-8"))
    spread = [
        dataclasses.replace(row, wall_hours=24.0 * days, cost_usd=usd)
        for row, days, usd in zip(rows, (0.7, 3.0, 80.0), (9.0, 100.0, 1500.0), strict=False)
    ]
    plots.cost_against_time(spread, str(tmp_path / "x.png"), "title")
    (figure,) = drawn
    (axes,) = figure.axes
    assert labels(axes.xaxis) == ["1", "2", "5", "10", "20", "50", "100"]
    assert labels(axes.yaxis) == ["10", "20", "50", "100", "200", "500", "1,000"]
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_free_and_unpriced_machines_are_no_points(tmp_path: Path, drawn: list[Any]) -> None:
    rows = plan.make_rows(RUN)
    plots.cost_against_time(rows, str(tmp_path / "x.png"), "title")
    names = [text.get_text() for text in drawn[0].axes[0].texts]
    assert sorted(names) == sorted(
        row.accelerator for row in rows if row.cost_usd and row.wall_hours is not None
    )
    assert "v7x-8" not in names and "v5e-1" not in names and "v5e-8" in names
