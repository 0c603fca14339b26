"""Quotes how long things take, from docs/times.yaml and from `plan`, as the documents do.

    python -m scripts.times     # prints every sentence that quotes a figure

Nothing is measured here: the commands that measure are named beside the figures in the file.
"""

from typing import Any

import yaml

from bigbird_ja import plan
from bigbird_ja.accelerators import load_prices
from bigbird_ja.settings import requested_data
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from testkit import ROOT

PATH = ROOT / "docs/times.yaml"
_PRESET = "base-4096"


def figures(measured: dict[str, float]) -> dict[str, Any]:
    """Map names to numbers, and rows of the plan to numbers by name, as times.yaml quotes them."""
    wiki40b = plan.WIKI40B_JA_BYTES / 1e6
    tokenize = measured["tokenize_seconds"] * wiki40b / measured["tokenize_megabytes"]
    return {
        **measured,
        "tokenize_wiki40b_hours": tokenize / 3600,
        "make_data_wiki40b_minutes": wiki40b / measured["make_data_megabytes_per_second"] / 60,
        **_rented(),
    }


class Range(tuple[float, ...]):
    """Formats as `10.5 SEPARATOR 12`: numbers above 10 are whole, others have one decimal."""

    def __format__(self, separator: str) -> str:
        """Join the numbers."""
        return separator.join(f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in self)


def _rented() -> dict[str, Any]:
    """Quote `plan --config base-4096` on spot TPUs, and the hours on free ones."""
    config = resolve_config(_PRESET)[0]
    data = requested_data(config)
    run = plan.Plan(fit_to_data(config, data), data)
    quotable: dict[str, Any] = {}
    for row in plan.make_rows([run], load_prices()):
        if row.pricing == "spot" and row.wall_hours_range and row.cost_usd_range:
            hours, usd = row.wall_hours or 0.0, row.cost_usd or 0.0
            quotable[row.accelerator.removesuffix("-8")] = {
                "days": hours / 24,
                "hours": Range([hours]),
                "hours_range": Range(row.wall_hours_range),
                "usd": Range([usd]),
                "usd_range": Range(row.cost_usd_range),
            }
        elif row.pricing in ("Kaggle", "Colab") and row.hours_range:
            quotable[row.pricing] = Range(row.hours_range)
    return quotable


def sentences() -> list[tuple[str, str]]:
    """List (page, sentence that it has to hold) of every quotation."""
    times = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    known = figures(times["measured"])
    return [
        (page, text.format(**known)) for page, texts in times["quoted"].items() for text in texts
    ]


def missing() -> list[str]:
    """List `page: sentence` for each that is not there; line breaks of a page do not count."""
    return [
        f"{page}: {text}"
        for page, text in sentences()
        if " ".join(text.split()) not in " ".join((ROOT / page).read_text("utf-8").split())
    ]


def main() -> None:
    """Prints quotations."""
    for page, text in sentences():
        print(f"{page}: {text}")


if __name__ == "__main__":
    main()
