"""The good inputs that hostile cases start from: a small finished run and what goes with it."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from pathlib import Path

from testkit.runs import SETTINGS, SmallRun


def make(place: Path, run: SmallRun) -> Path:
    """Copies a small run to `place`, with a config, prices and preflight figures beside it."""
    place.mkdir(parents=True)
    shutil.copytree(run.data_dir, place / "data")
    shutil.copytree(run.model_dir, place / "model")
    shutil.copy(run.corpus, place / "corpus.jsonl")
    for suffix in (".model", ".vocab", ".json"):
        shutil.copy(Path(run.tokenizer).with_suffix(suffix), place / f"ja{suffix}")
    (place / "config.yaml").write_text(_config(), "utf-8")
    prices = importlib.resources.files("bigbird_ja.accelerators").joinpath("prices.yaml")
    (place / "prices.yaml").write_text(prices.read_text("utf-8"), "utf-8")
    (place / "preflight.json").write_text(json.dumps({"chips": [_CHIP]}), "utf-8")
    return place


def _config() -> str:
    sections: dict[str, list[str]] = {}
    for item in SETTINGS:
        key, _, value = item.removeprefix("--set=").partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"  {name}: {value}")
    return "".join(f"{name}:\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


# What `plan` reads of a file of `preflight --output`; the numbers are of no model.
_CHIP = {
    "chip": "v3", "fits": True, "seq_length": 256, "batch_per_core": 1, "priced_cycles": 1e7,
    "tokens_per_second_per_core": 1e5,
}  # fmt: skip
