"""Prices attention's kernels alone, by the machine code that the TPU compiler makes of them.

    python -m scripts.kernel_code v5e  # half a minute on one core; a line of JSON for each
    python -m scripts.kernel_code search v5e v6e --tried FILE  # other orders: hours
    python -m scripts.kernel_code search --tried FILE  # the table of what was tried

Cycles of one layer of a base model (12 heads of 64, bfloat16) for 16,384 tokens, in sequences of
each length: BigBird's layers (`rolled`; full attention of 512 tokens), ModernBERT's global ones
(`full`) and local ones. Documents, of stated lengths, stand apart in these two alone, as in the
presets. Needs libtpu 0.0.42 or later.

A search takes sequences of 8,192, heads of 64 and of 128. From the order of work that the package
has (`kernels.Order`) it changes one thing at a time, and goes on from what is cheaper. What
FILE holds is not compiled again, so the same command goes on where it stopped. Once what wins
stands in `kernels.ORDERS`, the tests of tests/model compare its values and gradients with dense
attention's.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bigbird_ja.accelerators import CHIPS
from bigbird_ja.model import pattern
from bigbird_ja.model.kernels import ORDERS, LayerShape, Order, tile_rows
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import estimate, machine_code, roofline
from bigbird_ja.process import console
from bigbird_ja.settings.resolve import resolve_config

LENGTHS, TOKENS, SEARCHED = (512, 1024, 4096, 8192, 16384), 16384, 8192
WIDTH, REACH = 768, 64
CHOICES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "rolled": {"at_once": (1, 2, 3, 4, 6, 8), "lag": (1, 2, 4, 6, 8), "rows": (128,)},
    "local": {"at_once": (1, 2, 3, 4, 8, 16), "lag": (1, 2, 4), "rows": (128, 256)},
    "full": {"at_once": (2, 4, 8, 16), "lag": (1, 2, 4), "rows": (128, 256, 512)},
}


@dataclass(frozen=True)
class Candidate:
    """Names a kernel, and an order of its work."""

    chip: str
    kind: str  # rolled, full or local
    size: int  # of a head
    backward: bool
    rows: int  # of a tile
    at_once: int  # of `kernels.Order`, as the next
    lag: int


def present(chip: str, kind: str, size: int, backward: bool, length: int) -> Candidate:
    """Return what the package has."""
    rows = 128 if kind == "rolled" else tile_rows(length, REACH if kind == "local" else None)
    order = ORDERS[kind][backward]
    return Candidate(chip, kind, size, backward, rows, order.at_once, order.lag)


def shape_of(one: Candidate, batch: int, length: int) -> Any:
    """Return the layer of which a candidate is a kernel."""
    heads, shifts = WIDTH // one.size, None
    sets = [f"make_data.seq_length={length}", f"model.num_attention_heads={heads}"]
    plans = pattern.random_plan(resolve_config("base-4096", sets)[0], length)
    if one.kind == "rolled" and plans is not None:
        shifts = tuple(tuple(map(int, head)) for head in plans[0])
    rows = 256 if one.kind == "rolled" and plans is None else one.rows
    reach = REACH if one.kind == "local" else None
    sizes = batch, length // rows, heads, one.size, rows
    seen = shifts, one.kind != "rolled", "bfloat16", reach
    order = None if one.kind == "rolled" and plans is None else Order(one.at_once, one.lag)
    return LayerShape(*sizes, *seen, one.backward, order)


def given(shape: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return shapes and dtypes of the kernel's arguments."""
    arrays = [(shape.sequence, shape.dtype)] * (5 if shape.is_backward else 3)
    arrays += [(shape.statistics, "float32")] if shape.is_backward else []
    arrays += [(shape.key_marks, "int32" if shape.has_documents else "float32")]
    arrays += [(shape.query_marks, "int32")] if shape.has_documents else []
    return arrays + ([(shape.bounds, "int32")] if shape.runs else [])


