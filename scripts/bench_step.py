"""What the train step costs on a TPU core, against the ancestor: `make bench-step`.

  .venv/bin/python -m scripts.bench_step            # 12 layers as they are: an hour on two cores
  .venv/bin/python -m scripts.bench_step --quick    # 2 and 4 layers, drawn out to 12: ten minutes
  .venv-newest/bin/python -m scripts.bench_step --only "by machine code"    # make bench-code

BERT-base, 4,096 tokens, 2 sequences per core, 600 predictions, 32,000 pieces, AdamW; one core's
whole step in priced cycles (docs/design/preflight.md says what they are). The ancestor is
google-research/bigbird's own encoder, heads and gradient checkpointing, measured in the same way
(by machine code: scripts/ancestor_step.py).
A second table has whole slices, compiled with the sums over their devices, beside one device of
the same chip without them, and what sharded optimizer state and bfloat16 sums change.
Compilations are kept in ~/.cache/bigbird-ja, so a second run takes seconds. Writes a JSON file with
--output.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.model import implementation
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, machine_code, targets
from bigbird_ja.process import tensorflow_env
from bigbird_ja.process.console import log, table
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.lowered import LoweredStep

CYCLES, TEMP, BATCH = "priced_cycles", "temp_bytes", "largest_batch_per_core"
CODE = "code_cycles"  # where libtpu lists its code: `make bench-code`
NO_CHECKPOINTING = "training.gradient_checkpointing=false"
CHECKPOINTING = ("training.gradient_checkpointing=true", "model.hidden_dropout_prob=0.0")
INDEPENDENT = "model.random_pattern=independent"


@dataclass(frozen=True)
class Row:
    """One line of the table. `must` and `aim` are limits in the unit of `ancestor`."""

    what: str
    chip: str
    sets: tuple[str, ...]
    key: str
    ancestor: float
    must: float
    aim: float


ROWS: tuple[Row, ...] = (
    Row("v3, dropout 0.1", "v3", (NO_CHECKPOINTING,), CYCLES, 567e6, 295e6, 225e6),
    Row("v4, dropout 0.1", "v4", (NO_CHECKPOINTING,), CYCLES, 526e6, 0.50 * 526e6, 0.38 * 526e6),
    Row("v5e, dropout 0.1", "v5e", (NO_CHECKPOINTING,), CYCLES, 475e6, 0.50 * 475e6, 0.38 * 475e6),
    Row(
        "v3, independent pattern",
        "v3",
        (NO_CHECKPOINTING, INDEPENDENT),
        CYCLES,
        567e6,
        350e6,
        300e6,
    ),
    Row("v3 temp HBM", "v3", (NO_CHECKPOINTING,), TEMP, 10.95e9, 6.0e9, 4.5e9),
    Row("v3, checkpointing, dropout 0", "v3", CHECKPOINTING, CYCLES, 783e6, 400e6, 300e6),
    Row("v3 temp HBM, checkpointing", "v3", CHECKPOINTING, TEMP, 2.32e9, 1.4e9, 0.9e9),
    Row("v2, checkpointing: batch", "v2", CHECKPOINTING[:1], BATCH, 2, 8, 12),
    # Limits: 0.70 and 0.55 of what the step takes with attention left to XLA (81.6 M). The
    # ancestor's is of one layer taken twelve times (scripts/ancestor_step.py).
    Row(
        "v5e by machine code",
        "v5e",
        (NO_CHECKPOINTING,),
        CODE,
        284e6,
        0.70 * 81.6e6,
        0.55 * 81.6e6,
    ),
)
_BASE = (
    "model.random_pattern=rolled", "make_data.seq_length=4096", "tokenize.vocab_size=32000",
    "make_data.max_predictions_per_seq=600", "training.dtype=bfloat16",
)  # fmt: skip
LAYERS = 12
SHARDED, SHORT_SUMS = "training.optimizer_sharding=true", "training.gradient_sum_dtype=bfloat16"
# BERT-large: 340 M parameters, 302 M of them in its layers.
LARGE = (
    "model.num_layers=24", "model.hidden_size=1024", "model.num_attention_heads=16",
    "model.intermediate_size=4096",
)  # fmt: skip
# Slice, model (beside `_BASE` and NO_CHECKPOINTING), what is changed of its training. v7x where the
# compiler knows it.
SLICES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("v5e:1x1", (), ()), ("v5e:2x4", (), ()), ("v5e:2x4", (), (SHARDED,)),
    ("v5e:2x4", (), (SHORT_SUMS,)), ("v5e:2x4", (), (SHARDED, SHORT_SUMS)), ("v5e:4x8", (), ()),
    ("v6e:2x4", (), ()), ("v5p:2x2x1", (), ()), ("v4:2x2x1", (), ()), ("v3:2x2", (), ()),
    ("v7x:2x2x1", (), ()), ("v5e:2x4", LARGE, ()), ("v5e:2x4", LARGE, (SHARDED,)),
)  # fmt: skip


def config_of(sets: Sequence[str], layers: int) -> Config:
    """BERT-base with the row's settings."""
    config, _ = resolve_config(None, [*_BASE, f"model.num_layers={layers}", *sets])
    return complete_config(config)


