"""Services that rent each chip, with zones, images and the pages that document them."""

import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FLEX_START = "flex-start"
_Chips = Annotated[int, Meta(ge=1, le=1 << 20)]


class Rental(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Service that rents slices of a chip in some zones."""

    service: Literal["compute", "tpu"]
    image: str  # runtime version or image family for the engine pjrt
    zones: tuple[str, ...]
    documented_by: str  # page on the chip
    zones_by: str  # page that lists the zones
    as_of: datetime.date  # day on which the copies of both were read
    least_chips: _Chips = 1
    most_chips: _Chips | None = None
    pricing: Literal["", "flex-start"] = ""  # "": spot and on demand

    def matches(self, chips: int, pricing: str) -> bool:
        """Return whether it rents slices of this number of chips with this pricing."""
        is_flex = pricing == FLEX_START
        is_size = self.least_chips <= chips <= (self.most_chips or chips)
        return is_size and is_flex == (self.pricing == FLEX_START)