def cycles(one: Candidate, length: int, directory: str) -> float | None:
    """Count a kernel as `preflight.roofline` does; None: it is refused, or cannot be counted."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from bigbird_ja.model.kernels import backward_kernel, forward_kernel

    shape = shape_of(one, TOKENS // length, length)
    place = SingleDeviceSharding(compiler.devices_of(CHIPS[one.chip].topology, {})[0])
    arrays = [jax.ShapeDtypeStruct(*each, sharding=place) for each in given(shape)]
    try:
        make = backward_kernel.backward if one.backward else forward_kernel.forward
        jax.jit(make(shape)).lower(*arrays).compile()
    except jax.errors.JaxRuntimeError as error:
        console.log(f"{one}: {str(error).splitlines()[0]}")
        return None
    trips = [estimate.mean_trips(shape, estimate.STATED_LENGTHS)[0]] if shape.runs else []
    codes = machine_code.collect(directory, trips)
    for file in Path(directory).iterdir():
        file.unlink()
    (code,) = (code for name, code in codes.items() if name.startswith("tpu_custom_call"))
    chip = CHIPS[one.chip]
    products = code.matmuls * machine_code.MATMUL_FLOPS[chip.name] / chip.peak_flops
    waits = code.steps * roofline.STEP_SECONDS * chip.clock_hz
    return max(code.cycles, products * chip.clock_hz) + waits if code.is_counted else None


class Tried:
    """Holds what each candidate costs, in a file of JSON lines."""

    def __init__(self, file: Path, directory: str) -> None:
        """Read what was tried."""
        self._file, self._directory = file, directory
        self.prices: dict[Candidate, float | None] = {}
        for line in file.read_text("utf-8").splitlines() if file.exists() else []:
            one = json.loads(line)
            self.prices |= {Candidate(**one["candidate"]): one["cycles"]}

    def price(self, one: Candidate) -> float:
        """Compile what was not tried."""
        if one not in self.prices:
            self.prices[one] = cycles(one, SEARCHED, self._directory)
            with self._file.open("a", encoding="utf-8") as stream:
                line = {"candidate": asdict(one), "cycles": self.prices[one]}
                stream.write(json.dumps(line) + "\n")
        return self.prices[one] or float("inf")

    def best(self, one: Candidate) -> Candidate:
        """Take the next choice of one thing for as long as it makes the kernel cheaper."""
        before = None
        while one != before:
            before = one
            for name, values in CHOICES[one.kind].items():
                place = values.index(getattr(one, name))
                for value in values[max(place - 1, 0) : place + 2]:
                    other: dict[str, Any] = {name: value}
                    one = min(one, replace(one, **other), key=self.price)
        return one


def search(chips: Sequence[str], kinds: Sequence[str], file: Path, directory: str) -> None:
    """Look for better orders; prints all that was tried."""
    tried = Tried(file, directory)
    firsts: dict[tuple[str, bool], Candidate] = {}
    for chip, kind, size, backward in itertools.product(chips, kinds, (64, 128), (False, True)):
        first = firsts.get((kind, backward)) or present(chip, kind, size, backward, SEARCHED)
        firsts[kind, backward] = first
        tried.best(replace(first, chip=chip, size=size))
    by_kernel: dict[tuple[str, ...], list[str]] = {}
    for one, cost in sorted(tried.prices.items(), key=lambda pair: pair[1] or float("inf")):
        way = "backward" if one.backward else "forward"
        order = f"{one.rows} x {one.at_once}, {one.lag}: "
        order += f"{cost / 1000:,.0f}" if cost else "refused"
        by_kernel.setdefault((one.chip, one.kind, str(one.size), way), []).append(order)
    rows = [(*kernel, "; ".join(orders)) for kernel, orders in sorted(by_kernel.items())]
    titles = "chip", "kind", "head", "kernel", "rows x at once, lag: thousands of cycles"
    print(console.table(rows, titles))


def main() -> None:
    """Compiles the kernels for one chip, forward and backward; or searches."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("chips", nargs="*", help="a chip; or `search` and chips")
    parser.add_argument("--tried", type=Path, default=Path("out/kernel-orders.jsonl"))
    parser.add_argument("--size", type=int, default=64, help="of a head; not of a search")
    parser.add_argument("--kind", action="append", choices=CHOICES, help="of a search")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= compiler.ENVIRONMENT
        os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        if options.chips[:1] == ["search"]:
            options.tried.parent.mkdir(parents=True, exist_ok=True)
            kinds = options.kind or list(CHOICES)
            return search(options.chips[1:], kinds, options.tried, directory)
        for kind, length in itertools.product(CHOICES, LENGTHS):
            both = [
                cycles(
                    present(options.chips[0], kind, options.size, way, length), length, directory
                )
                for way in (False, True)
            ]
            line = {"kind": kind, "length": length, "forward": both[0], "backward": both[1]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