class Measured:
    """Results by settings, layers, chip or slice, and batch, each asked for once."""

    def __init__(self, settings: estimate.Settings) -> None:
        self._settings = settings
        self._results: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._steps: dict[tuple[Any, ...], LoweredStep] = {}

    def __call__(self, sets: tuple[str, ...], layers: int, chip: str, batch: int) -> dict[str, Any]:
        return self.on(targets.of_chip(CHIPS[chip]), sets, layers, batch)

    def on(
        self, target: targets.Target, sets: tuple[str, ...], layers: int, batch: int
    ) -> dict[str, Any]:
        """The result for a slice, or one device."""
        key = (sets, layers, target.name, batch)
        if key not in self._results:
            log(f"{target.name}, {layers} layers, {batch} sequences, {' '.join(sets)} ...")
            config = implementation.resolved(config_of(sets, layers), "tpu", target.chip.name)
            way = config.model.attention_implementation
            step = (sets, layers, batch, target.devices, way)
            if step not in self._steps:
                self._steps[step] = estimate.trace(config, batch, target.devices)
            self._results[key] = estimate.examine(
                config, target, batch, self._settings, self._steps[step]
            )
        return self._results[key]


def value_of(row: Row, measured: Measured, quick: bool) -> float:
    """The measured figure of a row; `quick` draws 2 and 4 layers out to 12."""
    if row.key == BATCH:
        return _batch(row, measured, quick)
    if not quick:
        result = measured(row.sets, LAYERS, row.chip, 2)
        return float(result[row.key]) if result["fits"] else float("nan")
    two, four = (measured(row.sets, layers, row.chip, 2)[row.key] for layers in (2, 4))
    return drawn_out(two, four)


def drawn_out(two: float, four: float) -> float:
    """What 12 layers cost, where 2 and 4 cost this much."""
    return two + (four - two) / 2 * (LAYERS - 2)


def _batch(row: Row, measured: Measured, quick: bool) -> float:
    if not quick:
        first = measured(row.sets, LAYERS, row.chip, int(row.must))
        return estimate.largest_batch(
            lambda batch: measured(row.sets, LAYERS, row.chip, batch), first
        )
    # The peak is linear in the batch and in the layers: two of each.
    peaks = {
        batch: drawn_out(*(_peak(measured(row.sets, n, row.chip, batch)) for n in (2, 4)))
        for batch in (2, 4)
    }
    slope = (peaks[4] - peaks[2]) / 2
    return int(2 + (CHIPS[row.chip].hbm_bytes - peaks[2]) / slope)


def _peak(result: dict[str, Any]) -> float:
    return float(result["hbm_peak_bytes"])


def lines(rows: Sequence[Row], value: Callable[[Row], float]) -> list[dict[str, Any]]:
    """Every row with its figure, its ratio to the ancestor, and which limits it keeps."""
    found = []
    for row in rows:
        measured = value(row)
        better = (lambda a, b: a >= b) if row.key == BATCH else (lambda a, b: a <= b)
        found.append(
            {
                "what": row.what, "chip": row.chip, "key": row.key, "value": measured,
                "ancestor": row.ancestor, "ratio": measured / row.ancestor,
                "must": row.must, "aim": row.aim,
                "must_met": better(measured, row.must), "aim_met": better(measured, row.aim),
            }
        )  # fmt: skip
    return found


