"""Cost against sequence length, block-sparse and full: `make bench-length`.

  .venv/bin/python -m scripts.bench_length    # half an hour on two cores; again: seconds

One sequence per v3 core, BERT-base, 1,024 to 16,384 tokens, drawn out to 12 layers from 2 and 4
(--layers=12 compiles all 12). Prints priced cycles per token and the HBM peak, says whether 16,384
tokens fit, and draws docs/images/cost-by-length.png.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, targets
from bigbird_ja.process import tensorflow_env
from bigbird_ja.process.console import log, table
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import plotting

LENGTHS = (1024, 2048, 4096, 8192, 16384)
ATTENTIONS = ("block_sparse", "original_full")
CHIP = CHIPS["v3"]
LAYERS = 12


def config_of(attention: str, length: int, layers: int) -> Config:
    """BERT-base at a length; predictions in proportion, as 600 at 4,096."""
    sets = [
        f"model.attention_type={attention}", f"make_data.seq_length={length}",
        f"make_data.max_predictions_per_seq={600 * length // 4096}", f"model.num_layers={layers}",
    ]  # fmt: skip
    return complete_config(resolve_config(None, sets)[0])


def measure(
    attention: str, length: int, layers: int, settings: estimate.Settings
) -> dict[str, Any]:
    """One compilation for one sequence."""
    log(f"{attention}, {length} tokens, {layers} layers ...")
    return estimate.examine(
        config_of(attention, length, layers), targets.of_chip(CHIP), 1, settings
    )


def point(attention: str, length: int, settings: estimate.Settings, whole: bool) -> dict[str, Any]:
    """Cycles and HBM peak of 12 layers; cycles None where the step does not fit."""
    counts = (LAYERS,) if whole else (2, 4)
    results = [measure(attention, length, layers, settings) for layers in counts]
    line = {"attention": attention, "length": length, "cycles": None, "peak": None, "fits": False}
    if not all(result["fits"] for result in results):
        return line

    def of_all(key: str) -> float:
        values = [float(result[key]) for result in results]
        return values[0] if whole else values[0] + (values[1] - values[0]) / 2 * (LAYERS - 2)

    peak = of_all("hbm_peak_bytes")
    return line | {"cycles": of_all("priced_cycles"), "peak": peak, "fits": peak <= CHIP.hbm_bytes}


def draw(path: str, points: list[dict[str, Any]]) -> None:
    """Cycles per token against the length, one line per kind of attention."""
    figure = plotting.new_figure(6.5, 4.4)
    axes = figure.add_subplot()
    names = {"block_sparse": "block-sparse (rolled)", "original_full": "full attention"}
    for attention, style in zip(ATTENTIONS, ("o-", "s--"), strict=True):
        known = [p for p in points if p["attention"] == attention and p["cycles"]]
        lengths = [p["length"] for p in known]
        axes.plot(lengths, [p["cycles"] / 1e6 for p in known], style, label=names[attention])
        for p in known:
            if not p["fits"]:
                place = (p["length"], p["cycles"] / 1e6)
                axes.annotate(
                    "does not fit", place, textcoords="offset points", xytext=(8, 4), fontsize=8
                )
    axes.set_xscale("log", base=2)
    cycles = [p["cycles"] / 1e6 for p in points if p["cycles"]]
    plotting.plain_scale(axes.yaxis, min(cycles), max(cycles))
    axes.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS])
    axes.set_xlabel("tokens in the sequence")
    axes.set_ylabel("M priced cycles per step")
    axes.grid(alpha=0.3)
    axes.set_title("BERT-base, one sequence per v3 core", fontsize=10)
    plotting.legend_below(figure)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, choices=(4, LAYERS), default=4)
    parser.add_argument("--plot", default="docs/images/cost-by-length.png")
    parser.add_argument("--output", help="JSON file for the figures")
    args = parser.parse_args()
    tensorflow_env.prepare(os.environ)
    cache = compile_lib.default_cache_dir(dict(os.environ))
    settings = estimate.Settings(cache_dir=cache, timeout=2 * 3600, log=log)
    points = [
        point(attention, length, settings, args.layers == LAYERS)
        for attention in ATTENTIONS
        for length in LENGTHS
    ]
    rows = [
        (
            p["attention"], p["length"], f"{p['cycles'] / 1e6:.0f} M" if p["cycles"] else "-",
            f"{p['cycles'] / p['length']:.0f}" if p["cycles"] else "-",
            f"{p['peak'] / 1e9:.2f} GB" if p["peak"] else "-", "yes" if p["fits"] else "no",
        )
        for p in points
    ]  # fmt: skip
    print(table(rows, ("attention", "tokens", "cycles", "per token", "HBM peak", "fits v3")))
    os.makedirs(os.path.dirname(args.plot) or ".", exist_ok=True)
    draw(args.plot, points)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as stream:
            json.dump(points, stream, indent=1)


if __name__ == "__main__":
    main()
