"""Price the attention kernels by the machine code that the TPU compiler generates for them.

    python -m scripts.kernel_code v5e  # half a minute on one core; a line of JSON for each

Cycles of one layer of a base model (12 heads of 64, bfloat16) for 16,384 tokens, in sequences of
each length: BigBird's layers (`rolled`; full attention of 512 tokens), ModernBERT's global layers
(`full`) and local layers. Only these two keep documents apart, as in the presets; the document
lengths are assumed ones. Needs libtpu 0.0.42 or later.

The orders of work in `model.kernels.layer_shape.ORDERS` were found by a search that commit
485a8350 has.
"""

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.model import pattern
from bigbird_ja.model.kernels.layer_shape import ORDERS, LayerShape, Order, tile_rows
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import estimate, machine_code, roofline
from bigbird_ja.process import console
from bigbird_ja.settings.resolve import base_layers, given_layers, resolve_config

KINDS = ("rolled", "local", "full")
LENGTHS, TOKENS = (512, 1024, 4096, 8192, 16384), 16384
WIDTH, REACH = 768, 64


def layer_shape(kind: str, head_size: int, length: int, backward: bool) -> Any:
    """Return the layer whose kernel is priced, with the package's tiles and order of work."""
    heads, num_shifts = WIDTH // head_size, None
    order: Order | None = ORDERS[kind][backward]
    reach = REACH if kind == "local" else None
    rows = tile_rows(length, reach)
    if kind == "rolled":
        sets = {"make_data.seq_length": length, "model.num_attention_heads": heads}
        config, _ = resolve_config([*base_layers("base-4096"), *given_layers(sets)])
        plans = pattern.random_plan(config, length)
        if plans is None:
            rows, order = 256, None
        else:
            rows, num_shifts = 128, plans.shape[2]
    sizes = TOKENS // length, length // rows, heads, head_size, rows
    return LayerShape(*sizes, num_shifts, kind != "rolled", "bfloat16", reach, backward, order)


def given(shape: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return shapes and dtypes of the kernel's arguments."""
    arrays = [(shape.sequence, shape.dtype)] * (5 if shape.is_backward else 3)
    arrays += [(shape.statistics, "float32")] if shape.is_backward else []
    arrays += [(shape.key_marks, "int32" if shape.has_documents else "float32")]
    arrays += [(shape.query_marks, "int32")] if shape.has_documents else []
    arrays += [(shape.bounds, "int32")] if shape.runs else []
    return arrays + ([((shape.heads * shape.num_shifts,), "int32")] if shape.num_shifts else [])


def cycles(shape: Any, chip_name: str, directory: str) -> float | None:
    """Count a kernel's cycles as `preflight.roofline` does.

    None if the compiler refuses it or the count fails.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    from bigbird_ja.model.kernels import backward_kernel, forward_kernel

    chip = CHIPS[chip_name]
    place = SingleDeviceSharding(compiler.devices_of(chip.topology, {})[0])
    arrays = [jax.ShapeDtypeStruct(*each, sharding=place) for each in given(shape)]
    try:
        make = backward_kernel.backward if shape.is_backward else forward_kernel.forward
        jax.jit(make(shape)).lower(*arrays).compile()
    except jax.errors.JaxRuntimeError as error:
        console.log(f"{shape}: {str(error).splitlines()[0]}")
        return None
    trips = [estimate.mean_trips(shape, estimate.STATED_LENGTHS)[0]] if shape.runs else []
    codes = machine_code.collect(directory, trips)
    for file in Path(directory).iterdir():
        file.unlink()
    (code,) = (code for name, code in codes.items() if name.startswith("tpu_custom_call"))
    products = code.matmuls * machine_code.MATMUL_FLOPS[chip.name] / chip.peak_flops
    waits = code.steps * roofline.STEP_SECONDS * chip.clock_hz
    return max(code.cycles, products * chip.clock_hz) + waits if code.is_counted else None


def main() -> None:
    """Price the kernels of one chip, forward and backward."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("chip")
    parser.add_argument("--size", type=int, default=64, help="size of a head")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= compiler.ENVIRONMENT
        os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        for kind, length in itertools.product(KINDS, LENGTHS):
            forward, backward = (
                cycles(layer_shape(kind, options.size, length, way), options.chip, directory)
                for way in (False, True)
            )
            line = {"kind": kind, "length": length, "forward": forward, "backward": backward}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
