"""Prices the train step on TPUs against the ancestor's, on slices and by length: `make bench-step`.

    python -m scripts.bench_step                        # 12 layers compiled as they are: hours
    python -m scripts.bench_step --quick                # 2 and 4 layers, extrapolated to 12
    python -m scripts.bench_step --only "machine code"  # make bench-code
    python -m scripts.bench_step --only tokens          # bench-length: draws cost-by-length.png

BERT-base, 4,096 tokens, 2 sequences per core, 600 predictions, 32,000 pieces, AdamW; one core's
whole step, compiled by `bigbird-ja preflight`. docs/lab/preflight.md explains
priced cycles. The ancestor is google-research/bigbird's own
encoder, heads and gradient checkpointing, measured in the same way (commit fdb3999 has how:
scripts/ancestor_step.py).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators import CHIPS, load_prices
from bigbird_ja.model.params import model_flops
from bigbird_ja.plan import REACHED
from bigbird_ja.process.console import log, table
from scripts.kernel_code import LENGTHS, TOKENS
from testkit.configs import fitted, with_data

LAYERS = 12
# AdamW, as the ancestor has; Muon's part is in docs/design/optimizer.md.
ADAMW = "training.optimizer=adamw"
PREDICTIONS = ("training.masked_lm_prob=null", "make_data.max_predictions_per_seq=600")
BASE = (ADAMW, *PREDICTIONS, "training.gradient_checkpointing=false")
INDEPENDENT = ("model.random_pattern=independent",)
CHECKPOINTING = ("training.gradient_checkpointing=true", "model.hidden_dropout_prob=0.0")
MUON = "training.optimizer=muon"
# BERT-large: 340 M parameters, 302 M of them in its layers.
LARGE_SIZES = ("num_layers=24", "hidden_size=1024", "num_attention_heads=16")
LARGE = tuple(f"model.{size}" for size in (*LARGE_SIZES, "intermediate_size=4096"))


@dataclass(frozen=True)
class Row:
    """Describes a measurement against the ancestor's; `must` is the limit that it has to keep."""

    what: str
    chip: str
    key: str  # of `preflight --json`
    ancestor: float
    must: float
    sets: tuple[str, ...] = ()


ROWS = (
    Row("v3", "v3", "priced_cycles", 567e6, 295e6),
    Row("v4", "v4", "priced_cycles", 526e6, 263e6),
    Row("v5e", "v5e", "priced_cycles", 475e6, 238e6),
    Row("v3, independent pattern", "v3", "priced_cycles", 567e6, 350e6, INDEPENDENT),
    Row("v3, temporary HBM", "v3", "temp_bytes", 10.95e9, 6.0e9),
    Row("v3, checkpointing, dropout 0", "v3", "priced_cycles", 783e6, 400e6, CHECKPOINTING),
    Row("v3, checkpointing, temporary HBM", "v3", "temp_bytes", 2.32e9, 1.4e9, CHECKPOINTING),
    Row("v2, checkpointing, batch", "v2", "largest_batch_per_core", 2, 8, CHECKPOINTING[:1]),
    # Of the ancestor one layer was compiled and taken twelve times.
    Row("v5e by machine code", "v5e", "code_cycles", 284e6, 57e6),
    Row("v6e by machine code", "v6e", "code_cycles", 164e6, 33e6),
)
SLICES: list[tuple[str, tuple[str, ...]]] = [
    *((name, ()) for name in ("v5e:1x1", "v5e:2x4", "v5e:4x8", "v6e:2x4", "v5p:2x2x1")),
    *((name, ()) for name in ("v4:2x2x1", "v3:2x2", "v7x:2x2x1")),
    *(("v5e:2x4", sets) for sets in ((MUON,), LARGE, (*LARGE, MUON))),
]
# By length: a step is compiled at one length, with two numbers of layers to extrapolate from.
# preset, its one length, layers, compiled layers, how many of these layers have which attention
CODE_CHIPS = ("v5e", "v6e")
SHAPES: dict[str, tuple[str, int, int, tuple[int, int], dict[str, int]]] = {
    "BigBird": ("base-4096", 4096, 12, (2, 4), {"rolled": 12}),
    "ModernBERT": ("modernbert-8192", 8192, 22, (4, 7), {"full": 8, "local": 14}),
}
PICTURE = "docs/images/cost-by-length.png"


def preflight(
    sets: Sequence[str], batch: int, *flags: str, config: str = "base-4096"
) -> dict[str, Any]:
    """Compile one step: the entry of its chip or slice."""
    command = [sys.executable, "-m", "bigbird_ja", "preflight", "--json", f"--config={config}"]
    command += [f"--batch_per_core={batch}", *flags, *(f"--set={item}" for item in sets)]
    log(f"{' '.join(flags)} {' '.join(sets)} ...")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    results = json.loads(done.stdout)
    (entry,) = results.get("topologies") or results["chips"]
    return dict(entry)


def step(
    sets: Sequence[str], batch: int, keys: Sequence[str], quick: bool, *flags: str
) -> dict[str, float | None]:
    """Return figures of 12 layers, or `quick` ones, from 2 and 4; None where it does not fit."""
    has_own = any(item.startswith("model.num_layers") for item in sets)
    counts: list[int | None] = [None] if has_own else [2, 4] if quick else [LAYERS]
    entries = [
        preflight([*BASE, *sets, *([f"model.num_layers={n}"] if n else [])], batch, *flags)
        for n in counts
    ]
    figures: dict[str, float | None] = {}
    for key in keys:
        values = [entry[key] for entry in entries if entry["fits"] and entry.get(key) is not None]
        if len(values) < len(entries):
            figures[key] = None
        elif len(values) == 2:
            figures[key] = values[0] + (values[1] - values[0]) / 2 * (LAYERS - 2)
        else:
            figures[key] = values[0]
    return figures


