"""The dated table of prices by chip, zone and pricing, with overrides."""

from __future__ import annotations

import datetime
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.accelerators.hardware import region_of
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import nearest
from bigbird_ja.storage import decode

PRICINGS = ("on_demand", "spot")
OLD_DAYS = 365  # a table older than this is called old wherever it is printed
USUAL_ZONES = 4  # so many are tried where the user names none


@dataclass(frozen=True)
class Offer:
    """One chip in one zone, US dollars per hour; None: not to be had so, or not known."""

    on_demand: float | None
    spot: float | None
    most_chips: int | None  # the largest slice at this price


@dataclass(frozen=True)
class Free:
    """A machine that is lent for nothing."""

    machine: str
    note: str  # as of when, and where its limits are


@dataclass(frozen=True)
class Prices:
    """US dollars."""

    as_of: datetime.date = datetime.date.min
    source: str = ""
    chips: dict[str, dict[str, Offer]] = field(default_factory=dict)  # by chip and zone
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)  # with the machine, per hour
    notes: dict[str, str] = field(default_factory=dict)  # by GPU
    free: dict[str, Free] = field(default_factory=dict)  # by who lends it
    storage_per_gb_month: float = 0.0
    egress_per_gb_same_continent: float = 0.0
    egress_per_gb_other_continent: float = 0.0

    def by_zone(self, accelerator: str, pricing: str) -> list[tuple[str, float | None]]:
        """Zones with the price of a whole TPU there, cheapest first, unknown prices last.

        Args:
            accelerator: such as `v5e-8`.
            pricing: on_demand, spot, or preemptible, which has spot's price.

        Raises:
            BadInput: no such machine.
        """
        machine = hardware.find(accelerator)
        found: list[tuple[str, float | None]] = []
        for zone, offer in self.chips.get(machine.chip, {}).items():
            price = offer.on_demand if pricing == "on_demand" else offer.spot
            is_sold = offer.most_chips is None or machine.chips <= offer.most_chips
            found.append((zone, price * machine.chips if price is not None and is_sold else None))
        return sorted(found, key=lambda pair: (pair[1] is None, pair[1] or 0.0))

    def per_hour(self, accelerator: str, pricing: str, zones: Sequence[str] = ()) -> float:
        """US dollars per hour: the most of `zones`, or the cheapest zone's where none is given.

        Raises:
            BadInput: no such machine, or no price of it there.
        """
        name = hardware.find(accelerator).name
        if name in self.gpus:
            known: list[float | None] = [self.gpus[name].get(_listed(pricing))]
        else:
            offers = self.by_zone(name, pricing)
            known = [price for zone, price in offers if zone in zones or not zones]
        priced = [price for price in known if price is not None]
        if not priced or (zones and len(priced) < len(known)):
            where = f" in {', '.join(zones)}" if zones else ""
            raise BadInput(
                f"no {pricing} price for {accelerator}{where}: add it in a file for --prices"
            )
        return max(priced) if zones else min(priced)

    def usual_zones(self, accelerator: str, pricing: str) -> tuple[str, ...]:
        """Where to look for capacity when the user names no zone: the cheapest of the US first,
        where docs/cloud-setup.md puts the bucket. Traffic from another continent costs more than
        zones differ.
        """
        offers = self.by_zone(accelerator, pricing)
        priced = [zone for zone, price in offers if price is not None]
        zones = priced or [zone for zone, _ in offers]
        return tuple(sorted(zones, key=lambda zone: not zone.startswith("us-"))[:USUAL_ZONES])

    def check_zone(self, zone: str, accelerator: str | None = None) -> None:
        """Whether the table has a zone: for that machine, or for any.

        Raises:
            BadInput: it has not; names those that it has.
        """
        if accelerator is None:
            known = sorted({name for offers in self.chips.values() for name in offers})
            what = "no TPU is"
        else:
            known = list(self.chips.get(hardware.find(accelerator).chip, {}))
            what = f"{accelerator} is not"
        if zone not in known:
            others = ", ".join(known) or "none that is known"
            raise BadInput(
                f"zone {zone!r}{nearest(zone, known)}: {what} to be had there, by the prices of"
                f" {self.as_of}; zones: {others}; newer ones go into a file for --prices"
            )

    def age_days(self, today: datetime.date) -> int:
        """How old the table is."""
        return (today - self.as_of).days

    def is_old(self, today: datetime.date) -> bool:
        """Whether it is to be warned of."""
        return self.age_days(today) > OLD_DAYS

    def describe_age(self, today: datetime.date) -> str:
        """`prices of 2026-01-01, 325 days old: verify before renting`."""
        warning = ", warning: more than a year" if self.is_old(today) else ""
        days = self.age_days(today)
        return f"prices of {self.as_of}, {days} days old{warning}: verify before renting"

    def egress_per_gb(self, bucket_region: str, zone: str) -> float:
        """What reading the bucket from a zone costs; regions are named `us-central1`, `eu`, ..."""
        here, there = bucket_region.lower(), region_of(zone).lower()
        if here == there:
            return 0.0
        if here.split("-")[0] in (there.split("-")[0], _MULTI_REGION.get(there.split("-")[0])):
            return self.egress_per_gb_same_continent
        return self.egress_per_gb_other_continent


