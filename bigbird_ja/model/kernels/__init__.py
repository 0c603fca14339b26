"""Attention by Pallas kernels on a TPU: where they are taken, and a layer as they see it.

XLA's attention (`bigbird`, `modernbert`, `tiled`) runs everywhere and is the reference. The kernels
are for newer TPUs, under the engine pjrt; on a CPU Pallas' interpreter runs them, for comparisons.
jax is imported only where kernels are taken.
"""

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja.model import pattern
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import varied

# Vector memory of one core, MiB (jax's `pltpu.get_tpu_info`).
_VMEM_MIB = {"v4": 16, "v5e": 128, "v5p": 64, "v6e": 128, "v7x": 64}
# Chips on which `auto` takes the kernels: as part of a whole step they are cheaper there, by
# machine code (docs/design/kernel.md).
_CHEAPER_ON: tuple[str, ...] = ("v5e", "v6e")
_LANES = 128  # a tile's rows are a multiple of these
_OLDEST_JAX = (0, 7)
_KEY = "model.attention_implementation"
# Words of a compiler that cannot take a kernel: it reads no such Mosaic, or has too little vector
# memory for it.
_REFUSAL = re.compile(r"mosaic|tpu_custom_call|memory space vmem", re.IGNORECASE)
_OTHER_MEMORY = "memory space hbm"  # of a list that names buffers, of kernels too


def resolved(config: Config, data: Data, platform: str, chip: str | None) -> Config:
    """Return the config with `xla` or `kernel` in the place of `auto`.

    Args:
        config: of the run.
        data: of the run.
        platform: "cpu", "cuda" or "tpu".
        chip: of a TPU, where it is known.

    Raises:
        BadInput: `kernel` is requested and cannot be had; says why.
    """
    wanted = config.model.attention_implementation
    if wanted == "xla" or (wanted == "auto" and chip not in _CHEAPER_ON):
        return varied(config, {_KEY: "xla"})
    why_not = _why_not(config, data.seq_length, platform, chip)
    if why_not and wanted == "kernel":
        raise BadInput(f"{_KEY}=kernel: {why_not}: leave it at auto")
    return varied(config, {_KEY: "xla" if why_not else "kernel"})


def without_kernels(requested: Config, taken: Config, error: Exception) -> Config:
    """Fall back to XLA after a kernel failed to compile; log it.

    Args:
        requested: of which `taken` was resolved.
        taken: what the compiler refused.
        error: what it said.

    Raises:
        Exception: `error` itself, if it is not about kernels, or they were requested by name.
    """
    text = str(error)
    is_ours = _REFUSAL.search(text) and _OTHER_MEMORY not in text
    ways = [config.model.attention_implementation for config in (requested, taken)]
    if ways != ["auto", "kernel"] or not is_ours:
        raise error
    log(f"{_KEY}=auto: xla, as this compiler refuses the kernels: {text.splitlines()[0][:200]}")
    return varied(taken, {_KEY: "xla"})


def keeps_slope(config: Config) -> bool:
    """Return whether the activation keeps its derivatives, or its product (`layers`).

    It does with the kernels: that is shown cheaper on the same chips (docs/design/kernel.md), and
    on others the memory is needed.
    """
    return config.model.attention_implementation == "kernel"


def traced_for(config: Config, platform: str) -> contextlib.AbstractContextManager[None]:
    """Trace what is within, of a resolved config, for that platform."""
    if platform != "cpu" or config.model.attention_implementation != "kernel":
        return contextlib.nullcontext()
    from bigbird_ja.model.kernels.kernel_attention import interpreted

    return interpreted()


def tile_rows(length: int, reach: int | None) -> int:
    """Return the tokens of a kernel's tile, for full attention or for keys within `reach`.

    0 where the kernels have none for sequences of this length.

    A key that is near enough lies in the queries' tile or in the nearer half of one beside it.
    """
    sizes = (2 * _LANES, _LANES) if reach is None else (_LANES, 2 * _LANES)
    fitting = (rows for rows in sizes if length % rows == 0 and 2 * (reach or 0) <= rows)
    return next(fitting, 0)


