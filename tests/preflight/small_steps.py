"""Small train steps whose cost is on record: `python -m tests.preflight.small_steps` records anew.

Two layers, compiled by the real TPU compiler; a quarter of a minute each on an idle core. The
record, recorded_cost.json, has an entry for each version of libtpu in the locks, written by running
this in that environment. It changes in the same commit as what changes the cost.
"""

from __future__ import annotations

import importlib.metadata
import json
import os

from bigbird_ja import config as config_lib
from bigbird_ja.chips import CHIPS
from bigbird_ja.preflight import estimate, targets

RECORD = os.path.join(os.path.dirname(__file__), "recorded_cost.json")
KEYS = ("priced_cycles", "temp_bytes")

_SIZE = (
    "model.num_layers=2", "model.hidden_size=256", "model.num_attention_heads=4",
    "model.intermediate_size=1024", "tokenize.vocab_size=2048", "make_data.seq_length=2048",
    "make_data.max_predictions_per_seq=128",
)  # fmt: skip
STEPS: dict[str, tuple[str, ...]] = {
    "default": (),
    "independent": ("model.random_pattern=independent",),
    "checkpointed": ("training.gradient_checkpointing=true", "model.hidden_dropout_prob=0.0"),
}


def config_of(name: str) -> config_lib.Config:
    """The config of one of `STEPS`."""
    config, _ = config_lib.resolve(None, [*_SIZE, *STEPS[name]])
    return config_lib.without_data_set(config)


def measure(name: str) -> dict[str, int]:
    """Priced cycles and temporary bytes on v3, two sequences."""
    result = estimate.examine(config_of(name), targets.of_chip(CHIPS["v3"]), 2, estimate.Settings())
    return {key: result[key] for key in KEYS}


def recorded() -> dict[str, dict[str, dict[str, int]]]:
    """Version of libtpu -> step -> figures."""
    with open(RECORD, encoding="utf-8") as stream:
        record: dict[str, dict[str, dict[str, int]]] = json.load(stream)
    return record


def compiler() -> str:
    """The version of libtpu that is installed."""
    return importlib.metadata.version("libtpu")


def main() -> None:
    record = recorded() | {compiler(): {name: measure(name) for name in STEPS}}
    with open(RECORD, "w", encoding="utf-8") as stream:
        json.dump(record, stream, indent=1)
        stream.write("\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
