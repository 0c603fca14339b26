"""Prices attention's kernels alone, by the machine code that the TPU compiler makes of them.

    python -m scripts.kernel_code v5e  # half a minute on one core; a line of JSON for each
    python -m scripts.kernel_code search v5e v6e --tried FILE  # other orders: hours
    python -m scripts.kernel_code search --tried FILE  # the table of what was tried

Bundles of one layer of a base model (12 heads of 64, bfloat16) for 16,384 tokens, in sequences of
each length: BigBird's layers (`rolled`; full attention of 512 tokens), ModernBERT's global ones
(`full`) and local ones. Documents, of stated lengths, stand apart in these two alone, as in the
presets. Needs libtpu 0.0.42 or later.

A search takes sequences of 8,192, heads of 64 and of 128. From the order of work that the package
has (`tiles.Order`) it changes one thing at a time, and goes on from what is cheaper. What FILE
holds is not compiled again, so the same command goes on where it stopped. Values and gradients of
what wins, by Pallas' interpreter, are compared with dense attention's.
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
from bigbird_ja.preflight import compile_child, documents, machine_code
from bigbird_ja.process import console

LENGTHS, TOKENS, SEARCHED = (512, 1024, 4096, 8192, 16384), 16384, 8192
WIDTH, REACH = 768, 64
ENOUGH = 0.98  # of the present price: what wins less changes nothing
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
    at_once: int  # of `tiles.Order`, as the next
    lag: int


def present(chip: str, kind: str, size: int, backward: bool, length: int) -> Candidate:
    """Return what the package has."""
    from bigbird_ja.model.implementation import tile_rows
    from bigbird_ja.model.kernels.tiles import ORDERS

    rows = 128 if kind == "rolled" else tile_rows(length, REACH if kind == "local" else None)
    order = ORDERS["apart" if kind == "full" else kind][backward]
    return Candidate(chip, kind, size, backward, rows, order.at_once, order.lag)


def shape_of(one: Candidate, batch: int, length: int) -> Any:
    """Return the layer of which a candidate is a kernel; from now on the order is its own."""
    from bigbird_ja.model import pattern
    from bigbird_ja.model.kernels import tiles
    from bigbird_ja.settings.resolve import resolve_config

    heads, shifts = WIDTH // one.size, None
    sets = [f"make_data.seq_length={length}", f"model.num_attention_heads={heads}"]
    plans = pattern.random_plan(resolve_config("base-4096", sets)[0], length)
    if one.kind == "rolled" and plans is not None:
        shifts = tuple(tuple(map(int, head)) for head in plans[0])
    rows = 256 if one.kind == "rolled" and plans is None else one.rows
    reach = REACH if one.kind == "local" else None
    sizes = batch, length // rows, heads, one.size, rows
    shape = tiles.LayerShape(*sizes, shifts, one.kind != "rolled", "bfloat16", reach, one.backward)
    orders = list(tiles.ORDERS[shape.kind])
    if shape.kind != "full":
        orders[one.backward] = tiles.Order(one.at_once, one.lag)
        tiles.ORDERS[shape.kind] = (orders[0], orders[1])
    return shape


def given(shape: Any) -> list[tuple[tuple[int, ...], str]]:
    """Return shapes and dtypes of the kernel's arguments."""
    arrays = [(shape.sequence, shape.dtype)] * (5 if shape.is_backward else 3)
    arrays += [(shape.statistics, "float32")] if shape.is_backward else []
    arrays += [(shape.key_marks, "int32" if shape.has_documents else "float32")]
    arrays += [(shape.query_marks, "int32")] if shape.has_documents else []
    return arrays + ([(shape.bounds, "int32")] if shape.runs else [])


def kernel_of(shape: Any, interpret: bool = False) -> Any:
    """Return the kernel of a layer, of its direction."""
    from bigbird_ja.model.kernels import backward_kernel, forward_kernel

    make = backward_kernel.backward if shape.is_backward else forward_kernel.forward
    return make(shape, interpret)