def _why_not(config: Config, length: int, platform: str, chip: str | None) -> str | None:
    """Explain why kernels cannot compute this; None where they can."""
    model = config.model
    if model.architecture == "modernbert":
        reach = model.local_attention // 2
        tiles = [tile_rows(length, None), tile_rows(length, reach)]
    elif pattern.is_full(config, length):
        tiles = [tile_rows(length, None)]
    elif (model.attention_type, model.random_pattern) != ("block_sparse", "rolled"):
        return f"{model.attention_type} attention with {model.random_pattern} blocks has none"
    else:
        tiles = [2 * model.block_size]
    if not all(tiles):
        if model.architecture == "modernbert" and model.local_attention > 2 * _LANES:
            return f"model.local_attention={model.local_attention} is more than {2 * _LANES}"
        return f"sequences of {length} tokens are no multiple of its tiles, of 128 or 256"
    if (version := _jax_version()) is None:
        return "it needs jax, which is not installed"
    if version < _OLDEST_JAX:
        return f"it needs jax {'.'.join(map(str, _OLDEST_JAX))} or later"
    if platform == "cpu":  # interpreted
        return None
    if platform != "tpu" or chip not in _VMEM_MIB:
        return f"it is for TPUs {', '.join(_VMEM_MIB)}"

    heads = model.num_attention_heads
    size, documents = model.hidden_size // heads, not model.attend_across_documents
    dtype = config.training.dtype
    for rows in tiles:
        shape = LayerShape(1, length // rows, heads, size, rows, None, documents, dtype)
        if shape.rows % _LANES or shape.group * shape.size % _LANES:
            return "it needs two blocks of a multiple of 128 tokens, and heads that fill 128 lanes"
        if shape.vmem_bytes() > _VMEM_MIB[chip] << 20:
            return f"sequences of {length} tokens do not fit the vector memory of a TPU {chip}"
    return None


def _jax_version() -> tuple[int, ...] | None:
    """Return the major and minor number of the installed jax."""
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@dataclass(frozen=True)
class Order:
    """Order of a kernel's work; `scripts/kernel_code.py` prices it."""

    at_once: int  # query tiles of an iteration; where a query tile sees all, key tiles
    lag: int  # of `staggered`


# Forward and backward. BigBird's lag is as many stages as there are products of scores: those of a
# head run beside the softmax of the head before, the products of values of the one before that.
ORDERS = {
    "rolled": (Order(4, 6), Order(4, 1)),
    "local": (Order(8, 1), Order(8, 1)),
    "full": (Order(16, 1), Order(16, 1)),
}


@dataclass(frozen=True)
class LayerShape:
    """Describes one attention layer: its sizes, and which keys a query sees."""

    batch: int
    tiles: int  # T of a sequence, tile 0 included
    heads: int
    size: int  # of a head
    rows: int  # of a tile
    shifts: tuple[tuple[int, ...], ...] | None  # of each head's rolled pattern; None: not rolled
    has_documents: bool
    dtype: str
    reach: int | None = None  # if not rolled: tokens to the farthest key; None: any
    is_backward: bool = False  # of the kernel that is written
    tried: Order | None = None  # in place of what `ORDERS` says

    @property
    def kind(self) -> str:
        """Return the name of what a query sees."""
        if self.is_full:
            return "full"
        return "local" if self.shifts is None else "rolled"

    @property
    def is_full(self) -> bool:
        """Return whether every query sees every key."""
        return self.shifts is None and self.reach is None

    @property
    def order(self) -> Order:
        """Return the order of the kernel's work."""
        return self.tried or ORDERS[self.kind][self.is_backward]

    @property
    def group(self) -> int:
        """Return the heads that one step of the grid computes: they fill the lanes."""
        wanted = max(1, _LANES // self.size)
        return wanted if self.heads % wanted == 0 else 1

    @property
    def groups(self) -> int:
        """Return how many steps of the grid a sequence takes."""
        return self.heads // self.group

    @property
    def runs(self) -> tuple[int, ...]:
        """Return the tiles of one iteration, for each loop over the tiles of a query's documents.

        As many as the order says, then half as many, ...; forward, one before them. None where a
        query tile meets a fixed number of key tiles: of two, loops cost more.
        """
        if not (self.is_full and self.has_documents and self.tiles > 2):
            return ()
        halved = (self.order.at_once >> place for place in range(self.order.at_once.bit_length()))
        first = () if self.is_backward else (1,)
        return (*first, *(many for many in halved if many <= self.tiles))

    def loops(self, start: Any, left: Any) -> Iterator[tuple[int, Any, Any]]:
        """Yield each of `runs`, its first tile and how often it runs.

        Forward, a pair of tiles begins at an even one, whichever comes first: so a pair of which
        one is left out is summed to the same bits.

        Args:
            start: the first key tile of a query tile; integers of any kind.
            left: the number of its key tiles.
        """
        for place, many in enumerate(self.runs):
            trips = left >> (many.bit_length() - 1)
            if not place and not self.is_backward:
                trips = (start & 1) * (left > 0)
            yield many, start, trips
            start, left = start + trips * many, left - trips * many

    @property
    def width(self) -> int:
        """Return the query lanes of a group."""
        return self.group * self.rows

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Return the shape of queries, keys, values, contexts and their gradients, as projected."""
        return (self.batch * self.tiles, self.heads * self.size, self.rows)

    @property
    def statistics(self) -> tuple[int, int, int]:
        """Return the shape of the logarithms of rows' sums of exponentials, float32."""
        return (self.batch * self.groups * self.tiles, 1, self.width)

    @property
    def key_marks(self) -> tuple[int, int, int]:
        """Return the shape of keys' marks (see `Masks`); one tile more, of absent keys."""
        return (self.batch * (self.tiles + 1), self.rows, min(self.rows, _LANES))

    @property
    def query_marks(self) -> tuple[int, int, int]:
        """Return the shape of queries' int32 document numbers, which only documents need."""
        return (self.batch * self.tiles, 1, self.rows)

    @property
    def bounds(self) -> tuple[int]:
        """Return the shape of the first key tile and the number of them, int32, by query tile."""
        return (2 * self.batch * self.tiles,)

    def vmem_bytes(self) -> int:
        """Estimate the backward kernel's memory: two buffers for each argument, and its scratch."""
        item = 2 if self.dtype == "bfloat16" else 4
        lanes = max(self.group * self.size, _LANES)
        sequence = self.tiles * self.group * self.size * self.rows * item
        marks = (self.tiles + 1) * self.rows * _LANES * 4
        scratch = (self.tiles + 1) * self.rows * lanes * (2 * item + 2 * 4)
        return 2 * (8 * sequence + marks) + scratch
