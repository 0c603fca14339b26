"""Hours and prices in documentation pages equal those that `plan` computes."""

import re

import pytest

from testkit import ROOT

READMES = ("README.md", "README.ja.md")
GUIDES = ("docs/continue.md", "docs/continue.ja.md")
NUMBER = r"\d+(?:[.,]\d+)*"


def text_of(page):
    return (ROOT / page).read_text("utf-8")


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]


def cost(row):
    return [row["wall_hours"], *row["wall_hours_range"], row["cost_usd"], *row["cost_usd_range"]]


@pytest.mark.parametrize("readme", READMES)
def test_hours_and_prices_of_the_readmes_are_those_of_plan(readme, run):
    result = run("plan", "--config=base-4096", "--json").json
    spot = {row["accelerator"]: row for row in result["rows"] if row["pricing"] == "spot"}
    quoted = re.findall(r"(?m)^\| (v\d[a-z]?-8) \|(.*)$", text_of(readme))
    assert len(quoted) >= 5
    for name, cells in quoted:
        assert numbers(cells) == pytest.approx(cost(spot[name]), rel=0.06), name
    (kaggle,) = [row for row in result["rows"] if row["pricing"] == "Kaggle"]
    (cells,) = re.findall(r"(?m)^\| [^|]*Kaggle[^|]*\|(.*?)\|", text_of(readme))
    assert numbers(cells) == pytest.approx(kaggle["hours_range"], rel=0.02)
    assert f"{result['epochs']:.1f}" in text_of(readme)
    assert f"{spot['v5e-8']['wall_hours']:.1f} " in text_of(readme).partition("--max_cost 40")[2]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_guides_price_table_is_that_of_plan(guide, run):
    quoted = re.findall(r"(?m)^\|[^|]*\| `plan (--config.*?)` \|[^|]*\|(.*)$", text_of(guide))
    assert len(quoted) == 4
    for flags, cells in quoted:
        rows = run("plan", *flags.split(), "--json").json["rows"]
        (row,) = [r for r in rows if (r["accelerator"], r["pricing"]) == ("v5e-8", "spot")]
        assert numbers(cells) == pytest.approx(cost(row), rel=0.06), flags


@pytest.mark.parametrize("page", [*READMES, "docs/free.md", "docs/free.ja.md"])
def test_hours_of_the_free_example_are_those_of_plan(page, run):
    rows = run("plan", "--config=continue-8192", "--json").json["rows"]
    (kaggle,) = [row for row in rows if row["pricing"] == "Kaggle"]
    (cells,) = re.findall(r"(?m)^\|.*kaggle-train\.ipynb.*\|(.*)\|$", text_of(page))
    assert numbers(cells) == pytest.approx(kaggle["hours_range"], rel=0.03)
