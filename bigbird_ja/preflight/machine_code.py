"""Cycles of libtpu's final code: the flags that list it, and how often each bundle runs.

libtpu also analyzes its code itself (`--xla_jf_dump_static_llo_profile_to`), but that ends its
process at the first op that it cannot analyze, and every train step has one. The listing has every
op's code. Tried from libtpu 0.0.42, for the chips of `MATMUL_FLOPS`.

A TensorCore issues one bundle a cycle, in order, and the compiler schedules them so that all units
are ready in time: so an op takes as many cycles as bundles run, and beyond that only waits for
copies from and to HBM (`roofline.py` has their limit). The listing has every bundle once, with its
loops and the scalar arithmetic that controls them (`Scalars`).

    0x7 LB: > { %i = sphi %zero, %next  ;;  ... } /* Start region 12 */      a loop's first bundle
    0x14   : > { %122 = sbr.rel (%p5) target = $region25 }                  skips to ...
    0x40 PF: > { ... }                                                      ... here
    0x4f   :  { %19 = sbr.rel (!%p9) target = $region12 }                   back to the first
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bigbird_ja.preflight.scalar_eval import Scalars

# FLOP of one `vmatmul` of bfloat16: 16 rows with the 128 x 128 weights of a matrix unit, 256 x 256
# on v6e and v7x; both cores of v5p, one device, run it.
MATMUL_FLOPS: Mapping[str, float] = {
    **{"v2": 2**19, "v3": 2**19, "v4": 2**19, "v5e": 2**19, "v5p": 2**20, "v6e": 2**21},
    "v7x": 2**21,
}
_MAX_UNKNOWN = 0.05
_BUNDLES, _UTILIZATION = "final_bundles", "final_hlo-static-per-bundle-utilization"
_FILE = re.compile(rf"\d+-(.+)-\d+-({_BUNDLES}|{_UTILIZATION})\.txt")


@dataclass(frozen=True)
class Code:
    """Count of one op. The compiler makes and lists the code of identical ops once."""

    cycles: float  # cycles of one run
    # Fraction of each unit's slots that are used while the op runs.
    slots: dict[str, float] = field(default_factory=dict)
    # Fraction of bundles in loops whose trip count depends on data; they count once.
    unknown_share: float = 0.0
    matmuls: float = 0.0  # matrix products of 16 rows in one run: see `MATMUL_FLOPS`
    steps: float = 0.0  # steps in which a kernel's grid fetches blocks from HBM

    @property
    def is_counted(self) -> bool:
        """Whether `cycles` is known and no unit is more than full.

        Copies of an uneven tile's end have short loops of unknown trip count; in a scatter these
        have most of the bundles.
        """
        return self.unknown_share <= _MAX_UNKNOWN and max(self.slots.values(), default=0) < 1.001


def flags(directory: str) -> str:
    """Return the flags for LIBTPU_INIT_ARGS that make libtpu list its code in a folder."""
    return (
        f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        f" --xla_jf_dump_llo_pass_label_regex=^({_BUNDLES}|{_UTILIZATION})$"
    )


def collect(directory: str, kernel_trips: Sequence[Sequence[float]] = ()) -> dict[str, Code]:
    """Read all listings of a folder: op's name to its code.

    Args:
        directory: folder of the listings.
        kernel_trips: see `bundle_runs`.
    """
    texts: dict[str, dict[str, str]] = {_BUNDLES: {}, _UTILIZATION: {}}
    for file in sorted(os.listdir(directory)):
        if match := _FILE.fullmatch(file):
            with open(os.path.join(directory, file), encoding="utf-8") as stream:
                texts[match[2]][match[1]] = stream.read()
    codes = {}
    for name, text in texts[_BUNDLES].items():
        bundles = bundles_of(text)
        times, unknown_share = bundle_runs(bundles, kernel_trips)
        slots = fullness(texts[_UTILIZATION].get(name, ""), times)
        runs = [(bundle[2], often) for bundle, often in zip(bundles, times, strict=True)]
        # Products of 16 rows: 8 of float32 are half of one, 32 of int8 take as long as one.
        matmuls = sum(
            often * (0.5 if kind == "f32" else 1.0)
            for body, often in runs
            for kind in _MATMUL.findall(body)
        )
        # Runs of the loop that starts copies from HBM.
        steps = max((often for body, often in runs if "= dma.hbm_to_vmem" in body), default=0.0)
        codes[name] = Code(sum(times), slots, unknown_share, matmuls, steps)
    return codes


def fullness(text: str, times: Sequence[float]) -> dict[str, float]:
    """Return the used fraction of each unit's slots, {} if `times` is of other bundles.

    Args:
        text: a line that names the units, one with their slots in a bundle, then one line for each
            bundle.
        times: runs of each bundle.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    total = sum(times)
    if len(lines) != len(times) + 2 or not total:
        return {}
    names = [name.strip() for name in lines[0].split(",")]
    capacity, *used = (np.array(line.split(), float) for line in lines[1:])
    shares = np.array(times) @ np.array(used) / (capacity * total)
    return dict(zip(names, shares.tolist(), strict=True))


