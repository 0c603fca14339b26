"""Prices of TPUs and the services that rent them: `prices.yaml`, and a user's own file."""

import datetime
import importlib.resources
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import CHIPS, Accelerator, find
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode

PRICINGS = ("on_demand", "spot")
PAGE = "https://cloud.google.com/tpu/pricing"
# Age from which a price table is reported as old.
OLD_DAYS = 365
# Maximum number of zones, if the user does not choose any.
USUAL_ZONES = 4
# Maximum ratio of a zone's price to the first zone's price. Budgets use the most expensive of the
# chosen zones, so a zone above this ratio is not chosen.
_MAX_PRICE_RATIO = 1.5
_Chips = Annotated[int, Meta(ge=1, le=1 << 20)]
Price = Annotated[float, Meta(ge=0, lt=1e6)]


def get_region(zone: str) -> str:
    """Return the region of a zone, such as `us-central1` for `us-central1-b`."""
    return zone.rpartition("-")[0]


class Rental(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Service that rents slices of a chip in some zones.

    Attributes:
        service: API that creates the machine: "compute" for Compute Engine, "tpu" for Cloud TPU.
        image: Image family or runtime version for the engine pjrt.
        zones: Zones that offer the chip.
        documented_by: Page about the chip.
        zones_by: Page that lists the zones.
        as_of: Date on which the two pages were read.
        least_chips: Minimum number of chips.
        most_chips: Maximum number of chips, or None for no limit.
    """

    service: Literal["compute", "tpu"]
    image: str
    zones: tuple[str, ...]
    documented_by: str
    zones_by: str
    as_of: datetime.date
    least_chips: _Chips = 1
    most_chips: _Chips | None = None

    def matches(self, chips: int) -> bool:
        """Return whether the service rents slices with `chips` chips."""
        return self.least_chips <= chips <= (self.most_chips or chips)


class Offer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Price of a chip in some zones, in US dollars per hour.

    Attributes:
        on_demand: On-demand price; None if it is unknown or not offered.
        spot: Spot price; None if it is unknown or not offered.
        most_chips: Maximum number of chips at this price, or None for no limit.
        zones: Zones, or None for all zones in the chip's earlier offers.
        as_of: Date of the price; None for the date of the file.
    """

    on_demand: Price | None = None
    spot: Price | None = None
    most_chips: _Chips | None = None
    zones: list[str] | None = None
    as_of: datetime.date | None = None


class Free(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Machine that is free of charge.

    Attributes:
        machine: Name of the machine.
        note: Date of this information, and a link to the limits.
    """

    machine: str
    note: str = ""


class Prices(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Price table.

    Attributes:
        as_of: Date of the table.
        source: Source of the prices.
        chips: Prices by chip.
        rentals: Services by chip, in order of preference.
        free: Free machines by provider.
    """

    as_of: datetime.date
    source: str = ""
    chips: dict[str, list[Offer]] = {}
    rentals: dict[str, list[Rental]] = {}
    free: dict[str, Free] = {}

    def list_offers(self, chip: str) -> dict[str, Offer]:
        """Return a chip's offers by zone. A later offer for a zone replaces an earlier one."""
        by_zone: dict[str, Offer] = {}
        for line in self.chips.get(chip, ()):
            by_zone |= dict.fromkeys(by_zone if line.zones is None else line.zones, line)
        return by_zone

    def list_rentals(self, machine: Accelerator) -> list[Rental]:
        """List the services that rent a machine, in order of preference."""
        known = self.rentals.get(machine.chip, [])
        return [one for one in known if one.matches(machine.chips)]

    def find_price(self, machine: Accelerator, pricing: str, zone: str) -> float | None:
        """Return US dollars per hour of the whole slice in a zone, or None if no price is known."""
        offer = self.list_offers(machine.chip).get(zone, Offer())
        price = offer.spot if pricing == "spot" else offer.on_demand
        is_sold = offer.most_chips is None or machine.chips <= offer.most_chips
        return price * machine.chips if price is not None and is_sold else None

    def list_zones(self, machine: Accelerator, pricing: str) -> list[tuple[str, float | None]]:
        """List the zones that offer a machine, with prices, cheapest first, unknown prices last.

        Args:
            machine: TPU slice.
            pricing: on_demand or spot.
        """
        found = self.list_rentals(machine)
        zones = dict.fromkeys(zone for one in found for zone in one.zones)
        offers = [(zone, self.find_price(machine, pricing, zone)) for zone in zones]
        return sorted(offers, key=lambda offer: (offer[1] is None, offer[1] or 0.0))

    def get_hourly_price(self, machine: Accelerator, pricing: str, zones: Sequence[str]) -> float:
        """Return US dollars per hour in the most expensive of some zones.

        Raises:
            BadInput: The price in one of the zones is unknown.
        """
        prices = [self.find_price(machine, pricing, zone) for zone in zones]
        priced = [price for price in prices if price is not None]
        if not priced or None in prices:
            raise BadInput(
                f"no {pricing} price for {machine.launch_type} in {', '.join(zones)}: add it in a"
                " file for `price_file`"
            )
        return max(priced)

    def find_oldest_date(self, machine: Accelerator, zones: Sequence[str]) -> datetime.date:
        """Return the oldest date of a machine's prices in some zones."""
        offers = self.list_offers(machine.chip)
        return min(
            (offers[zone].as_of or self.as_of for zone in zones if zone in offers),
            default=self.as_of,
        )

    def choose_zones(self, machine: Accelerator, pricing: str, near: str = "") -> tuple[str, ...]:
        """Choose zones that offer a machine: those in the bucket's region, then the cheapest.

        If the bucket's continent has zones, zones on other continents are excluded, since traffic
        between continents costs more than the difference in price. Zones that are much more
        expensive than the first chosen zone are excluded, since budgets use the highest price.

        Args:
            machine: TPU slice.
            pricing: on_demand or spot.
            near: region of the bucket, or "" to prefer zones in the United States.
        """
        offers = self.list_zones(machine, pricing)
        priced = {zone: price for zone, price in offers if price is not None}
        zones = [*priced] or [zone for zone, _ in offers]
        continent = (near or "us-").partition("-")[0]
        zones = [zone for zone in zones if zone.partition("-")[0] == continent] or zones
        zones.sort(key=lambda zone: get_region(zone) != near)
        limit = _MAX_PRICE_RATIO * priced[zones[0]] if priced else 0.0
        return tuple(zone for zone in zones if priced.get(zone, 0.0) <= limit)[:USUAL_ZONES]


def describe_age(as_of: datetime.date, today: datetime.date) -> str:
    """Format the age of prices, with the page on which to verify them."""
    days = (today - as_of).days
    warning = ", warning: more than a year" if days > OLD_DAYS else ""
    return f"prices of {as_of}, {days} days old{warning}: verify on {PAGE} before renting"


def load_prices(override_path: str | None = None) -> Prices:
    """Read the package's price table and merge a user's file into it.

    Args:
        override_path: YAML file in the form of `prices.yaml`, on disk or gs://; it may be partial.

    Raises:
        BadInput: The file is missing, or contains invalid YAML, an unknown key or an invalid price.
    """
    advice = "see bigbird_ja/accelerators/prices.yaml for the form"
    built_in = importlib.resources.files("bigbird_ja.accelerators") / "prices.yaml"
    values = decode.read_yaml(built_in.read_text("utf-8"), "prices.yaml")
    prices = decode.convert(values, Prices, "prices.yaml")
    if not override_path:
        return prices
    try:
        text = storage.read_text(override_path, decode.MAX_YAML_BYTES)
    except FileNotFoundError as error:
        raise BadInput(f"`price_file` {override_path}: no such file") from error
    own = decode.convert(decode.read_yaml(text, override_path), Prices, override_path, advice)
    for name, free in own.free.items():
        try:
            find(free.machine)
        except BadInput as error:
            raise BadInput(f"{override_path}, free.{name}.machine: {error}") from error
    for key in ("chips", "rentals"):
        if unknown := [chip for chip in getattr(own, key) if chip not in CHIPS]:
            raise BadInput(f"{override_path}: {key}.{unknown[0]} must be one of {', '.join(CHIPS)}")
    # The date of the user's file is valid only for the offers in this file.
    dated = {
        chip: [msgspec.structs.replace(each, as_of=each.as_of or own.as_of) for each in offers]
        for chip, offers in own.chips.items()
    }
    return Prices(
        prices.as_of,
        own.source or prices.source,
        {chip: [*prices.chips.get(chip, ()), *dated.get(chip, ())] for chip in CHIPS},
        {chip: [*own.rentals.get(chip, ()), *prices.rentals.get(chip, ())] for chip in CHIPS},
        {**prices.free, **own.free},
    )
