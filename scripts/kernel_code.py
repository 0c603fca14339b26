"""Prices attention's kernels alone, by the machine code that the TPU compiler makes of them.

    python -m scripts.kernel_code v5e  # half a minute on one core; a line of JSON for each

Bundles of one layer of a base model (12 heads of 64, bfloat16) for 16,384 tokens, in sequences of
each length: BigBird's layers (`rolled`; full attention of 512 tokens), ModernBERT's global ones
(`full`) and local ones. Documents, of stated lengths, stand apart in these two alone, as in the
presets. Needs libtpu 0.0.42 or later.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from bigbird_ja.accelerators import CHIPS
from bigbird_ja.preflight import compile_child, documents, machine_code

LENGTHS, TOKENS = (512, 1024, 4096, 8192, 16384), 16384
HEADS, SIZE, REACH = 12, 64, 64


def _bundles(chip: str, kind: str, length: int, directory: str, backward: bool) -> float:
    import jax
    from jax.sharding import SingleDeviceSharding

    from bigbird_ja.model import pattern
    from bigbird_ja.model.implementation import tile_rows
    from bigbird_ja.model.kernels import backward_kernel, forward_kernel
    from bigbird_ja.model.kernels.tiles import LayerShape
    from bigbird_ja.settings.resolve import resolve_config

    reach, shifts = (REACH if kind == "local" else None), None
    rows, apart = tile_rows(length, reach), kind != "rolled"
    config, _ = resolve_config("base-4096", [f"make_data.seq_length={length}"])
    plans = pattern.random_plan(config, length)
    if kind == "rolled" and plans is not None:
        shifts, rows = tuple(tuple(map(int, head)) for head in plans[0]), 128
    batch, tiles = TOKENS // length, length // rows
    shape = LayerShape(batch, tiles, HEADS, SIZE, rows, shifts, apart, "bfloat16", reach)
    given = [(shape.sequence, "bfloat16")] * (5 if backward else 3)
    given += [(shape.statistics, "float32")] if backward else []
    given += [(shape.key_marks, "int32" if apart else "float32")]
    given += [(shape.query_marks, "int32")] if apart else []
    given += [(shape.bounds, "int32")] if shape.runs else []
    place = SingleDeviceSharding(compile_child.devices_of(CHIPS[chip].topology, {})[0])
    arrays = [jax.ShapeDtypeStruct(*each, sharding=place) for each in given]
    kernel = (backward_kernel.backward if backward else forward_kernel.forward)(shape)
    jax.jit(kernel).lower(*arrays).compile()
    trips = documents.trips(shape, documents.STATED)[0] if shape.runs else ()
    codes = machine_code.collect(directory, trips)
    for file in Path(directory).iterdir():
        file.unlink()
    (code,) = (code for name, code in codes.items() if name.startswith("tpu_custom_call"))
    assert code.is_counted
    return code.cycles


def main() -> None:
    """Compiles the kernels for one chip, forward and backward."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= compile_child.ENVIRONMENT
        os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        for kind in ("rolled", "full", "local"):
            for length in LENGTHS:
                both = [
                    _bundles(sys.argv[1], kind, length, directory, way) for way in (False, True)
                ]
                line = {"kind": kind, "length": length, "forward": both[0], "backward": both[1]}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
