"""The machine that a plan chooses, and runs that make no sense."""

import datetime
import math

import pytest

from bigbird_ja.plan import comparison
from bigbird_ja.plan.hours import Overheads
from bigbird_ja.plan.rows import Row
from bigbird_ja.process.errors import BadInput

NOW = datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=9)))


def row(name, hours, usd, **more):
    values = {
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
        (None, 20.0, "slow"),  # the fastest within the budget
        (None, 50.0, "middle"),
        (50.0, 40.0, "middle"),  # both hold
        (50.0, 20.0, None),
    ],
)
def test_choice(hours, max_cost, name):
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
def test_hours_until_a_date(text, hours):
    assert comparison.hours_until(text, NOW) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("text", "words"),
    [("2026-13-01", "a date such as"), ("2026-11-21", "is past"), ("2026-11-22T12:00", "is past")],
)
def test_bad_dates_are_refused(text, words):
    with pytest.raises(BadInput, match=f"--finish_by {text}.*{words}"):
        comparison.hours_until(text, NOW)


def test_the_verdict_names_what_is_cheapest_and_the_command_that_rents_it():
    rows = [row("v3-8", 100.0, 10.0), row("v2-8", None, None)]
    chosen = comparison.choose(rows, math.inf, None)
    lines = comparison.verdict(rows, chosen, None, None).splitlines()
    assert lines[0] == "cheapest: v3-8 spot, 10 dollars, 100.0 h, estimated"
    assert lines[1].strip().startswith("launch --accelerator_type v3-8 --pricing spot --zones")
    nothing = comparison.verdict(rows[1:], None, None, None)
    assert nothing == "no machine here is known to finish it"


def test_the_run_is_shown_in_epochs_and_a_machine_that_never_ends_as_such():
    result = {
        "steps": 5, "tokens_per_step": 100, "tokens": 500, "epochs": 103.52, "steps_per_epoch": 1.0,
        "assumption": "no --data_dir: assuming", "warnings": [], "config": None,
    }  # fmt: skip
    text = comparison.comparison([result], ROWS[-1:], Overheads(), "prices of today")
    first = text.splitlines()[0]
    assert first == "5 steps of 100 tokens: 500 tokens = 103.5 epochs of Wiki40b Japanese (1 steps"
    assert "never" in text
