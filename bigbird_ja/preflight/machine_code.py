"""Cycles of libtpu's final machine code: a count of how often each bundle runs.

A bundle is a very long instruction word. A TensorCore issues one bundle per cycle, in order. The
compiler schedules the bundles so that every unit is ready in time. So an op takes one cycle for
each bundle that runs, plus the waits for copies from and to HBM (`roofline.py`). libtpu's listing
contains every bundle once, with the loops around it, and with the scalar arithmetic that controls
these loops (`Scalars`). The format was tested with libtpu 0.0.42 and later, for the chips in
`MATMUL_FLOPS`.

libtpu can also analyze its code itself (`--xla_jf_dump_static_llo_profile_to`). But its analysis
aborts at the first op that it does not support, and every train step contains such an op.

Four lines of a listing, with explanations at the right:

    0x7 LB: > { %i = sphi %zero, %next  ;;  ... } /* Start region 12 */      first bundle of a loop
    0x14   : > { %122 = sbr.rel (%p5) target = $region25 }                  branch forward
    0x40 PF: > { ... }                                                      its target
    0x4f   :  { %19 = sbr.rel (!%p9) target = $region12 }                   branch back to 0x7
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bigbird_ja.preflight.scalar_eval import Scalars

# FLOPs of one bfloat16 `vmatmul`: 16 rows times a matrix unit's weights, which are 128 x 128, or
# 256 x 256 on v6e and v7x. On v5p the instruction runs on both cores of the device.
MATMUL_FLOPS: Mapping[str, float] = {
    **{"v2": 2**19, "v3": 2**19, "v4": 2**19, "v5e": 2**19, "v5p": 2**20, "v6e": 2**21},
    "v7x": 2**21,
}
_MAX_UNKNOWN = 0.05
_BUNDLES, _UTILIZATION = "final_bundles", "final_hlo-static-per-bundle-utilization"
_FILE = re.compile(rf"\d+-(.+)-\d+-({_BUNDLES}|{_UTILIZATION})\.txt")


@dataclass(frozen=True)
class Code:
    """Counts of one op's machine code. The listing contains the code of identical ops once.

    Attributes:
        cycles: Cycles of one run.
        slots: Used fraction of each kind of slot in a bundle, by libtpu's name of the slot.
        unknown_share: Fraction of bundles in loops of unknown trip count. `cycles` contains one
            trip of such a loop.
        matmuls: Matrix products in one run, in units of `MATMUL_FLOPS`.
        steps: Grid steps of a kernel in one run, each of which fetches blocks from HBM.
    """

    cycles: float
    slots: dict[str, float] = field(default_factory=dict)
    unknown_share: float = 0.0
    matmuls: float = 0.0
    steps: float = 0.0

    @property
    def is_counted(self) -> bool:
        """Whether `cycles` can be trusted.

        The count cannot be trusted if many bundles are in loops of unknown trip count, as in a
        scatter. A few such bundles are normal, since copies of uneven tiles contain such loops. A
        used fraction of slots above 1 also means a wrong count.
        """
        return self.unknown_share <= _MAX_UNKNOWN and max(self.slots.values(), default=0) < 1.001


def format_flags(directory: str) -> str:
    """Return flags for LIBTPU_INIT_ARGS that make libtpu write its machine code to a folder."""
    return (
        f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        f" --xla_jf_dump_llo_pass_label_regex=^({_BUNDLES}|{_UTILIZATION})$"
    )


def collect(directory: str, kernel_trips: Sequence[Sequence[float]] = ()) -> dict[str, Code]:
    """Read all listings in a folder, and return the counts of machine code by op name.

    Args:
        directory: Folder of the listings.
        kernel_trips: For each kernel, the mean trip counts of its loops that depend on data.
    """
    texts: dict[str, dict[str, str]] = {_BUNDLES: {}, _UTILIZATION: {}}
    for file in sorted(os.listdir(directory)):
        if match := _FILE.fullmatch(file):
            with open(os.path.join(directory, file), encoding="utf-8") as stream:
                texts[match[2]][match[1]] = stream.read()
    codes = {}
    for name, text in texts[_BUNDLES].items():
        bundles = find_bundles(text)
        times, unknown_share = count_runs(bundles, kernel_trips)
        slots = compute_usage(texts[_UTILIZATION].get(name, ""), times)
        runs = [(bundle[2], often) for bundle, often in zip(bundles, times, strict=True)]
        # A float32 `vmatmul` multiplies 8 rows, so it counts as half a bfloat16 `vmatmul` of 16
        # rows. An int8 `vmatmul` multiplies 32 rows in the time of 16, so it counts as one.
        matmuls = sum(
            often * (0.5 if kind == "f32" else 1.0)
            for body, often in runs
            for kind in _MATMUL.findall(body)
        )
        # In a kernel, a bundle that starts copies from HBM runs once in each step of the grid.
        steps = max((often for body, often in runs if "= dma.hbm_to_vmem" in body), default=0.0)
        codes[name] = Code(sum(times), slots, unknown_share, matmuls, steps)
    return codes


def compute_usage(text: str, times: Sequence[float]) -> dict[str, float]:
    """Return the used fraction of each unit's slots, or {} if `text` and `times` do not match.

    Args:
        text: libtpu's listing of the utilization: a line with the units' names, a line with their
            slots per bundle, and one line per bundle with the used slots.
        times: Number of runs of each bundle.
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
    """A loop (a branch back to its first bundle) or a skip (a branch forward over bundles).

    Attributes:
        regions: Numbers of the regions that begin at the branch's target.
        first: Index of the first bundle in the loop, or of the first skipped bundle.
        end: Index after the last bundle in the loop, or after the last skipped bundle.
        predicate: Predicate that decides whether the branch is taken.
        negated: Whether the branch is taken if the predicate is false.
        loops: For a skip, the loops that contain it, the innermost last.
        trips: Trip count of a loop, if known.
    """

    regions: frozenset[str]
    first: int
    end: int = 0
    predicate: str = ""
    negated: bool = False
    loops: list[_Branch] = field(default_factory=list)
    trips: int | None = None


