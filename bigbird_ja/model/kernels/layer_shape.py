"""Shape of one attention layer, and the order in which the kernels process its tiles."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Number of lanes of a TPU. The number of rows of a tile is a multiple of it.
LANES = 128


def tile_rows(length: int, reach: int | None) -> int:
    """Return the number of tokens in a kernel's tile, or 0 if no tile suits this length.

    `reach` is the maximum distance of query and key in tokens, or None if it is unlimited. A tile
    has at least 2 * reach tokens. So every key within reach is in the query's own tile, or in the
    nearer half of an adjacent tile.
    """
    sizes = (2 * LANES, LANES) if reach is None else (LANES, 2 * LANES)
    fitting = (rows for rows in sizes if length % rows == 0 and 2 * (reach or 0) <= rows)
    return next(fitting, 0)


@dataclass(frozen=True)
class Order:
    """Order in which a kernel processes tiles."""

    # Number of tiles that one iteration processes: key tiles in full attention, else query tiles.
    at_once: int
    # Argument of `tiles.emit_pipelined`.
    lag: int


# Order of the forward kernel and order of the backward kernel, by `LayerShape.kind`. In "rolled"
# attention with two random tiles, a head has six score products. With a lag of six, the forward
# kernel's matrix units compute the next head's scores and the previous head's context during a
# head's softmax.
ORDERS = {
    "rolled": (Order(4, 6), Order(4, 1)),
    "local": (Order(8, 1), Order(8, 1)),
    "full": (Order(16, 1), Order(16, 1)),
}


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one attention layer, and the keys that a query sees."""

    batch: int
    tiles: int  # Number T of tiles in a sequence, including tile 0.
    heads: int
    size: int  # Size of a head.
    rows: int  # Rows of a tile.
    num_shifts: int | None  # Random tiles of a query tile, or None if attention is not rolled.
    has_documents: bool
    dtype: str
    # Maximum distance of query and key in tokens. None if it is unlimited or attention is rolled.
    reach: int | None = None
    is_backward: bool = False
    tried: Order | None = None  # Order that replaces the one in `ORDERS`, for measurements.

    @property
    def kind(self) -> str:
        """Kind of attention: full, local or rolled."""
        if self.is_full:
            return "full"
        return "local" if self.num_shifts is None else "rolled"

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key, except keys that padding or documents hide."""
        return self.num_shifts is None and self.reach is None

    @property
    def order(self) -> Order:
        """Order in which the kernel processes tiles."""
        return self.tried or ORDERS[self.kind][self.is_backward]

    @property
    def group(self) -> int:
        """Number of heads in one step of the kernel's grid. If possible, they fill 128 lanes."""
        wanted = max(1, LANES // self.size)
        return wanted if self.heads % wanted == 0 else 1

    @property
    def groups(self) -> int:
        """Number of groups of heads. The kernel's grid has one step per sequence and group."""
        return self.heads // self.group

    @property
    def runs(self) -> tuple[int, ...]:
        """Numbers of key tiles per iteration, one for each loop over a query tile's key tiles.

        The values are `Order.at_once`, half of it, ..., 1, except values above the number of tiles.
        Each later loop processes the remainder of the previous one. The forward kernel has an
        additional first loop over single tiles. The result is empty if the kernel skips no key
        tiles: if attention is not full, if documents do not limit the keys, or if there are at most
        two tiles.
        """
        if not (self.is_full and self.has_documents and self.tiles > 2):
            return ()
        halved = (self.order.at_once >> place for place in range(self.order.at_once.bit_length()))
        first = () if self.is_backward else (1,)
        return (*first, *(many for many in halved if many <= self.tiles))

    def loops(self, start: Any, left: Any) -> Iterator[tuple[int, Any, Any]]:
        """Yield for each loop: key tiles per iteration, first key tile, number of iterations.

        The loops together process the key tiles of a query tile. If the first key tile has an odd
        number, the forward kernel processes this tile alone. So every pair of tiles begins at an
        even number, and skipped tiles do not change how sums are rounded.

        Args:
            start: first key tile of a query tile, a Python or traced integer.
            left: number of key tiles of the query tile.
        """
        for place, many in enumerate(self.runs):
            trips = left >> (many.bit_length() - 1)
            if not place and not self.is_backward:
                trips = (start & 1) * (left > 0)
            yield many, start, trips
            start, left = start + trips * many, left - trips * many

    @property
    def width(self) -> int:
        """Number of lanes that the statistics of one tile take, for all heads of a group."""
        return self.group * self.rows

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Shape of queries, keys, values, contexts and their gradients."""
        return (self.batch * self.tiles, self.heads * self.size, self.rows)

    @property
    def statistics(self) -> tuple[int, int, int]:
        """Shape of the queries' statistics (logarithms of sums of exponentials), float32."""
        return (self.batch * self.groups * self.tiles, 1, self.width)

    @property
    def key_marks(self) -> tuple[int, int, int]:
        """Shape of the keys' marks (see `tiles.Masks`), with one more tile for absent keys."""
        return (self.batch * (self.tiles + 1), self.rows, min(self.rows, LANES))

    @property
    def query_marks(self) -> tuple[int, int, int]:
        """Shape of the queries' document numbers, int32, if documents limit keys."""
        return (self.batch * self.tiles, 1, self.rows)

    @property
    def bounds(self) -> tuple[int]:
        """Shape of the int32 array of `tiles.Bounds`: first key tile and count per query tile."""
        return (2 * self.batch * self.tiles,)

    def vmem_bytes(self) -> int:
        """Estimate the bytes of vector memory that the backward kernel needs.

        The estimate counts two buffers per argument, and the scratch memory.
        """
        item = 2 if self.dtype == "bfloat16" else 4
        lanes = max(self.group * self.size, LANES)
        sequence = self.tiles * self.group * self.size * self.rows * item
        marks = (self.tiles + 1) * self.rows * LANES * 4
        scratch = (self.tiles + 1) * self.rows * lanes * (2 * item + 2 * 4)
        return 2 * (8 * sequence + marks) + scratch
