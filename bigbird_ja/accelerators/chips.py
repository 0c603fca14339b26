"""The chips that the compiler knows: peak rate, clock, memory, and where each figure comes from.

One entry describes the device that one compiled program runs on. On v2, v3 and v7x that is a core
(a chip has two). On v4 the offline topology also compiles for one core, but the TPU's runtimes join
a chip's two cores into one device ("megacore") with one memory of 32 GB: `MEGACORE` describes that
device, and slices consist of it. On v5p the topology compiles for the joined chip. v5e and v6e have
one core per chip.

Sources: Google Cloud's pages "TPU v2", "TPU v3", ... "TPU7x" (cloud.google.com/tpu/docs) for peak
rates and memory per chip, halved where the program runs on half a chip; clocks for v2 to v4 from
Jouppi et al., "TPU v4" (ISCA 2023, arXiv:2304.01433, table 4), the others from peak rate divided by
what the matrix units do per cycle (v5e, v5p: four units of 128 x 128; v6e, and each core of v7x:
four of 256 x 256; two FLOPs per cell). `hbm_bytes` is what this compiler leaves to a program after
its own reserve, read from its out-of-memory reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import nearest

_GIB = 1 << 30


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

# tf.estimator on TensorFlow 2.15 is proven on v2 and v3 only; it fails on v5 (tensorflow#90807).
TRAINABLE: frozenset[str] = frozenset({"v2", "v3", "v4"})


def chip(name: str) -> Chip:
    """The chip of that name.

    Raises:
        BadInput: there is none; the message names the nearest.
    """
    if name not in CHIPS:
        raise BadInput(f"--chip {name}{nearest(name, CHIPS)}: one of {', '.join(CHIPS)}")
    return CHIPS[name]
