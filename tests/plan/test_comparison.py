"""The machine that a plan chooses, runs that make no sense, and the picture."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.accelerators import prices
from bigbird_ja.plan import comparison
from bigbird_ja.plan.rows import Overheads, Row, Run, estimated_data, make_rows
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.storage import plotting

NOW = datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=9)))


def row(name: str, hours: float | None, usd: float | None, **more: Any) -> Row:
    values: dict[str, Any] = {
        "pricing": "spot", "zone": "us-central1-a", "tokens_per_second": 1.0, "rate_source": "",
        "usd_per_hour": 1.0, "training_hours": 1.0, "preemptions": 0.0, "compute_usd": usd,
        "storage_usd": 0.0, "egress_usd": 0.0, "fits": None, "divides": True, "unproven": "",
        "note": "", "hours": hours, "wall_hours": hours, **more,
    }  # fmt: skip
    return Row(accelerator=name, cost_usd=usd, **values)


ROWS = [
    row("lent", 1.0, 0.0, wall_hours=None),
    row("slow", 100.0, 10.0),
    row("small", 30.0, 12.0, fits=False),
    row("odd", 1.0, 1.0, divides=False),
    row("middle", 40.0, 30.0),
    row("fast", 10.0, 90.0),
    row("unpriced", 5.0, None),
    row("endless", None, None),
]


@pytest.mark.parametrize(
    ("hours", "max_cost", "name"),
    [
        (None, None, "fast"),
        (1000.0, None, "slow"),  # the cheapest that is done in time
        (50.0, None, "middle"),
        (12.0, None, "fast"),
        (None, 20.0, "slow"),  # the fastest within the budget
        (None, 50.0, "middle"),
        (None, 100.0, "fast"),
        (50.0, 40.0, "middle"),  # both hold
        (50.0, 20.0, None),
        (5.0, None, None),
        (None, 5.0, None),
    ],
)
def test_choice(hours: float | None, max_cost: float | None, name: str | None) -> None:
    chosen = comparison.choose(ROWS, hours, max_cost)
    assert (chosen.accelerator if chosen else None) == name


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2026-11-22", 12.0),  # the end of the day
        ("2026-11-23", 36.0),
        ("2026-11-22T18:30", 6.5),
        ("2026-11-22T12:00:00+00:00", 9.0),
    ],
)
def test_hours_until_a_date(text: str, hours: float) -> None:
    assert comparison.hours_until(text, NOW) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("soon", "a date such as"), ("2026-13-01", "a date such as"), ("2026-11-21", "is past"),
        ("2026-11-22T12:00", "is past"), ("", "a date such as"),
    ],
)  # fmt: skip
def test_bad_dates_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"--finish_by={text}.*{words}"):
        comparison.hours_until(text, NOW)


def test_too_many_epochs_warn() -> None:
    assert (
        comparison.warnings_of_length(None, 10)
        == comparison.warnings_of_length(103.5, 500_000)
        == []
    )
    (text,) = comparison.warnings_of_length(15_534.2, 1_400_000)
    assert "15,534 epochs, which is nonsense" in text


CONFIG = complete_config(resolve_config("base-4096")[0])
RUN = Run(CONFIG, 10_000, estimated_data(CONFIG), prices.load(), Overheads())


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
    rows = make_rows(RUN, ("v3-8", "v6e-8"))
    spread = [
        dataclasses.replace(row, wall_hours=24.0 * days, cost_usd=usd)
        for row, days, usd in zip(rows, (0.7, 3.0, 80.0), (9.0, 100.0, 1500.0), strict=False)
    ]
    comparison.plot(spread, str(tmp_path / "x.png"), "title")
    (figure,) = drawn
    (axes,) = figure.axes
    assert labels(axes.xaxis) == ["1", "2", "5", "10", "20", "50", "100"]
    assert labels(axes.yaxis) == ["10", "20", "50", "100", "200", "500", "1,000"]
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_free_and_unpriced_machines_are_no_points(tmp_path: Path, drawn: list[Any]) -> None:
    rows = make_rows(RUN)
    comparison.plot(rows, str(tmp_path / "x.png"), "title")
    names = [text.get_text() for text in drawn[0].axes[0].texts]
    assert sorted(names) == sorted(
        row.accelerator for row in rows if row.cost_usd and row.wall_hours is not None
    )
    assert "v7x-8" not in names and "v5e-1" not in names and "v5e-8" in names