_BUNDLE_LINE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(\w\w)?\s*:[\s>]*\{(.*)$")
_MATMUL = re.compile(r"= vmatmul\.(?:mubr\.)?(\w+)")
_BRANCH = re.compile(r"sbr\.rel (?:\((!?)(%p\w+)\) )?target = \$region(\d+)")
_STARTS = re.compile(r"Start region (\d+)")
_NAMED = re.compile(r"region (\d+)")


@dataclass(eq=False)
class _Branch:
    """A branch back to the first bundle of a loop, or forward over bundles."""

    regions: frozenset[str]  # its targets
    first: int  # bundle of the loop, or skipped
    end: int = 0  # bundle after the last one
    predicate: str = ""
    negated: bool = False
    loops: list[_Branch] = field(default_factory=list)  # that contain it, the innermost last
    trips: int | None = None  # of a loop


def bundles_of(text: str) -> list[re.Match[str]]:
    """Find the bundles of a listing: group 1 is the label, group 2 what it issues."""
    return [match for line in text.splitlines() if (match := _BUNDLE_LINE.match(line))]


def bundle_runs(
    bundles: Sequence[re.Match[str]], trips: Sequence[Sequence[float]] = ()
) -> tuple[list[float], float]:
    """Count how often each bundle of a listing runs, in its order, and `Code.unknown_share`.

    Args:
        bundles: bundles of the listing.
        trips: for each kernel the mean trips of its loops that depend on data. They are used for
            code with as many such loops that all multiply matrices, which XLA's own never do.
    """
    scalars = Scalars(match[2] for match in bundles)
    loops, skips = _branches(bundles)
    times, unknown = np.ones(len(bundles)), np.zeros(len(bundles))
    for loop in loops:
        loop.trips = scalars.trips(loop.predicate, loop.negated)
        times[loop.first : loop.end] *= loop.trips or 1
    by_data = sorted((loop for loop in loops if loop.trips is None), key=lambda loop: loop.first)
    multiply = [any(_MATMUL.search(b[2]) for b in bundles[o.first : o.end]) for o in by_data]
    fitting = (means for means in trips if multiply == [True] * len(means))
    known = next(fitting, [None] * len(by_data))
    for loop, mean in zip(by_data, known, strict=True):
        times[loop.first : loop.end] *= 1 if mean is None else mean
        unknown[loop.first : loop.end] += mean is None
    _apply(skips, scalars, times)
    return times.tolist(), int(np.count_nonzero(unknown)) / max(len(times), 1)


def _apply(skips: list[_Branch], scalars: Scalars, times: np.ndarray) -> None:
    """Subtract from `times` the iterations that branches skip."""
    outer: list[tuple[_Branch, np.ndarray]] = []  # the skips that contain this one
    for skip in sorted(skips, key=lambda skip: (skip.first, -skip.end)):
        trips = next((loop.trips for loop in reversed(skip.loops)), None)
        ran = scalars.not_taken(skip.predicate, skip.negated, trips or 1)
        outer_share = 1.0
        outer = [(other, other_ran) for other, other_ran in outer if other.end >= skip.end]
        if outer and outer[-1][0].loops == skip.loops:
            ran &= outer[-1][1]
            outer_share = outer[-1][1].mean()
        times[skip.first : skip.end] *= ran.mean() / outer_share if outer_share else 1.0
        outer.append((skip, ran))


def _branches(bundles: Sequence[re.Match[str]]) -> tuple[list[_Branch], list[_Branch]]:
    """Find the loops and the skips of a listing."""
    loops: list[_Branch] = []
    skips: list[_Branch] = []
    open_loops: list[_Branch] = []
    open_skips: list[_Branch] = []
    for place, match in enumerate(bundles):
        label, body = match[1], match[2]
        if label == "PF":  # ends the skips whose target it names, at least the last one
            targets = frozenset(_NAMED.findall(body))
            for skip in [s for s in open_skips if s.regions & targets] or open_skips[-1:]:
                open_skips.remove(skip)
                skip.end = place
                skips.append(skip)
        if label == "LB":
            open_loops.append(_Branch(frozenset(_STARTS.findall(body)), place))
        for negated, predicate, region in _BRANCH.findall(body):
            loop = next((loop for loop in open_loops if region in loop.regions), None)
            if loop is not None:
                loop.predicate, loop.negated, loop.end = predicate, negated == "!", place + 1
                open_loops.remove(loop)
                loops.append(loop)
            elif predicate:
                skip = _Branch(frozenset({region}), place + 1, 0, predicate, negated == "!")
                skip.loops = list(open_loops)
                open_skips.append(skip)
    for loop in open_loops:
        loop.end = len(bundles)
    return loops + open_loops, skips
