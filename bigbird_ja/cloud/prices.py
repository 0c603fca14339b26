"""The dated table of prices, with overrides."""

from __future__ import annotations

import datetime
import importlib.resources
from dataclasses import dataclass, replace
from typing import Any

import yaml

from bigbird_ja import storage
from bigbird_ja.cloud.accelerators import region_of
from bigbird_ja.config import nearest
from bigbird_ja.errors import BadInput

PRICINGS = ("on_demand", "spot")
OLD_DAYS = 180  # a table older than this is called old wherever it is printed
_ENTRY_KEYS = ("on_demand", "spot", "host_on_demand", "host_spot", "note")


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
    prices = _parse(yaml.safe_load(built_in), "prices.yaml", None)
    if override_path:
        prices = _parse(_read(override_path), override_path, prices)
    return prices


def _read(path: str) -> Any:
    try:
        return yaml.safe_load(storage.read_bytes(path).decode("utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"--prices {path}: no such file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"--prices {path}: not YAML: {' '.join(str(error).split())}") from error


_SCALARS = ("storage_per_gb_month", "egress_per_gb_same_continent", "egress_per_gb_other_continent")


def _parse(values: Any, where: str, base: Prices | None) -> Prices:
    if not isinstance(values, dict):
        raise BadInput(f"{where}: expected keys such as `as_of:` and `accelerators:`")
    known = ("as_of", "region", "source", "accelerators", *_SCALARS)
    for key in values:
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
    hourly, notes = _parse_machines(values.get("accelerators") or {}, where)
    as_of = values.get("as_of")
    if isinstance(as_of, datetime.datetime) or not isinstance(as_of, datetime.date):
        raise BadInput(f"{where}: as_of must say the day of these prices, as in 2022-08-11")
    scalars = {key: _number(values[key], key, where) for key in _SCALARS if key in values}
    if base is None:
        return Prices(as_of, str(values["region"]), str(values["source"]), hourly, notes, **scalars)
    return replace(
        base,
        as_of=as_of,
        region=str(values.get("region", base.region)),
        source=str(values.get("source", where)),
        hourly={**base.hourly, **hourly},
        notes={**base.notes, **notes},
        **scalars,
    )


def _parse_machines(
    machines: Any, where: str
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    if not isinstance(machines, dict):
        raise BadInput(
            f"{where}: accelerators must hold `v3-8: {{on_demand: ..., spot: ...}}` lines"
        )
    hourly, notes = {}, {}
    for name, entry in machines.items():
        if not isinstance(entry, dict) or not set(entry) <= set(_ENTRY_KEYS):
            raise BadInput(f"{where}: {name} must hold {', '.join(_ENTRY_KEYS)}")
        hourly[str(name)] = {
            pricing: _number(entry[pricing], f"{name}.{pricing}", where)
            + _number(entry.get(f"host_{pricing}", 0.0), f"{name}.host_{pricing}", where)
            for pricing in PRICINGS
            if pricing in entry
        }
        if "note" in entry:
            notes[str(name)] = str(entry["note"])
    return hourly, notes


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
        raise BadInput(f"{where}: {key}={value!r} is not a price")
    return float(value)
