"""Small train steps with recorded costs.

The steps have two layers and are compiled by the real TPU compiler, each in a quarter of a minute
on an idle core. recorded_cost.json contains an entry for each version of libtpu in the locks.
`python -m tests.preflight.small_steps` writes the entry of the installed version. A commit that
changes a cost must also change the record. If libtpu lists machine code, the entry also contains
the cycles of smaller steps, which are counted in the machine code.
"""

import importlib.metadata
import json
from pathlib import Path

import pytest

from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate
from testkit.configs import fitted, with_data

pytest.importorskip("libtpu", reason="the TPU compiler comes with `make install-all`")

RECORD = Path(__file__).with_name("recorded_cost.json")
KEYS = ("priced_cycles", "temp_bytes")
# Name of a step of two sequences on v5e. If libtpu lists its machine code, the cycles that are
# counted in the code are recorded.
BY_CODE, CODE_CHIP = "by code", "v5e"
CODE_KEYS = ("code_cycles", *KEYS)
TAKES_KERNELS = tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) >= (0, 7)
KERNEL_BY_CODE = "by code, with the kernels"  # `BY_CODE` with attention in kernels

_SIZE = (
    *("model.num_layers=2", "model.hidden_size=256", "model.num_attention_heads=4"),
    *("model.intermediate_size=1024", "tokenize.vocab_size=2048", "make_data.seq_length=2048"),
    "make_data.max_predictions_per_seq=128",
)
TINY = (
    *("model.hidden_size=128", "model.num_attention_heads=2", "model.intermediate_size=512"),
    *("tokenize.vocab_size=1024", "make_data.seq_length=1024"),
    "make_data.max_predictions_per_seq=64",
)
STEPS = {
    "default": (),
    "independent": ("model.random_pattern=independent",),
    "checkpointed": ("training.gradient_checkpointing=true", "model.hidden_dropout_prob=0.0"),
}


def measure(name):
    """Return the priced cycles and temporary bytes of a step in `STEPS`, on v3."""
    config = fitted(None, [*_SIZE, *STEPS[name]])
    target = compile_lib.find_chip("v3")
    result = estimate.examine(*with_data(config), target, 2, with_code=False)
    return {key: getattr(result, key) for key in KEYS}


def lists_code():
    """Return whether the installed libtpu lists its machine code."""
    return compile_lib.lists_code(CODE_CHIP, compiler())


def measure_by_code(name=BY_CODE, layers=2):
    """Return all figures of a step whose cycles are counted in its machine code.

    With `layers=1` the only layer would be the last one, whose MLP runs only for the predictions.
    """
    way = "kernel" if name == KERNEL_BY_CODE else "xla"
    sets = [*TINY, f"model.num_layers={layers}", f"model.attention_implementation={way}"]
    config = fitted(None, sets)
    return estimate.examine(*with_data(config), compile_lib.find_chip(CODE_CHIP), 2)


def recorded():
    """Return the recorded figures of each step, by version of libtpu."""
    return dict(json.loads(RECORD.read_text()))


def compiler():
    """Return the version of the installed libtpu."""
    return importlib.metadata.version("libtpu")


def main():
    measured = {name: measure(name) for name in STEPS}
    if lists_code():
        for name in (BY_CODE, KERNEL_BY_CODE):
            result = measure_by_code(name)
            measured[name] = {key: getattr(result, key) for key in CODE_KEYS}
    text = json.dumps(recorded() | {compiler(): measured}, indent=1)
    RECORD.write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
