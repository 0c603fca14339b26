"""TPU chips, as the compiler sees them, and TPU slices, as they are rented.

A `Chip` describes the device on which one compiled program runs. On v2, v3 and v7x the device is a
core, half a chip. v5e and v6e have one core per chip. On v5p the device is the chip with its two
cores. On v4 the offline topology compiles for one core, but the TPU's runtimes join a chip's two
cores into one device ("megacore") with one memory of 32 GB. `MEGACORE` describes this device. A v4
slice consists of such devices.

Sources:

- Peak rates and memory per chip: Google Cloud's pages "TPU v2", ... "TPU7x"
  (cloud.google.com/tpu/docs), halved if the device is half a chip.
- Clocks of v2 to v4: Jouppi et al., "TPU v4" (ISCA 2023, arXiv:2304.01433, table 4). The other
  clocks are the peak rate divided by the FLOPs of the matrix units per cycle. v5e, and each core of
  v5p, have four units of 128 x 128. v6e, and each core of v7x, have four units of 256 x 256. Each
  cell of a unit computes two FLOPs per cycle.
- `hbm_bytes`: the memory that libtpu leaves to a program, read from its out-of-memory reports.
"""

import math
import re
from dataclasses import dataclass

from bigbird_ja.accelerators.measured import LINKS
from bigbird_ja.errors import BadInput
from bigbird_ja.settings.suggestions import suggest_nearest

_GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """Device on which one compiled program runs.

    Attributes:
        name: Name of the chip.
        topology: libtpu's name of the smallest slice.
        peak_flops: Peak rate in bfloat16 FLOP/s.
        clock_hz: Clock, to convert the compiler's cycles to seconds.
        hbm_bytes: Memory that a program can use.
        hbm_bytes_per_second: Bandwidth of HBM.
        unit: "core" or "chip", the part of a chip that is one device.
        link_bytes_per_second: All-reduce bandwidth of the device's links in one direction.
        remark: Remark for users.
    """

    name: str
    topology: str
    peak_flops: float
    clock_hz: float
    hbm_bytes: int
    hbm_bytes_per_second: float
    unit: str
    link_bytes_per_second: float
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
# Chips whose two cores are one device on a slice, but not in the offline topology.
MEGACORE: dict[str, Chip] = {
    "v4": Chip("v4", "v4:2x2x1", 275e12, 1.05e9, int(30.75 * _GIB), 1228e9, "chip", 300e9,
               "both cores joined"),
}
# fmt: on


@dataclass(frozen=True)
class Accelerator:
    """TPU slice.

    Attributes:
        name: Google's name. It contains the number of chips for v5e and v6e, and the number of
            cores for other chips.
        chip: Name of its chip in `CHIPS`.
        chips: Number of chips. Prices are per chip.
        units: Number of chips or of cores, as `Chip.unit` states.
        devices: Number of devices, over which the global batch is divided.
        peak_flops: Peak rate of the whole slice in bfloat16 FLOP/s.
    """

    name: str
    chip: str
    chips: int
    units: int
    devices: int
    peak_flops: float

    @property
    def hosts(self) -> int:
        """Number of the slice's virtual machines."""
        return 1 if self.chips <= _ONE_HOST.get(self.chip, 4) else math.ceil(self.chips / 4)

    @property
    def generation(self) -> int:
        """Generation, such as 3 for `v3-8`, or 5 for `v5e-8` and `v5p-8`."""
        return int(self.chip[1])

    @property
    def launch_type(self) -> str:
        """Google's name for `launch --accelerator_type`: `v5litepod-8` for v5e-8, else `name`."""
        return self.name.replace("v5e-", "v5litepod-")


# Chips for which the number in a slice's name counts chips. For other chips the number counts
# cores, two per chip.
_COUNTS_CHIPS = ("v5e", "v6e")
# Maximum number of chips of a slice with one host, if it is not 4.
_ONE_HOST = {"v5e": 8, "v6e": 8}
_SYNONYMS = {"v5litepod": "v5e", "v5lite": "v5e", "tpu7x": "v7x", "v7": "v7x"}
# Cores per chip, for chips whose `Chip.unit` is a core. The unit of all others is a chip.
_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v7x": 2}
_NAME = re.compile(r"(v[0-9]+[a-z]*|tpu7x)-([0-9]+)")
# The usual machine of each generation.
USUAL = ("v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "v7x-8")


def find(name: str) -> Accelerator:
    """Return the slice with a name such as `v3-8`, `v5e-32` or `v5litepod-8`.

    Raises:
        BadInput: There is no such slice.
    """
    match = _NAME.fullmatch(name)
    chip = _SYNONYMS.get(match[1], match[1]) if match else ""
    if match is None or chip not in CHIPS:
        raise BadInput(
            f"{name!r} is not a TPU type{suggest_nearest(name, USUAL)}: use a type such as v3-8 or"
            " v5e-32"
            f" ({', '.join(CHIPS)})"
        )
    per_chip = 1 if chip in _COUNTS_CHIPS else 2
    count = int(match[2])
    chips = count // per_chip
    # The smallest slice has four chips. Of v5e and v6e there are also machines with one chip.
    small = [1] if chip in _COUNTS_CHIPS else []
    if chips * per_chip != count or (chips not in small and chips < 4) or chips & (chips - 1):
        sizes = ", ".join(f"{chip}-{per_chip * chips}" for chips in (*small, 4, 8, 16))
        raise BadInput(f"{name!r}: no TPU has that size (use {sizes}, ...)")
    return build_slice(chip, chips)


def build_slice(chip: str, chips: int) -> Accelerator:
    """Return the slice with `chips` chips of the type `chip`, such as "v5e"."""
    cores = _CORES_PER_CHIP.get(chip, 1)
    return Accelerator(
        f"{chip}-{chips * (1 if chip in _COUNTS_CHIPS else 2)}",
        chip,
        chips,
        chips * cores,
        chips * (1 if chip in MEGACORE else cores),
        chips * cores * CHIPS[chip].peak_flops,
    )


def predict_link_seconds(chip: Chip, topology: str, carried: float, count: int) -> float:
    """Return the seconds of a step's collectives on the links of a slice.

    If every dimension with several chips has at least 16 of them (at least 4 on v5p), the links
    form rings, and both directions are used. For a chip without a public timing, the specified
    bandwidth is used.

    Args:
        chip: chip of the slice.
        topology: topology of the slice, such as `v5e:2x4`.
        carried: bytes that pass over each device's links.
        count: number of collectives.
    """
    sizes = [int(size) for size in topology.partition(":")[2].split("x") if size != "1"]
    if chip.name not in LINKS or not sizes:
        return carried / chip.link_bytes_per_second
    hop, rate = LINKS[chip.name]
    ways = 2 if min(sizes) >= (4 if chip.name == "v5p" else 16) else 1
    return count * hop * sum(sizes) / ways + carried / (rate * ways * len(sizes))


def parse_topology(name: str) -> Accelerator:
    """Return the slice of a topology such as `v5e:2x4` or `v4:2x2x1`.

    Raises:
        BadInput: The name has another form.
    """
    chip, _, shape = name.partition(":")
    if chip not in CHIPS or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", shape):
        near = "" if chip in CHIPS else suggest_nearest(chip, CHIPS)
        raise BadInput(
            f"{name!r} is not a topology such as v5e:2x4 or v4:2x2x1 (three numbers for v4, v5p and"
            f" v7x){near}: the chips are {', '.join(CHIPS)}"
        )
    return build_slice(chip, math.prod(map(int, shape.split("x"))))
