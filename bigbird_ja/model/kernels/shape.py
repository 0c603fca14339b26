"""Shapes of one attention layer as the kernels take it, and the fast memory that they need."""

from __future__ import annotations

from dataclasses import dataclass

_LANES = 128
# Query tiles that are written down together, where there are enough of them.
_AT_ONCE, _ENOUGH = 3, 16


def group_of(heads: int, size: int) -> int:
    """Heads that one step of the grid computes: enough to fill the lanes, where they divide."""
    wanted = max(1, _LANES // size)
    return wanted if heads % wanted == 0 else 1


@dataclass(frozen=True)
class Shape:
    """One attention layer's shapes, and its random connections."""

    batch: int
    tiles: int  # T of a sequence, tile 0 included
    heads: int
    size: int  # of a head
    rows: int  # of a tile
    shifts: tuple[tuple[int, ...], ...]  # of each head
    has_documents: bool
    dtype: str

    @property
    def group(self) -> int:
        """Heads that one step of the grid computes."""
        return group_of(self.heads, self.size)

    @property
    def groups(self) -> int:
        return self.heads // self.group

    @property
    def at_once(self) -> int:
        """Query tiles that one iteration computes; more is more code for the compiler."""
        return _AT_ONCE if self.tiles >= _ENOUGH else 1

    @property
    def width(self) -> int:
        """Query lanes of a group."""
        return self.group * self.rows

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Queries, keys, values, contexts and their gradients, as the projections write them."""
        return (self.batch * self.tiles, self.heads * self.size, self.rows)

    @property
    def statistics(self) -> tuple[int, int, int]:
        """A number per query, float32: logarithm of the row's sum of exponentials."""
        return (self.batch * self.groups * self.tiles, 1, self.width)

    @property
    def key_marks(self) -> tuple[int, int, int]:
        """See `Marks`; one tile more, of keys that are not there."""
        return (self.batch * (self.tiles + 1), self.rows, self.rows)

    @property
    def query_marks(self) -> tuple[int, int, int]:
        """int32 document numbers of the queries; only where documents limit what is seen."""
        return (self.batch * self.tiles, 1, self.rows)

    def vmem_bytes(self, buffers: int = 8) -> int:
        """About what the backward kernel needs: two buffers for each argument, and its scratch."""
        item = 2 if self.dtype == "bfloat16" else 4
        lanes = max(self.group * self.size, _LANES)
        sequence = self.tiles * self.group * self.size * self.rows * item
        marks = (self.tiles + 1) * self.rows * self.rows * 4
        scratch = (self.tiles + 1) * self.rows * lanes * (2 * item + 2 * 4)
        return 2 * (buffers * sequence + marks) + scratch
