"""Count the cycles of the train step on TPUs, relative to Google's BigBird: `make bench-step`.

    python -m scripts.bench_step                        # 12 layers, compiled whole: hours
    python -m scripts.bench_step --quick                # 2 and 4 layers, extrapolated to 12
    python -m scripts.bench_step --only "machine code"  # make bench-code
    python -m scripts.bench_step --only tokens          # bench-length: draws cost-by-length.png

Each measurement compiles the whole step of one core by `bigbird-ja preflight`. The model is a
BERT-base with 4,096 tokens, 2 sequences per core, 600 predictions, a vocabulary of 32,000 entries,
and AdamW. docs/design/preflight.md explains the unit "priced cycles". The ancestor is the encoder
of google-research/bigbird with its heads. The ancestor was measured in the same way by
scripts/ancestor_step.py of commit fdb3999. Only the rows named "checkpointing" use gradient
checkpointing. Two more tables compare slices and sequence lengths.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from bigbird_ja.accelerators.chips import CHIPS, Chip, find
from bigbird_ja.accelerators.measured import HOST_SECONDS
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.model import pattern
from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.model.kernels import backward_kernel, forward_kernel
from bigbird_ja.model.kernels.layer_shape import ORDERS, LayerShape, Order, tile_rows
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import estimate
from bigbird_ja.process.console import log, print_log, table
from scripts import clock
from scripts.learn import command
from testkit.configs import fitted, with_data

BENCH = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SHAPES = BENCH["by_length"]["shapes"]
LAYERS = 12
# Constants of `by_length`. TOKENS is the number of tokens in a step, and HEAD is the size of an
# attention head.
TOKENS = 16384
HEAD = 64
LENGTHS = (512, 1024, 4096, 8192, 16384)
CODE_CHIPS = ("v5e", "v6e")
PICTURE = "docs/images/cost-by-length.png"


def preflight(
    sets: Sequence[str], batch: int, *flags: str, config: str = "base-4096"
) -> dict[str, Any]:
    """Compile one step with `preflight`, and return the figures of its chip or slice."""
    words = [f"--config={config}", f"--batch_per_core={batch}", *flags]
    results = command("preflight", *words, *(f"--set={item}" for item in sets))
    (entry,) = results.get("topologies") or results["chips"]
    return dict(entry)


def step(
    sets: Sequence[str], batch: int, keys: Sequence[str], quick: bool, *flags: str
) -> dict[str, float | None]:
    """Return the figures named in `keys` for a step of 12 layers.

    If the step does not fit in HBM, each figure is None. With `quick`, the figures are extrapolated
    from 2 and 4 layers. If `sets` contains `model.num_layers`, this number of layers is used.
    """
    has_own = any(item.startswith("model.num_layers") for item in sets)
    counts: list[int | None] = [None] if has_own else [2, 4] if quick else [LAYERS]
    entries = [
        preflight([*BENCH["base"], *sets, *([f"model.num_layers={n}"] if n else [])], batch, *flags)
        for n in counts
    ]
    figures: dict[str, float | None] = {}
    for key in keys:
        values: list[Any] = [entry.get(key) if entry["fits"] else None for entry in entries]
        is_known = None not in values
        more = (values[-1] - values[0]) / 2 * (LAYERS - 2) if is_known else 0
        figures[key] = values[0] + more if is_known else None
    return figures


def against_ancestor(only: str, quick: bool) -> list[tuple[object, ...]]:
    """Measure the figures that have a limit, and compare them with those of Google's BigBird.

    Returns:
        A row for each figure: name, Google's figure, our figure, their ratio, and whether our
            figure is within the limit.
    """
    rows: list[tuple[object, ...]] = []
    for row in (row for row in BENCH["ancestor"] if only in row["what"]):
        key, is_batch = row["key"], row["key"] == "largest_batch_per_core"
        flags = [f"--chip={row['chip']}", *(["--search_batch"] if is_batch else [])]
        value = step(row.get("sets", ()), 2, [key], quick and not is_batch, *flags)[key]
        ratio = verdict = "not measured"
        if value is not None:
            is_kept = value >= row["must"] if is_batch else value <= row["must"]
            ratio = f"{value / row['ancestor']:.2f} x"
            verdict = "kept" if is_kept else "MISSED"
        numbers = (_number(key, number) for number in (row["ancestor"], value))
        rows.append((row["what"], *numbers, ratio, verdict))
    return rows


def on_slices(only: str, quick: bool) -> list[tuple[object, ...]]:
    """Measure a step on each slice, including the all-reduces between the chips of the slice."""
    rows: list[tuple[object, ...]] = []
    keys = ("priced_cycles", "temp_bytes", "hbm_peak_bytes", "tokens_per_second")
    for slice_ in BENCH["slices"]:
        name, sets = slice_["name"], slice_.get("sets", ())
        words = " ".join(setting.partition(".")[2] for setting in sets)
        if only in f"slice {name} {words}":
            figures = step(sets, 2, keys, quick, f"--topology={name}")
            rows.append((name, words, *(_number(key, figures[key]) for key in keys)))
    return rows


def by_length() -> Iterator[dict[str, Any]]:
    """Compute the cost per token of BigBird and ModernBERT at each length, from machine code.

    A step is compiled at one length. Steps of all lengths contain the same number of tokens, so
    only the attention kernels depend on the length. For the other lengths, the kernels are compiled
    alone (`kernel_shape`), and their cycles replace those of the step's kernels. Costs in dollars
    are those of spot chips in the cheapest zone, for the time that `plan` predicts from the cycles.
    """
    for chip in (CHIPS[name] for name in CODE_CHIPS):
        log(f"kernels for {chip.name} ...")
        kernels = {
            (what, length): sum(_kernel_cycles(chip, what, length, way) for way in (False, True))
            for what in ("rolled", "local", "full")
            for length in LENGTHS
        }
        spot = (load_prices().list_zones(find(f"{chip.name}-8"), "spot")[0][1] or 0.0) / 8
        for name, shape in SHAPES.items():
            few, many = (
                preflight(
                    [*BENCH["by_length"]["sets"], f"model.num_layers={count}"],
                    TOKENS // shape["length"],
                    f"--chip={chip.name}",
                    config=shape["preset"],
                )
                for count in shape["compiled"]
            )
            least, most = shape["compiled"]
            more = (shape["layers"] - least) / (most - least)
            compiled, temporary, milliseconds = (
                few[key] + more * (many[key] - few[key])
                for key in ("code_cycles", "temp_bytes", "step_ms")
            )
            expected = (milliseconds / 1e3 - HOST_SECONDS) * chip.clock_hz / compiled
            for length in LENGTHS:
                cycles = compiled + sum(
                    count * (kernels[kind, length] - kernels[kind, shape["length"]])
                    for kind, count in shape["kinds"].items()
                )
                sets = [*BENCH["by_length"]["sets"], f"make_data.seq_length={length}"]
                config = fitted(shape["preset"], sets)
                seconds = cycles / chip.clock_hz
                flops = count_model_flops(*with_data(config), TOKENS // length)
                yield {
                    "shape": name,
                    "chip": chip.name,
                    "length": length,
                    "cycles_per_token": cycles / TOKENS,
                    "temp_bytes": temporary,
                    "mfu": flops / seconds / chip.peak_flops,
                    "dollars": seconds * expected / TOKENS * 1e9 / 3600 * spot,
                }


def kernel_shape(what: str, length: int, backward: bool) -> LayerShape:
    """Return the shape of a base model's attention layer, as the package's kernels need it.

    Args:
        what: "rolled" for layers of BigBird, "full" for global layers of ModernBERT, "local" for
            local layers of ModernBERT. As in the presets, only ModernBERT's layers separate the
            documents that share a sequence.
        length: tokens of a sequence.
        backward: whether to return the shape for the kernel of the gradients.
    """
    heads, num_shifts = 768 // HEAD, None
    order: Order | None = ORDERS[what][backward]
    reach = 64 if what == "local" else None
    rows = tile_rows(length, reach)
    if what == "rolled":
        sets = [f"make_data.seq_length={length}", f"model.num_attention_heads={heads}"]
        plans = pattern.random_plan(fitted("base-4096", sets), length)
        rows, num_shifts = (256, None) if plans is None else (128, plans.shape[2])
        order = None if plans is None else order
    sizes = TOKENS // length, length // rows, heads, HEAD, rows
    has_documents = what != "rolled"
    return LayerShape(*sizes, num_shifts, has_documents, "bfloat16", reach, backward, order)


def _kernel_cycles(chip: Chip, what: str, length: int, backward: bool) -> float:
    """Count the cycles of one layer's attention kernel for `TOKENS` tokens."""
    shape = kernel_shape(what, length, backward)
    arrays: list[Any] = [(shape.sequence, shape.dtype)] * (5 if shape.is_backward else 3)
    arrays += [(shape.statistics, "float32")] if shape.is_backward else []
    arrays += [(shape.key_marks, "int32" if shape.has_documents else "float32")]
    arrays += [(shape.query_marks, "int32")] if shape.has_documents else []
    arrays += [(shape.bounds, "int32")] if shape.runs else []
    arrays += [((shape.heads * shape.num_shifts,), "int32")] if shape.num_shifts else []
    make = backward_kernel.backward if shape.is_backward else forward_kernel.forward
    trips = [estimate.average_trips(shape, estimate.STATED_LENGTHS)[0]] if shape.runs else []
    target = compiler.find_chip(chip.name)
    parts = clock.count(clock.lower(make(shape), arrays, target), target, trips=trips)
    return parts["rest"]["kernels"] * chip.clock_hz / 1e3


def draw(points: Sequence[dict[str, Any]]) -> None:
    """Draw cycles per token against the length, one line for each shape and chip."""
    from bigbird_ja.report import charts

    figure = charts.make_figure(7, 4.4)
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
    charts.add_legend_below(figure)
    figure.savefig(PICTURE, dpi=150)


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key.endswith("cycles"):
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e9:.2f} GB" if key.endswith("bytes") else f"{value:,.0f}"


def main() -> None:
    """Run the requested measurements, and print a table for each kind."""
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
    with print_log():
        main()
