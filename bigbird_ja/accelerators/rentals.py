"""The services that rent each chip, with zones, images and the pages that document them."""

import datetime
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FLEX_START = "flex-start"
_Chips = Annotated[int, Meta(ge=1, le=1 << 20)]


class Page(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A page of Google's documentation, and the day on which its copy was read."""

    page: str
    as_of: datetime.date


class Rental(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A service that rents slices of a chip in some zones."""

    service: Literal["compute", "tpu"]
    image: str  # runtime version or image family for the engine pjrt
    zones: tuple[str, ...]
    documented_by: str  # page on the chip
    zones_by: str  # key in `pages`
    least_chips: _Chips = 1
    most_chips: _Chips | None = None
    pricing: Literal["", "flex-start"] = ""  # "": spot and on demand

    def matches(self, chips: int, pricing: str) -> bool:
        """Tell whether it rents slices of so many chips by that pricing."""
        is_flex = pricing == FLEX_START
        is_size = self.least_chips <= chips <= (self.most_chips or chips)
        return is_size and is_flex == (self.pricing == FLEX_START)


def near(zones: Iterable[str], region: str) -> list[str]:
    """List the zones of a region, then the others of its continent; all, if it has none.

    Args:
        zones: such as `us-central1-b`, in the order of preference.
        region: such as `us-central1`; "" for the United States, where docs/cloud-setup.md puts the
            bucket.
    """
    continent = (region or "us-").partition("-")[0]
    there = [zone for zone in zones if zone.partition("-")[0] == continent] or [*zones]
    return sorted(there, key=lambda zone: zone.rpartition("-")[0] != region)