def bundles(one: Candidate, length: int, directory: str) -> float | None:
    """Compile a kernel; None where the compiler refuses it, or its code cannot be counted."""
    import jax
    from jax.sharding import SingleDeviceSharding

    shape = shape_of(one, TOKENS // length, length)
    place = SingleDeviceSharding(compile_child.devices_of(CHIPS[one.chip].topology, {})[0])
    arrays = [jax.ShapeDtypeStruct(*each, sharding=place) for each in given(shape)]
    try:
        jax.jit(kernel_of(shape)).lower(*arrays).compile()
    except jax.errors.JaxRuntimeError as error:
        console.log(f"{one}: {str(error).splitlines()[0]}")
        return None
    trips = documents.trips(shape, documents.STATED)[0] if shape.runs else ()
    codes = machine_code.collect(directory, trips)
    for file in Path(directory).iterdir():
        file.unlink()
    (code,) = (code for name, code in codes.items() if name.startswith("tpu_custom_call"))
    return code.cycles if code.is_counted else None


def error_of(one: Candidate) -> float:
    """Return how far a kernel's values, in float32, are from dense attention's."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    shape = shape_of(one, 1, SEARCHED)
    shifts = None if shape.shifts is None else ((2, 3), (4, 2))[: shape.group]
    tiles, rows, heads = one.at_once + 9, one.rows, shape.group
    shape = replace(shape, tiles=tiles, heads=heads, shifts=shifts, dtype="float32")
    random, length = np.random.default_rng(0), tiles * rows
    documents = np.sort(random.integers(0, 3, length)) * shape.has_documents
    place = np.arange(length)
    tile, block = place // rows, place // (rows // 2)
    seen = np.repeat((documents[:, None] == documents)[None], heads, axis=0)
    if shape.reach is not None:
        seen &= abs(place[:, None] - place) <= shape.reach
    for head, (s, other) in enumerate(shifts or ()):
        turned = [1 + (tile + shift - 1) % (tiles - 1) for shift in (s, other)]
        seen[head] = (tile[:, None] == tile) | (abs(block[:, None] - block) == 1)
        seen[head] |= np.isin(0, tile) & ((tile[:, None] == 0) | (tile == 0))
        seen[head] |= (turned[0][:, None] == tile) | (turned[1][:, None] == tile)

    def dense(*tiled: Any) -> Any:
        query, key, value = (
            each.reshape(tiles, heads, one.size, rows)
            .transpose(1, 0, 3, 2)
            .reshape(heads, length, -1)
            for each in tiled
        )
        scores = jnp.where(seen, query @ key.transpose(0, 2, 1) * np.log(2), -1e9)
        context = jax.nn.softmax(scores) @ value
        sums = jax.nn.logsumexp(scores, axis=-1) / np.log(2)
        context = context.reshape(heads, tiles, rows, -1).transpose(1, 0, 3, 2)
        return context.reshape(shape.sequence), sums.reshape(heads, tiles, rows)

    query, *others = (random.normal(size=shape.sequence).astype("float32") for _ in range(4))
    inputs, upstream = [query / 8, *others[:2]], others[2]
    (context, sums), gradient = jax.vjp(dense, *inputs)
    statistics = sums.transpose(1, 0, 2).reshape(shape.statistics)
    marks: list[Any] = [np.zeros(shape.key_marks, "float32")]
    if shape.has_documents:
        column = np.append(documents, np.full(rows, -1)).reshape(*shape.key_marks[:2], 1)
        marks = [np.broadcast_to(column, shape.key_marks).astype("int32")]
        marks += [documents.reshape(shape.query_marks).astype("int32")]
    if one.backward:
        found = kernel_of(shape, True)(*inputs, context, upstream, statistics, *marks)
        wanted = gradient((upstream, jnp.zeros_like(sums)))
    else:
        found, wanted = kernel_of(shape, True)(*inputs, *marks), (context, statistics)
    pairs = zip(found, wanted, strict=True)
    return max(float(jnp.max(jnp.abs(one - other))) for one, other in pairs)


class Tried:
    """Holds what each candidate costs, in a file of JSON lines."""

    def __init__(self, file: Path, directory: str) -> None:
        """Read what was tried."""
        self._file, self._directory = file, directory
        self.prices: dict[Candidate, float | None] = {}
        for line in file.read_text("utf-8").splitlines() if file.exists() else []:
            one = json.loads(line)
            self.prices |= {Candidate(**one["candidate"]): one["bundles"]}

    def price(self, one: Candidate) -> float:
        """Compile what was not tried."""
        if one not in self.prices:
            self.prices[one] = bundles(one, SEARCHED, self._directory)
            with self._file.open("a", encoding="utf-8") as stream:
                line = {"candidate": asdict(one), "bundles": self.prices[one]}
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
                    one = min(one, replace(one, **{name: value}), key=self.price)
        return one


def search(chips: Sequence[str], kinds: Sequence[str], file: Path, directory: str) -> None:
    """Look for better orders; prints all that was tried, and how far values by the best are off."""
    tried, orders = Tried(file, directory), {}
    for chip, kind, size, backward in itertools.product(chips, kinds, (64, 128), (False, True)):
        first = orders.get((kind, backward)) or present(chip, kind, size, backward, SEARCHED)
        orders[kind, backward] = first
        best = tried.best(replace(first, chip=chip, size=size))
        if tried.price(best) < ENOUGH * tried.price(replace(first, chip=chip, size=size)):
            console.log(f"{best}: wrong by {error_of(best):.1e}")
    rows = [
        (*list(asdict(one).values())[:3], ("forward", "backward")[one.backward])
        + (one.rows, one.at_once, one.lag, f"{(cost or 0) / 1000:,.0f}" if cost else "refused")
        for one, cost in sorted(tried.prices.items(), key=lambda pair: str(pair))
    ]
    titles = "chip", "kind", "head", "kernel", "rows", "at once", "lag", "thousands of bundles"
    print(console.table(rows, titles))


def main() -> None:
    """Compiles the kernels for one chip, forward and backward; or searches."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("chips", nargs="*", help="a chip; or `search` and chips")
    parser.add_argument("--tried", type=Path, default=Path("out/kernel-orders.jsonl"))
    parser.add_argument("--kind", action="append", choices=CHOICES, help="of a search")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= compile_child.ENVIRONMENT
        os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        if options.chips[:1] == ["search"]:
            options.tried.parent.mkdir(parents=True, exist_ok=True)
            kinds = options.kind or list(CHOICES)
            return search(options.chips[1:], kinds, options.tried, directory)
        for kind, length in itertools.product(CHOICES, LENGTHS):
            both = [
                bundles(present(options.chips[0], kind, 64, way, length), length, directory)
                for way in (False, True)
            ]
            line = {"kind": kind, "length": length, "forward": both[0], "backward": both[1]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
