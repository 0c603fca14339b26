"""Quotes how long things take, from docs/times.yaml and from `plan`, as the documents do.

    python -m scripts.times     # prints each figure, and every sentence that quotes one

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


def load() -> dict[str, Any]:
    """Read docs/times.yaml."""
    return yaml.safe_load(PATH.read_text(encoding="utf-8"))


def figures(measured: dict[str, float]) -> dict[str, str]:
    """Map a name to the figure as it is written, in English and (`_ja`) in Japanese."""
    wiki40b = plan.WIKI40B_JA_BYTES / 1e6
    tokenize = measured["tokenize_seconds"] * wiki40b / measured["tokenize_megabytes"]
    make_data = wiki40b / measured["make_data_megabytes_per_second"]
    quotable = {
        "tokenize_real_text": f"{measured['tokenize_seconds']:.0f} seconds",
        "tokenize_wiki40b": f"{tokenize / 3600:.1f} hours",
        "tokenize_wiki40b_ja": f"{tokenize / 3600:.1f} 時間",
        "make_data_wiki40b": _minutes(make_data, "minute"),
        "make_data_wiki40b_ja": f"{make_data / 60:.0f} 分",
        "demo": _minutes(60 * measured["demo_minutes"], "minute"),
        "demo_ja": f"{measured['demo_minutes']:.0f} 分",
        "probe_ja": f"{measured['probe_minutes']:.0f} 分",
        "probe": _minutes(60 * measured["probe_minutes"], "minute"),
    }
    return {**quotable, **_rented()}


def _minutes(seconds: float, unit: str) -> str:
    return f"{round(seconds / 60)} {unit}" + "s" * (round(seconds / 60) != 1)


def _rented() -> dict[str, str]:
    """Quote `plan --config base-4096` on spot TPUs."""
    config = resolve_config(_PRESET)[0]
    data = requested_data(config)
    run = plan.Plan(fit_to_data(config, data), data)
    quotable: dict[str, str] = {}
    for row in plan.make_rows([run], load_prices()):
        name = row.accelerator.removesuffix("-8")
        if row.pricing == "spot" and row.wall_hours_range and row.cost_usd_range:
            days = (row.wall_hours or 0.0) / 24
            quotable |= {f"{name}_days": f"{days:.1f} days", f"{name}_days_ja": f"{days:.1f} 日"}
            hours = [_short(hours) for hours in (24 * days, *row.wall_hours_range)]
            usd = [_short(usd) for usd in (row.cost_usd or 0.0, *row.cost_usd_range)]
            quotable[f"{name}_hours"] = "{} ({}–{}) hours".format(*hours)
            quotable[f"{name}_hours_ja"] = "{}（{}～{}）時間".format(*hours)
            quotable[f"{name}_dollars"] = "{} ({}–{}) US dollars".format(*usd)
            quotable[f"{name}_dollars_ja"] = "{}（{}～{}）米ドル".format(*usd)
        elif row.pricing in ("Kaggle", "Colab") and row.hours_range:
            quotable[f"{row.pricing}_hours"] = " to ".join(map(_short, row.hours_range)) + " hours"
    return quotable


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def sentences() -> list[tuple[str, str]]:
    """List (page, sentence that it has to hold) of every quotation."""
    times = load()
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
    """Prints figures and quotations."""
    for name, text in sorted(figures(load()["measured"]).items()):
        print(f"{name:24} {text}")
    for page, text in sentences():
        print(f"{page}: {text}")


if __name__ == "__main__":
    main()
