"""Hold the facts of TPUs: chips as the compiler knows them, slices as they are rented, prices.

Nothing here asks the network; `prices.yaml` is the dated table of prices by chip, zone and pricing,
and of the services that rent each chip (`rentals.py`).

A `Chip` describes the device that one compiled program runs on. On v2, v3 and v7x that is a core
(a chip has two). On v4 the offline topology also compiles for one core, but the TPU's runtimes join
a chip's two cores into one device ("megacore") with one memory of 32 GB: `MEGACORE` describes that
device, and slices consist of it. On v5p the topology compiles for the joined chip. v5e and v6e have
one core per chip.

Sources: Google Cloud's pages "TPU v2", "TPU v3", ... "TPU7x" (cloud.google.com/tpu/docs) for peak
rates and memory per chip, halved where the program runs on half a chip; clocks for v2 to v4 from
Jouppi et al., "TPU v4" (ISCA 2023, arXiv:2304.01433, table 4), the others from peak rate divided by
the FLOPs of the matrix units per cycle (v5e, v5p: four units of 128 x 128; v6e, and each core of
v7x: four of 256 x 256; two FLOPs per cell). `hbm_bytes` is the memory that this compiler leaves to
a program after its own reserve, read from its out-of-memory reports.
"""

import datetime
import difflib
import importlib.resources
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.accelerators.rentals import Rental
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.suggestions import nearest
from bigbird_ja.storage import decode

_GIB = 1 << 30
COUNTED = 0.9  # share of a step that machine code must cover for `plan` to take its rate
PRICINGS = ("on_demand", "spot")
OLD_DAYS = 365  # a table older than this is called old wherever it is printed
USUAL_ZONES = 4  # so many are tried where the user names none
_MUCH_DEARER = 1.5  # than the first of them: left out, since a budget counts the dearest
Price = Annotated[float, Meta(ge=0, lt=1e6)]  # US dollars


@dataclass(frozen=True)
class Chip:
    """The device that one compiled program runs on."""

    name: str
    topology: str  # libtpu's name of the smallest slice
    peak_flops: float  # bfloat16 FLOP/s
    clock_hz: float  # turns the compiler's cycles into seconds
    hbm_bytes: int  # usable by one program
    hbm_bytes_per_second: float
    unit: str  # "core" or "chip": what `peak_flops` and `hbm_bytes` belong to
    link_bytes_per_second: float  # all-reduce bandwidth of one unit's links, one direction
    remark: str = ""


# fmt: off
_TABLE = (
    # name, topology, peak FLOP/s, clock, HBM, HBM bytes/s, unit, link bytes/s
    Chip("v2", "v2:2x2", 22.5e12, 0.70e9, int(7.48 * _GIB), 350e9, "core", 62e9),
    Chip("v3", "v3:2x2", 61.5e12, 0.94e9, int(15.48 * _GIB), 450e9, "core", 82e9),
    Chip("v4", "v4:2x2x1", 137.5e12, 1.05e9, int(15.25 * _GIB), 614e9, "core", 150e9,
         "one core of two: TensorFlow's runtime joins them and their memory into one device"),
    Chip("v5e", "v5e:2x2", 197e12, 1.5e9, int(15.75 * _GIB), 819e9, "chip", 100e9),
    Chip("v5p", "v5p:2x2x1", 459e12, 1.75e9, int(95.74 * _GIB), 2765e9, "chip", 300e9,
         "both cores joined"),
    Chip("v6e", "v6e:2x2", 918e12, 1.75e9, int(31.25 * _GIB), 1640e9, "chip", 224e9),
    Chip("v7x", "tpu7x:2x2x1", 1153.5e12, 2.2e9, int(94.74 * _GIB), 3690e9, "core", 300e9,
         "its clock is computed from its peak rate"),
)
CHIPS: dict[str, Chip] = {chip.name: chip for chip in _TABLE}
# Chips whose two cores are one device on a slice.
MEGACORE: dict[str, Chip] = {
    "v4": Chip("v4", "v4:2x2x1", 275e12, 1.05e9, int(30.75 * _GIB), 1228e9, "chip", 300e9,
               "both cores joined"),
}
# fmt: on
# Seconds of a hop, and bytes a second of one link in one direction, as `ppermute` took on chips
# (marin-community/marin#6736); v5e's links have half of v6e's rate (jax-ml.github.io/scaling-book).
LINKS = {"v5e": (2.29e-6, 43.4e9), "v5p": (4.55e-6, 86.3e9), "v6e": (2.29e-6, 86.8e9)}