def find_bundles(text: str) -> list[re.Match[str]]:
    """Return a regular expression's match for each bundle of a listing.

    Group 1 of the match is the bundle's label, and group 2 its content.
    """
    return [match for line in text.splitlines() if (match := _BUNDLE_LINE.match(line))]


def count_runs(
    bundles: Sequence[re.Match[str]], trips: Sequence[Sequence[float]] = ()
) -> tuple[list[float], float]:
    """Count how often each bundle of a listing runs.

    Args:
        bundles: Bundles of the listing, in order.
        trips: For each kernel, the mean trip counts of its loops that depend on data. A kernel is
            recognized by the number of such loops, which all multiply matrices. In XLA's own code,
            no loop that depends on data multiplies matrices.

    Returns:
        The number of runs of each bundle, and `Code.unknown_share`.
    """
    scalars = Scalars(match[2] for match in bundles)
    loops, skips = _find_branches(bundles)
    times, unknown = np.ones(len(bundles)), np.zeros(len(bundles))
    for loop in loops:
        loop.trips = scalars.count_trips(loop.predicate, loop.negated)
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
    """Reduce `times`, the number of runs of each bundle, by the runs that branches skip."""
    # Stack of the skips that contain the current skip. Next to each skip is an array that states
    # for each sampled iteration whether the skip's bundles run.
    outer: list[tuple[_Branch, np.ndarray]] = []
    for skip in sorted(skips, key=lambda skip: (skip.first, -skip.end)):
        trips = next((loop.trips for loop in reversed(skip.loops)), None)
        ran = scalars.sample_not_taken(skip.predicate, skip.negated, trips or 1)
        outer_share = 1.0
        outer = [(other, other_ran) for other, other_ran in outer if other.end >= skip.end]
        if outer and outer[-1][0].loops == skip.loops:
            ran &= outer[-1][1]
            outer_share = outer[-1][1].mean()
        times[skip.first : skip.end] *= ran.mean() / outer_share if outer_share else 1.0
        outer.append((skip, ran))


def _find_branches(bundles: Sequence[re.Match[str]]) -> tuple[list[_Branch], list[_Branch]]:
    """Find the loops and the skips of a listing."""
    loops: list[_Branch] = []
    skips: list[_Branch] = []
    open_loops: list[_Branch] = []
    open_skips: list[_Branch] = []
    for place, match in enumerate(bundles):
        label, body = match[1], match[2]
        if label == "PF":
            # A bundle with the label PF is the target of the skips to the regions that it names. If
            # it names no region, it is the target of the last skip without a target.
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
