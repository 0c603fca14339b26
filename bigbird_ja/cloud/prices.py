"""The dated table of prices, with overrides."""

from __future__ import annotations

import datetime
import importlib.resources
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from bigbird_ja import storage, typed
from bigbird_ja.cloud.accelerators import region_of
from bigbird_ja.config import nearest
from bigbird_ja.errors import BadInput

PRICINGS = ("on_demand", "spot")
OLD_DAYS = 180  # a table older than this is called old wherever it is printed


@dataclass(frozen=True)
class Prices:
    """US dollars; `hourly[accelerator][pricing]` includes the machine around a GPU."""

    as_of: datetime.date
    region: str
    source: str
    hourly: dict[str, dict[str, float]]
    notes: dict[str, str]
    storage_per_gb_month: float
    egress_per_gb_same_continent: float
    egress_per_gb_other_continent: float

    def per_hour(self, accelerator: str, pricing: str) -> float:
        """US dollars per hour.

        Raises:
            BadInput: the table has no such machine.
        """
        pricing = "spot" if pricing == "preemptible" else pricing  # one price for both
        try:
            return self.hourly[accelerator][pricing]
        except KeyError as error:
            raise BadInput(
                f"no {pricing} price for {accelerator}{nearest(accelerator, self.hourly)}:"
                " add it in a file for --prices"
            ) from error

    def age_days(self, today: datetime.date) -> int:
        """How old the table is."""
        return (today - self.as_of).days

    def describe_age(self, today: datetime.date) -> str:
        """`prices of 2022-08-11, 1563 days old: verify before renting`."""
        age = self.age_days(today)
        warning = ": old, verify before renting" if age > OLD_DAYS else ""
        return f"prices of {self.as_of}, {age} days old{warning} ({self.source})"

    def egress_per_gb(self, bucket_region: str, zone: str) -> float:
        """What reading the bucket from a zone costs; regions are named `us-central1`, `eu`, ..."""
        here, there = bucket_region.lower(), region_of(zone).lower()
        if here == there:
            return 0.0
        if here.split("-")[0] in (there.split("-")[0], _MULTI_REGION.get(there.split("-")[0])):
            return self.egress_per_gb_same_continent
        return self.egress_per_gb_other_continent


_MULTI_REGION = {"us": "us", "europe": "eu", "asia": "asia"}


def load(override_path: str | None = None) -> Prices:
    """Reads the table that ships with the package, and a user's file over it.

    Args:
        override_path: a YAML file of the same form, on disk or gs://; it may hold a part only.

    Raises:
        BadInput: no such file, not YAML, an unknown key, or a price that is not a number.
    """
    built_in = (
        importlib.resources.files("bigbird_ja.cloud").joinpath("prices.yaml").read_text("utf-8")
    )
    nothing = Prices(datetime.date.min, "", "", {}, {}, 0.0, 0.0, 0.0)
    prices = _parse(built_in, "prices.yaml", nothing)
    if override_path:
        prices = _parse(_read(override_path), override_path, prices)
    return prices


def _read(path: str) -> str:
    try:
        return storage.read_bytes(path, typed.MAX_YAML_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise BadInput(f"--prices {path}: no such file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--prices {path}: not UTF-8 (byte {error.start})") from error


Price = Annotated[float, Meta(ge=0, lt=1e6)]  # US dollars
_SCALARS = ("storage_per_gb_month", "egress_per_gb_same_continent", "egress_per_gb_other_continent")


class _Machine(msgspec.Struct, forbid_unknown_fields=True):
    """One machine's prices; `host` is what the machine around a GPU costs."""

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


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """A file of prices."""

    as_of: datetime.date
    region: str | None = None
    source: str | None = None
    accelerators: dict[str, _Machine] | None = None
    storage_per_gb_month: Price | None = None
    egress_per_gb_same_continent: Price | None = None
    egress_per_gb_other_continent: Price | None = None


def _parse(text: str, where: str, base: Prices) -> Prices:
    values = typed.read_yaml(text, where)
    known = _Table.__struct_fields__
    for key in values if isinstance(values, dict) else ():
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
    table = typed.convert(values, _Table, where, "see bigbird_ja/cloud/prices.yaml for the form")
    scalars = {name: price for name in _SCALARS if (price := getattr(table, name)) is not None}
    machines = table.accelerators or {}
    return replace(
        base,
        as_of=table.as_of,
        region=table.region or base.region,
        source=table.source or where,
        hourly={**base.hourly, **{name: entry.hourly() for name, entry in machines.items()}},
        notes={
            **base.notes,
            **{name: entry.note for name, entry in machines.items() if entry.note},
        },
        **scalars,
    )