@dataclass(frozen=True)
class Accelerator:
    """A TPU slice."""

    name: str  # as Google counts: cores on v2, v3, v4, v5p and v7x, chips on v5e and v6e
    chip: str  # as `preflight --chip` names it
    chips: int  # the unit of prices
    units: int  # as `preflight --chip` counts: cores where one program runs on half a chip
    devices: int  # over which the global batch is divided
    peak_flops: float  # bfloat16 FLOP/s of the whole slice
    priced_mfu: float  # share of the peak where there is no preflight figure, by priced cycles

    @property
    def hosts(self) -> int:
        """Count the virtual machines that the slice consists of."""
        return 1 if self.chips <= _ONE_HOST.get(self.chip, 4) else math.ceil(self.chips / 4)


# Share of the peak that `preflight` counts for base-4096 on whole slices, two sequences a device.
# By priced cycles, XLA's attention: v3, v4, v5e by libtpu 0.0.11.4; v5p, v6e, v7x by 0.0.52. No v2
# slice was compiled: it takes the value of v3, the most similar chip.
_PRICED_MFU = {
    **{"v2": 0.34, "v3": 0.34, "v4": 0.20, "v5e": 0.25},
    **{"v5p": 0.20, "v6e": 0.10, "v7x": 0.11},
}
# By machine code, of the step that runs there, with kernels, by architecture (libtpu 0.0.42.1).
# BigBird: 60.0 M cycles on v5e:2x4; of v6e one chip's 26.0 to 27.1 M, and for the sums over 2x4
# their links' time on paper, 3.5 ms. ModernBERT (`make bench-length`): one chip's cycles for one
# sequence at 1,024 tokens, where the share is least, and the sums as BigBird's, by its parameters.
CODE_MFU: dict[str, dict[str, float]] = {
    "bigbird": {"v5e": 0.63, "v6e": 0.29},
    "modernbert": {"v5e": 0.57, "v6e": 0.24},
}
# Chips, where a name counts them; elsewhere it counts cores, two to a chip.
_COUNTS_CHIPS = ("v5e", "v6e")
_ONE_HOST = {"v5e": 8, "v6e": 8}  # chips of the largest machine
_SYNONYMS = {"v5litepod": "v5e", "v5lite": "v5e", "tpu7x": "v7x", "v7": "v7x"}
_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v7x": 2}  # that a program of one device runs on
_NAME = re.compile(r"(v[0-9]+[a-z]*|tpu7x)-([0-9]+)")
# One virtual machine of each generation.
USUAL = ("v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "v7x-8")


def find(name: str) -> Accelerator:
    """Find the slice of that name: `v3-8`, `v5e-32`, `v5litepod-8`.

    Raises:
        BadInput: there is none.
    """
    match = _NAME.fullmatch(name)
    chip = _SYNONYMS.get(match[1], match[1]) if match else ""
    if match is None or chip not in CHIPS:
        raise BadInput(
            f"{name!r} is no TPU type{nearest(name, USUAL)}: write one such as v3-8 or v5e-32"
            f" ({', '.join(CHIPS)})"
        )
    per_chip = 1 if chip in _COUNTS_CHIPS else 2
    count = int(match[2])
    chips = count // per_chip
    small = [1] if chip in _COUNTS_CHIPS else []  # then 4: no machine has two chips
    if chips * per_chip != count or (chips not in small and chips < 4) or chips & (chips - 1):
        sizes = ", ".join(f"{chip}-{per_chip * chips}" for chips in (*small, 4, 8, 16))
        raise BadInput(f"{name!r}: no TPU of that size: {sizes}, ...")
    return of_chips(chip, chips)


def of_chips(chip: str, chips: int) -> Accelerator:
    """Make the slice with that many chips."""
    cores = _CORES_PER_CHIP.get(chip, 1)
    return Accelerator(
        f"{chip}-{chips * (1 if chip in _COUNTS_CHIPS else 2)}",
        chip,
        chips,
        chips * cores,
        chips * (1 if chip in MEGACORE else cores),
        chips * cores * CHIPS[chip].peak_flops,
        _PRICED_MFU[chip],
    )


def link_seconds(chip: Chip, topology: str, carried: float, count: int) -> float:
    """Compute what so many collectives take on the links of a slice that carry so many bytes.

    In a corner of a slice a chip has one link in each dimension; two where it wraps around, from 16
    chips on, of v5p from 4. Without a public timing of the chip its rate on paper counts.
    """
    sizes = [int(size) for size in topology.partition(":")[2].split("x") if size != "1"]
    if chip.name not in LINKS or not sizes:
        return carried / chip.link_bytes_per_second
    hop, rate = LINKS[chip.name]
    ways = 2 if min(sizes) >= (4 if chip.name == "v5p" else 16) else 1
    return count * hop * sum(sizes) / ways + carried / (rate * ways * len(sizes))


def launch_type(machine: Accelerator) -> str:
    """Name a slice for `launch --accelerator_type`: Google calls v5e `v5litepod` there."""
    return machine.name.replace("v5e-", "v5litepod-")


def of_topology(name: str) -> Accelerator:
    """Find the slice that `preflight --topology` calls `v5e:2x4` or `v4:2x2x1`.

    Raises:
        BadInput: not such a name.
    """
    chip, _, shape = name.partition(":")
    if chip not in CHIPS or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", shape):
        near = "" if chip in CHIPS else nearest(chip, CHIPS)
        raise BadInput(
            f"{name!r} is no topology such as v5e:2x4 or v4:2x2x1 (v4, v5p, v7x: three numbers)"
            f"{near}; chips: {', '.join(CHIPS)}"
        )
    return of_chips(chip, math.prod(map(int, shape.split("x"))))


def generation_of(accelerator_type: str) -> int:
    """Return 3 for `v3-8`, 5 for `v5litepod-8`."""
    match = re.match(r"(?:v|tpu)([0-9]+)", accelerator_type)
    return int(match[1]) if match else 0


def region_of(zone: str) -> str:
    """Return `us-central1` for `us-central1-b`."""
    return zone.rpartition("-")[0]


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
    rentals: dict[str, list[Rental]] = {}  # by chip, the preferred service first
    free: dict[str, Free] = {}  # by who lends it

    def offers(self, chip: str) -> dict[str, Offer]:
        """Return a chip's offers by zone; of several for a zone the last counts."""
        by_zone: dict[str, Offer] = {}
        for line in self.chips.get(chip, ()):
            by_zone |= dict.fromkeys(by_zone if line.zones is None else line.zones, line)
        return by_zone

    def rented(self, accelerator: str, pricing: str) -> list[Rental]:
        """List who rents a machine out and where, the preferred service first.

        Args:
            accelerator: such as `v5e-8`.
            pricing: on_demand, spot or flex-start.

        Raises:
            BadInput: no such machine.
        """
        machine = find(accelerator)
        known = self.rentals.get(machine.chip, [])
        return [one for one in known if one.matches(machine.chips, pricing)]

    def price(self, accelerator: str, pricing: str, zone: str) -> float | None:
        """Return US dollars per hour of the whole slice in a zone; None if no price is known.

        Flex-start counts at the on-demand price, from which Google grants a discount.
        """
        machine = find(accelerator)
        offer = self.offers(machine.chip).get(zone, Offer())
        price = offer.spot if pricing == "spot" else offer.on_demand
        is_sold = offer.most_chips is None or machine.chips <= offer.most_chips
        return price * machine.chips if price is not None and is_sold else None

    def by_zone(self, accelerator: str, pricing: str) -> list[tuple[str, float | None]]:
        """List the zones that offer a machine with its price, cheapest first, unknown prices last.

        Args:
            accelerator: such as `v5e-8`.
            pricing: on_demand, spot or flex-start.

        Raises:
            BadInput: no such machine.
        """
        found = self.rented(accelerator, pricing)
        zones = dict.fromkeys(zone for one in found for zone in one.zones)
        offers = [(zone, self.price(accelerator, pricing, zone)) for zone in zones]
        return sorted(offers, key=lambda offer: (offer[1] is None, offer[1] or 0.0))

    def per_hour(self, accelerator: str, pricing: str, zones: Sequence[str]) -> float:
        """Return US dollars per hour in the dearest of some zones.

        Raises:
            BadInput: no such machine, or one of the zones has no price of it.
        """
        prices = [self.price(accelerator, pricing, zone) for zone in zones]
        priced = [price for price in prices if price is not None]
        if not priced or len(priced) < len(prices):
            raise BadInput(
                f"no {pricing} price for {accelerator} in {', '.join(zones)}: add it in a file for"
                " --price_file"
            )
        return max(priced)

    def usual_zones(self, accelerator: str, pricing: str, near: str = "") -> tuple[str, ...]:
        """Choose zones if the user names none: offered, near the bucket, then cheapest first.

        Zones of other continents are left out where there are others, since traffic costs more than
        the difference between zones; and those much dearer than the first, since a budget counts
        the dearest.

        Args:
            accelerator: such as `v5e-8`.
            pricing: on_demand, spot or flex-start.
            near: region of the bucket; "" for the United States, where docs/cloud-setup.md puts it.
        """
        offers = self.by_zone(accelerator, pricing)
        priced = {zone: price for zone, price in offers if price is not None}
        zones = [*priced] or [zone for zone, _ in offers]
        continent = (near or "us-").partition("-")[0]
        zones = [zone for zone in zones if zone.partition("-")[0] == continent] or zones
        zones.sort(key=lambda zone: region_of(zone) != near)
        limit = _MUCH_DEARER * priced[zones[0]] if priced else 0.0
        return tuple(zone for zone in zones if priced.get(zone, 0.0) <= limit)[:USUAL_ZONES]

    def check_zone(self, zone: str, accelerator: str, pricing: str) -> None:
        """Check that a zone offers a machine, as far as the table knows.

        Raises:
            BadInput: it does not; the message names the nearest zones that do.
        """
        known = [zone for zone, _ in self.by_zone(accelerator, pricing)]
        if zone not in known:
            near = ", ".join(difflib.get_close_matches(zone, known, 3, 0.0)) or "none is known"
            raise BadInput(
                f"zone {zone!r}: {accelerator} is not offered there, by the package's table; the"
                f" nearest: {near} (of {len(known)}); add newer ones in a file for --price_file"
            )

    def age_days(self, today: datetime.date) -> int:
        """Return how old the table is."""
        return (today - self.as_of).days

    def describe_age(self, today: datetime.date) -> str:
        """Say `prices of 2026-01-01, 325 days old: verify before renting`."""
        days = self.age_days(today)
        warning = ", warning: more than a year" if days > OLD_DAYS else ""
        return f"prices of {self.as_of}, {days} days old{warning}: verify before renting"


def load_prices(override_path: str | None = None) -> Prices:
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
        text = storage.read_text(override_path, decode.MAX_YAML_BYTES)
    except FileNotFoundError as error:
        raise BadInput(f"--price_file {override_path}: no such file") from error
    values = decode.read_yaml(text, override_path)
    own = decode.convert(values, Prices, override_path, advice)
    for name, free in own.free.items():
        try:
            find(free.machine)
        except BadInput as error:
            raise BadInput(f"{override_path}: free.{name}.machine: {error}") from error
    for key in ("chips", "rentals"):
        if unknown := [chip for chip in getattr(own, key) if chip not in CHIPS]:
            raise BadInput(f"{override_path}: {key}.{unknown[0]}: one of {', '.join(CHIPS)}")
    changed = {name: getattr(own, name) for name in values}
    changed["chips"] = {c: [*prices.chips.get(c, ()), *own.chips.get(c, ())] for c in CHIPS}
    changed["rentals"] = {c: [*own.rentals.get(c, ()), *prices.rentals.get(c, ())] for c in CHIPS}
    changed["free"] = {**prices.free, **own.free}
    return msgspec.structs.replace(prices, **changed)
