"""Shape of one attention layer, as the kernels see it, and the order of their work."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LANES = 128  # a tile's rows are a multiple of these


def tile_rows(length: int, reach: int | None) -> int:
    """Return the tokens of a kernel's tile, for full attention or for keys within `reach`.

    0 where the kernels have none for sequences of this length.

    A key that is near enough lies in the queries' tile or in the nearer half of one beside it.
    """
    sizes = (2 * LANES, LANES) if reach is None else (LANES, 2 * LANES)
    fitting = (rows for rows in sizes if length % rows == 0 and 2 * (reach or 0) <= rows)
    return next(fitting, 0)


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
        wanted = max(1, LANES // self.size)
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
        return (self.batch * (self.tiles + 1), self.rows, min(self.rows, LANES))

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
        lanes = max(self.group * self.size, LANES)
        sequence = self.tiles * self.group * self.size * self.rows * item
        marks = (self.tiles + 1) * self.rows * LANES * 4
        scratch = (self.tiles + 1) * self.rows * lanes * (2 * item + 2 * 4)
        return 2 * (8 * sequence + marks) + scratch