_MULTI_REGION = {"us": "us", "europe": "eu", "asia": "asia"}


def _listed(pricing: str) -> str:
    return "spot" if pricing == "preemptible" else pricing  # one price for both


def load(override_path: str | None = None) -> Prices:
    """Reads the table that ships with the package, and a user's file over it.

    Args:
        override_path: a YAML file of the same form, on disk or gs://; it may hold a part only.

    Raises:
        BadInput: no such file, not YAML, an unknown key, or a price that is not a number.
    """
    built_in = (
        importlib.resources.files("bigbird_ja.accelerators")
        .joinpath("prices.yaml")
        .read_text("utf-8")
    )
    prices = _parse(built_in, "prices.yaml", Prices())
    if override_path:
        prices = _parse(_read(override_path), override_path, prices)
    return prices


def _read(path: str) -> str:
    try:
        return storage.read_bytes(path, decode.MAX_YAML_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"--prices {path}: no such file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--prices {path}: not UTF-8 (byte {error.start})") from error


Price = Annotated[float, Meta(ge=0, lt=1e6)]  # US dollars
_SCALARS = ("storage_per_gb_month", "egress_per_gb_same_continent", "egress_per_gb_other_continent")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One price of a chip; without `zones`, in all that the table has."""

    zones: list[str] | None = None
    on_demand: Price | None = None
    spot: Price | None = None
    most_chips: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None


class _Gpu(msgspec.Struct, forbid_unknown_fields=True):
    """One GPU's prices; `host` is what the machine around it costs."""

    on_demand: Price | None = None
    spot: Price | None = None
    host_on_demand: Price = 0.0
    host_spot: Price = 0.0
    note: str = ""

    def hourly(self) -> dict[str, float]:
        """Per pricing, with the host's."""
        hosts = {"on_demand": self.host_on_demand, "spot": self.host_spot}
        own = {"on_demand": self.on_demand, "spot": self.spot}
        return {
            pricing: price + hosts[pricing] for pricing, price in own.items() if price is not None
        }


class _Free(msgspec.Struct, forbid_unknown_fields=True):
    """What is lent for nothing."""

    machine: str
    note: str = ""


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """A file of prices."""

    as_of: datetime.date
    source: str | None = None
    chips: dict[str, list[_Line]] | None = None
    gpus: dict[str, _Gpu] | None = None
    free: dict[str, _Free] | None = None
    storage_per_gb_month: Price | None = None
    egress_per_gb_same_continent: Price | None = None
    egress_per_gb_other_continent: Price | None = None


def _parse(text: str, where: str, base: Prices) -> Prices:
    values = decode.read_yaml(text, where)
    known = _Table.__struct_fields__
    for key in values if isinstance(values, dict) else ():
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
    table = decode.convert(
        values, _Table, where, "see bigbird_ja/accelerators/prices.yaml for the form"
    )
    scalars = {name: price for name in _SCALARS if (price := getattr(table, name)) is not None}
    gpus, free = table.gpus or {}, table.free or {}
    _check_names(where, table)
    return replace(
        base,
        as_of=table.as_of,
        source=table.source or where,
        chips=_offers(table.chips or {}, base.chips),
        gpus={**base.gpus, **{name: gpu.hourly() for name, gpu in gpus.items()}},
        notes={**base.notes, **{name: gpu.note for name, gpu in gpus.items() if gpu.note}},
        free={**base.free, **{name: Free(one.machine, one.note) for name, one in free.items()}},
        **scalars,
    )


def _check_names(where: str, table: _Table) -> None:
    for key, names, known in (
        ("chips", table.chips or {}, tuple(CHIPS)),
        ("gpus", table.gpus or {}, tuple(hardware.GPUS)),
    ):
        for name in names:
            if name not in known:
                raise BadInput(f"{where}: {key}.{name}: one of {', '.join(known)}")
    for name, one in (table.free or {}).items():
        try:
            hardware.find(one.machine)
        except BadInput as error:
            raise BadInput(f"{where}: free.{name}.machine: {error}") from error


def _offers(
    lines: dict[str, list[_Line]], base: dict[str, dict[str, Offer]]
) -> dict[str, dict[str, Offer]]:
    found = {chip: dict(offers) for chip, offers in base.items()}
    for chip, prices in lines.items():
        offers = found.setdefault(chip, {})
        for line in prices:
            for zone in offers if line.zones is None else line.zones:
                offers[zone] = Offer(line.on_demand, line.spot, line.most_chips)
    return found