def show(found: Sequence[dict[str, Any]]) -> str:
    """The table for people."""

    def number(line: dict[str, Any], name: str) -> str:
        value = line[name]
        if line["key"] in (CYCLES, CODE):
            return f"{value / 1e6:.0f} M"
        return f"{value / 1e9:.2f} GB" if line["key"] == TEMP else f"{value:.0f}"

    return table(
        [
            (
                line["what"], number(line, "ancestor"), number(line, "value"),
                f"{line['ratio']:.2f} x", number(line, "must"), number(line, "aim"),
                "aim" if line["aim_met"] else "must" if line["must_met"] else "MISSED",
            )
            for line in found
        ],
        ("", "ancestor", "measured", "ratio", "must", "aim", "met"),
    )  # fmt: skip


def slices(measured: Measured, layers: int, only: str) -> list[dict[str, Any]]:
    """Every slice that the compiler knows, with its ratio to one device without sums."""
    known = targets.known_kinds(compile_lib.count_devices)
    found = []
    for name, model, sets in SLICES:
        if only not in f"{name} {_words(model, sets)}":
            continue
        if name.partition(":")[0] not in known:
            log(f"{name}: this libtpu does not know it")
            continue
        (target,) = targets.of_topologies([name], compile_lib.count_devices)
        base = (NO_CHECKPOINTING, *(model if layers == LAYERS else model[1:]))
        one = measured.on(targets.one_of(target), base, layers, 2)[CYCLES]
        result = measured.on(target, (*base, *sets), layers, 2)
        ratio = result[CYCLES] / one if one and result[CYCLES] else None
        found.append({"with": _words(model, sets), "ratio": ratio, **result})
    return found


def _words(model: tuple[str, ...], sets: tuple[str, ...]) -> str:
    names = [setting.partition(".")[2] for setting in sets]
    return " ".join(["BERT-large", *names] if model else names)


def show_slices(found: Sequence[dict[str, Any]]) -> str:
    """The table for people."""

    def number(line: dict[str, Any], key: str, unit: float, form: str) -> str:
        return "-" if line[key] is None else format(line[key] / unit, form)

    rows = [
        (
            line["topology"], line["with"], number(line, CYCLES, 1e6, ".1f"),
            number(line, "ratio", 1, ".3f"), number(line, TEMP, 1e9, ".2f"),
            number(line, "hbm_peak_bytes", 1e9, ".2f"), "yes" if line["fits"] else "no",
            number(line, "collective_bytes", 1e6, ".0f"),
            number(line, "collective_cycles", 1e6, ".1f"),
            number(line, "collective_link_ms", 1, ".1f"),
            number(line, "tokens_per_second", 1, ",.0f"),
        )
        for line in found
    ]  # fmt: skip
    return table(
        rows,
        (
            "slice", "with", "M cycles", "x one device", "temp GB", "peak GB", "fits",
            "MB between devices", "M of the cycles", "ms on links", "tokens/s",
        ),
    )  # fmt: skip


def _can_be_measured(row: Row) -> bool:
    libtpu = compile_lib.versions()["libtpu"]
    if row.key != CODE or machine_code.is_there(row.chip, libtpu):
        return True
    log(f"{row.what}: libtpu {libtpu} does not list it; make bench-code does")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 and 4 layers, drawn out to 12")
    parser.add_argument("--output", help="JSON file for the figures")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    args = parser.parse_args()
    tensorflow_env.prepare(os.environ)
    cache = compile_lib.default_cache_dir(dict(os.environ))
    rows = [row for row in ROWS if args.only in row.what and _can_be_measured(row)]
    by_code = any(row.key == CODE for row in rows)
    settings = estimate.Settings(cache_dir=cache, timeout=2 * 3600, log=log, machine_code=by_code)
    measured = Measured(settings)
    found = lines(rows, lambda row: value_of(row, measured, args.quick))
    if found:
        print(show(found))
    if args.quick:
        print("drawn out from 2 and 4 layers; slices below have 2 layers")
    of_slices = slices(measured, 2 if args.quick else LAYERS, args.only)
    if of_slices:
        print(show_slices(of_slices))
    if args.output:
        with open(args.output, "w", encoding="utf-8") as stream:
            json.dump([*found, *of_slices], stream, indent=1)


if __name__ == "__main__":
    main()