def against_ancestor(only: str, quick: bool) -> list[tuple[object, ...]]:
    """Measure figure, ratio to the ancestor, whether its limit is kept."""
    rows: list[tuple[object, ...]] = []
    for row in (row for row in ROWS if only in row.what):
        is_batch = row.key == "largest_batch_per_core"
        flags = [f"--chip={row.chip}", *(["--search_batch"] if is_batch else [])]
        value = step(row.sets, 2, [row.key], quick and not is_batch, *flags)[row.key]
        ratio = verdict = "not measured"
        if value is not None:
            is_kept = value >= row.must if is_batch else value <= row.must
            ratio, verdict = f"{value / row.ancestor:.2f} x", "kept" if is_kept else "MISSED"
        numbers = (_number(row.key, number) for number in (row.ancestor, value))
        rows.append((row.what, *numbers, ratio, verdict))
    return rows


def on_slices(only: str, quick: bool) -> list[tuple[object, ...]]:
    """Measure whole programs of slices with their all-reduces."""
    rows: list[tuple[object, ...]] = []
    keys = ("priced_cycles", "temp_bytes", "hbm_peak_bytes", "tokens_per_second")
    for name, sets in SLICES:
        words = " ".join(setting.partition(".")[2] for setting in sets)
        if only in f"slice {name} {words}":
            figures = step(sets, 2, keys, quick, f"--topology={name}")
            rows.append((name, words, *(_number(key, figures[key]) for key in keys)))
    return rows


def by_length() -> Iterator[dict[str, Any]]:
    """Price both shapes by machine code: cycles and dollars per token, memory, share of the peak.

    With as many tokens in a step nothing but attention's kernels depends on the length: these are
    compiled for each (`scripts.kernel_code`) and take the place of those in the step. Dollars are
    of spot chips in the cheapest zone, at the share of that rate that `plan` expects.
    """
    for chip in (CHIPS[name] for name in CODE_CHIPS):
        log(f"kernels for {chip.name} ...")
        command = [sys.executable, "-m", "scripts.kernel_code", chip.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        kernels = {(p["kind"], p["length"]): p["forward"] + p["backward"] for p in lines}
        spot = (load_prices().by_zone(f"{chip.name}-8", "spot")[0][1] or 0.0) / 8
        for shape, (preset, compiled_length, layers, counts, kinds) in SHAPES.items():
            batch, flag = TOKENS // compiled_length, f"--chip={chip.name}"
            few, many = (
                preflight([ADAMW, f"model.num_layers={count}"], batch, flag, config=preset)
                for count in counts
            )
            more = (layers - counts[0]) / (counts[1] - counts[0])
            compiled, temporary = (
                few[key] + more * (many[key] - few[key]) for key in ("code_cycles", "temp_bytes")
            )
            for length in LENGTHS:
                cycles = compiled + sum(
                    count * (kernels[kind, length] - kernels[kind, compiled_length])
                    for kind, count in kinds.items()
                )
                config = fitted(preset, [ADAMW, f"make_data.seq_length={length}"])
                seconds = cycles / chip.clock_hz
                flops = model_flops(*with_data(config), TOKENS // length)
                yield {
                    "shape": shape,
                    "chip": chip.name,
                    "length": length,
                    "cycles_per_token": cycles / TOKENS,
                    "temp_bytes": temporary,
                    "mfu": flops / seconds / chip.peak_flops,
                    "dollars": seconds / REACHED / TOKENS * 1e9 / 3600 * spot,
                }


def draw(points: Sequence[dict[str, Any]]) -> None:
    """Draw cycles per token against the length, one line for each shape and chip."""
    from bigbird_ja.report import charts

    figure = charts.new_figure(7, 4.4)
    axes = figure.add_subplot()
    for shape, style in zip(SHAPES, ("o", "s"), strict=True):
        for chip, line in zip(CODE_CHIPS, ("-", "--"), strict=True):
            here = [p for p in points if (p["shape"], p["chip"]) == (shape, chip)]
            lengths = [p["length"] for p in here]
            costs = [p["cycles_per_token"] for p in here]
            axes.plot(lengths, costs, f"{style}{line}", label=f"{shape}, {chip}")
    axes.set_xscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS])
    axes.set(xlabel="tokens in a sequence, 16,384 in a step", ylabel="cycles per token")
    axes.grid(alpha=0.3)
    charts.legend_below(figure)
    figure.savefig(PICTURE, dpi=150)


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key.endswith("cycles"):
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e9:.2f} GB" if key.endswith("bytes") else f"{value:,.0f}"


def main() -> None:
    """Measure what was requested and print a table for each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="extrapolate from 2 and 4 layers")
    parser.add_argument("--only", default="", help="rows with these words: 'slice', 'tokens', ...")
    options = parser.parse_args()
    if rows := against_ancestor(options.only, options.quick):
        print(table(rows, ("", "ancestor", "measured", "ratio", "limit")))
    if rows := on_slices(options.only, options.quick):
        print(table(rows, ("slice", "with", "cycles", "temporary", "peak", "tokens/s")))
    if options.only in "tokens":
        points = list(by_length())
        rows = [
            (p["shape"], p["chip"], f"{p['length']:,}", f"{p['cycles_per_token']:,.0f}")
            + (_number("temp_bytes", p["temp_bytes"]), f"{p['mfu']:.0%}", f"{p['dollars']:.2f}")
            for p in points
        ]
        header = ("shape", "chip", "tokens", "cycles/token", "temporary", "MFU", "$/G tokens")
        print(table(rows, header))
        draw(points)


if __name__ == "__main__":
    main()
