"""Reads the dated table of prices by chip, zone and pricing."""

import datetime
import difflib
import importlib.resources
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from bigbird_ja import accelerators, storage
from bigbird_ja.accelerators import CHIPS
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

PRICINGS = ("on_demand", "spot")
OLD_DAYS = 365  # a table older than this is called old wherever it is printed
USUAL_ZONES = 4  # so many are tried where the user names none


Price = Annotated[float, Meta(ge=0, lt=1e6)]  # US dollars


class Offer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One chip in some zones, US dollars per hour; None: not offered, or not known."""

    on_demand: Price | None = None
    spot: Price | None = None
    most_chips: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None  # at this price
    zones: list[str] | None = None  # None: all zones of the chip in the table


class Free(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A machine that costs nothing."""

    machine: str
    note: str = ""  # the date of this information, and where its limits are


class Prices(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of prices: US dollars."""

    as_of: datetime.date
    source: str = ""
    chips: dict[str, list[Offer]] = {}
    free: dict[str, Free] = {}

    def offers(self, chip: str) -> dict[str, Offer]:
        """Return a chip's offers by zone; of several for a zone the last counts."""
        by_zone: dict[str, Offer] = {}
        for line in self.chips.get(chip, ()):
            by_zone |= dict.fromkeys(by_zone if line.zones is None else line.zones, line)
        return by_zone

    def by_zone(self, accelerator: str, pricing: str) -> list[tuple[str, float | None]]:
        """List zones with the price of the whole slice there, cheapest first, unknown prices last.

        Args:
            accelerator: such as `v5e-8`.
            pricing: on_demand, spot, or preemptible, which has spot's price.

        Raises:
            BadInput: no such machine.
        """
        machine = accelerators.find(accelerator)
        offers: list[tuple[str, float | None]] = []
        for zone, offer in self.offers(machine.chip).items():
            price = offer.on_demand if pricing == "on_demand" else offer.spot
            is_sold = offer.most_chips is None or machine.chips <= offer.most_chips
            offers.append((zone, price * machine.chips if price is not None and is_sold else None))
        return sorted(offers, key=lambda offer: (offer[1] is None, offer[1] or 0.0))

    def per_hour(self, accelerator: str, pricing: str, zones: Sequence[str] = ()) -> float:
        """Return US dollars per hour in the dearest of `zones`, or in the cheapest of all.

        Raises:
            BadInput: no such machine, or no price of it there.
        """
        offers = self.by_zone(accelerator, pricing)
        known = [price for zone, price in offers if zone in zones or not zones]
        priced = [price for price in known if price is not None]
        if not priced or (zones and len(priced) < len(known)):
            where = f" in {', '.join(zones)}" if zones else ""
            raise BadInput(
                f"no {pricing} price for {accelerator}{where}: add it in a file for --price_file"
            )
        return max(priced) if zones else min(priced)

    def usual_zones(self, accelerator: str, pricing: str) -> tuple[str, ...]:
        """Choose zones where the user names none: the cheapest in the US first.

        There docs/cloud-setup.md puts the bucket; traffic from another continent costs more than
        the difference between zones.
        """
        offers = self.by_zone(accelerator, pricing)
        priced = [zone for zone, price in offers if price is not None]
        zones = priced or [zone for zone, _ in offers]
        return tuple(sorted(zones, key=lambda zone: not zone.startswith("us-"))[:USUAL_ZONES])

    def check_zone(self, zone: str, accelerator: str) -> None:
        """Check that a zone is in the table for that machine.

        Raises:
            BadInput: it is not; the message names the nearest that are.
        """
        known = list(self.offers(accelerators.find(accelerator).chip))
        if zone not in known:
            near = ", ".join(difflib.get_close_matches(zone, known, 3, 0.0)) or "none is known"
            raise BadInput(
                f"zone {zone!r}: {accelerator} is not offered there, by the prices of"
                f" {self.as_of}; the nearest: {near} (of {len(known)}); add newer ones in a file"
                " for --price_file"
            )

    def age_days(self, today: datetime.date) -> int:
        """Return how old the table is."""
        return (today - self.as_of).days

    def describe_age(self, today: datetime.date) -> str:
        """Say `prices of 2026-01-01, 325 days old: verify before renting`."""
        days = self.age_days(today)
        warning = ", warning: more than a year" if days > OLD_DAYS else ""
        return f"prices of {self.as_of}, {days} days old{warning}: verify before renting"


def load(override_path: str | None = None) -> Prices:
    """Read the package's table and merge a user's file into it.

    Args:
        override_path: a YAML file of the same form, on disk or gs://; it may be partial.

    Raises:
        BadInput: no such file, not YAML, an unknown key, or a price that is not a number.
    """
    advice = "see bigbird_ja/accelerators/prices.yaml for the form"
    built_in = importlib.resources.files("bigbird_ja.accelerators") / "prices.yaml"
    values = decode.read_yaml(built_in.read_text("utf-8"), "prices.yaml")
    prices = decode.convert(values, Prices, "prices.yaml")
    if not override_path:
        return prices
    try:
        text = storage.read_bytes(override_path, decode.MAX_YAML_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"--price_file {override_path}: no such file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--price_file {override_path}: not UTF-8 (byte {error.start})") from error
    values = decode.read_yaml(text, override_path)
    own = decode.convert(values, Prices, override_path, advice)
    for name, free in own.free.items():
        try:
            accelerators.find(free.machine)
        except BadInput as error:
            raise BadInput(f"{override_path}: free.{name}.machine: {error}") from error
    if unknown := [chip for chip in own.chips if chip not in CHIPS]:
        raise BadInput(f"{override_path}: chips.{unknown[0]}: one of {', '.join(CHIPS)}")
    changed = {"source": override_path, **{name: getattr(own, name) for name in values}}
    changed["chips"] = {c: [*prices.chips.get(c, ()), *own.chips.get(c, ())] for c in CHIPS}
    changed["free"] = {**prices.free, **own.free}
    return msgspec.structs.replace(prices, **changed)
