"""libtpu's listings of its final code: the flags that make it write them, and how often each bundle
of a compiled op runs.

libtpu also analyses its code itself (`--xla_jf_dump_static_llo_profile_to`), but that ends its
process at the first op that it cannot analyse; in a train step there always is one. It lists every
op's code. Tried with `_SINCE` and later, for the chips of `MATMUL_FLOPS`.

A TensorCore issues one bundle a cycle, in order, and the compiler schedules them so that all units
are ready in time: so an op takes as many cycles as bundles run, and beyond that only waits for
copies from and to HBM (`roofline.py` has their limit). The listing has every bundle once, with its
loops and the scalar arithmetic that controls them. Scalars are in single assignment: here each is
computed from the number of the iteration, where it follows from that.

    0x7 LB: > { %i = sphi %zero, %next  ;;  ... } /* Start region 12 */      a loop's first bundle
    0x14   : > { %122 = sbr.rel (%p5) target = $region25 }                  skips to ...
    0x40 PF: > { ... }                                                      ... here
    0x4f   :  { %19 = sbr.rel (!%p9) target = $region12 }                   back to the first
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# FLOP of one `vmatmul` of bfloat16: 16 rows with the 128 x 128 weights of a matrix unit, 256 x 256
# on v6e and v7x; both cores of v5p, one device, run it.
MATMUL_FLOPS: Mapping[str, float] = {"v5e": 2**19, "v5p": 2**20, "v6e": 2**21, "v7x": 2**21}
_SINCE = (0, 0, 42)
_MOST_UNKNOWN = 0.05
_BUNDLES, _UTILISATION = "final_bundles", "final_hlo-static-per-bundle-utilization"
_FILE = re.compile(rf"\d+-(.+)-\d+-({_BUNDLES}|{_UTILISATION})\.txt")


@dataclass(frozen=True)
class Code:
    """Of one op. Identical ops share their code: the compiler makes and lists it once."""

    cycles: float  # of one run
    # Unit to the share of its slots that are used while the op runs.
    slots: dict[str, float] = field(default_factory=dict)
    # The share of bundles in loops whose trip count depends on data; they count once.
    unknown_share: float = 0.0
    matmuls: float = 0.0  # matrix products of 16 rows in one run: see `MATMUL_FLOPS`

    @property
    def is_counted(self) -> bool:
        """Whether `cycles` is known. Copies of an uneven tile's end have short loops of unknown
        trip count; in a scatter these have most of the bundles. No unit is more than full."""
        return self.unknown_share <= _MOST_UNKNOWN and max(self.slots.values(), default=0) < 1.001


def is_available(chip: str, libtpu: str) -> bool:
    """Whether this version of libtpu lists its code for a chip.

    Args:
        chip: of `chips.CHIPS`.
        libtpu: a version, such as "0.0.52".
    """
    version = tuple(int(number) for number in re.findall(r"\d+", libtpu)[:3])
    return chip in MATMUL_FLOPS and version >= _SINCE


def flags(directory: str) -> str:
    """For LIBTPU_INIT_ARGS.

    Args:
        directory: where the listings go.
    """
    return (
        f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        f" --xla_jf_dump_llo_pass_label_regex=^({_BUNDLES}|{_UTILISATION})$"
    )


def collect(directory: str) -> dict[str, Code]:
    """Reads all listings: op's name to its code."""
    texts: dict[str, dict[str, str]] = {_BUNDLES: {}, _UTILISATION: {}}
    for file in sorted(os.listdir(directory)):
        if match := _FILE.fullmatch(file):
            with open(os.path.join(directory, file), encoding="utf-8") as stream:
                texts[match[2]][match[1]] = stream.read()
    codes = {}
    for name, text in texts[_BUNDLES].items():
        times, unknown_share = bundle_runs(text)
        slots = fullness(texts[_UTILISATION].get(name, ""), times)
        codes[name] = Code(sum(times), slots, unknown_share, _matmuls(text, times))
    return codes


def _matmuls(text: str, times: Sequence[float]) -> float:
    """Count matrix products of 16 rows; a register holds 8 rows of float32 (int8: 32, at twice the
    rate)."""
    bundles = [match[2] for line in text.splitlines() if (match := _BUNDLE_LINE.match(line))]
    return sum(
        often * (0.5 if kind == "f32" else 1.0)
        for body, often in zip(bundles, times, strict=True)
        for kind in _MATMUL.findall(body)
    )


def fullness(text: str, times: Sequence[float]) -> dict[str, float]:
    """How much of each unit's slots is used, from 0 to 1; {} where the bundles are others.

    Args:
        text: a line that names the units, one with their slots in a bundle, then one line for each
            bundle.
        times: how often each bundle runs.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    total = sum(times)
    if len(lines) != len(times) + 2 or not total:
        return {}
    names = [name.strip() for name in lines[0].split(",")]
    capacity = [int(number) for number in lines[1].split()]
    used = [0.0] * len(names)
    for line, often in zip(lines[2:], times, strict=True):
        for place, slots in enumerate(line.split()):
            if slots != "0":
                used[place] += int(slots) * often
    return {
        name: sum_ / (slots * total)
        for name, sum_, slots in zip(names, used, capacity, strict=True)
    }


_BUNDLE_LINE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(\w\w)?\s*:[\s>]*\{(.*)$")
_MATMUL = re.compile(r"= vmatmul\.(?:mubr\.)?(\w+)")
_BRANCH = re.compile(r"sbr\.rel (?:\((!?)(%p\w+)\) )?target = \$region(\d+)")
_STARTS = re.compile(r"Start region (\d+)")
_NAMED = re.compile(r"region (\d+)")
_DEFINES = re.compile(r"(%[sp][\w.]+) = ([\w.]+) ([^}/]*)")
# A scalar without a register is kept in memory, one place for each.
_STORES = re.compile(r"= sst \[smem:\[(#\w+)\]\] (?:/\*[^*]*\*/)?(%s\w+)")
_PLACE = re.compile(r"\[smem:\[(#\w+)\]\]")
# More trips than this are not counted one by one; such a loop's trip count is unknown.
_MOST_TRIPS = 1 << 17
# A predicate is evaluated in at most this many iterations, evenly spread.
_SAMPLES = 4096

_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "ge": lambda a, b: a >= b, "gt": lambda a, b: a > b, "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "sadd": lambda a, b: a + b, "ssub": lambda a, b: a - b, "smul": lambda a, b: a * b,
    "sand": lambda a, b: a & b, "sor": lambda a, b: a | b, "sxor": lambda a, b: a ^ b,
    "sshll": lambda a, b: a << b, "sshrl": lambda a, b: (a & 0xFFFFFFFF) >> b,
    "sshra": lambda a, b: a >> b,
    "smin": min, "smax": max,
    "pand": lambda a, b: a & b, "por": lambda a, b: a | b, "pxor": lambda a, b: a ^ b,
    "pnand": lambda a, b: 1 - (a & b), "pnor": lambda a, b: 1 - (a | b),
}  # fmt: skip
_Definitions = dict[str, tuple[str, list[str]]]  # name -> operation, operands


@dataclass
class _Loop:
    first: int  # bundle
    regions: frozenset[str]
    # Of the branch back to the first bundle: the predicate, and whether it is negated.
    back: tuple[str, bool] = ("", False)
    trips: int | None = None
    end: int = 0  # bundle after the last one


@dataclass
class _Skip:
    """A branch forward."""

    predicate: str
    negated: bool
    first: int
    loops: list[_Loop]  # that contain it, the innermost last
    region: str  # the branch's target
    end: int = 0


@dataclass
class _Listing:
    bundles: int = 0
    defined: _Definitions = field(default_factory=dict)
    loops: list[_Loop] = field(default_factory=list)
    skips: list[_Skip] = field(default_factory=list)


def bundle_runs(text: str) -> tuple[list[float], float]:
    """How often each bundle of a listing runs, in the listing's order, and `Code.unknown_share`."""
    listing = _read(text)
    scalars = _Scalars(listing.defined)
    times = [1.0] * listing.bundles
    unknown: set[int] = set()
    for loop in listing.loops:
        span = range(loop.first, loop.end)
        loop.trips = scalars.trips(*loop.back)
        for place in span:
            times[place] *= loop.trips or 1
        unknown.update(span if loop.trips is None else ())
    _apply(listing.skips, scalars, times)
    return times, len(unknown) / max(len(times), 1)


def _apply(skips: list[_Skip], scalars: _Scalars, times: list[float]) -> None:
    """Subtracts from `times` the iterations that branches skip."""
    outer: list[tuple[_Skip, list[bool]]] = []  # the skips that contain this one
    for skip in sorted(skips, key=lambda skip: (skip.first, -skip.end)):
        trips = next((loop.trips for loop in reversed(skip.loops)), None)
        ran = scalars.not_taken(skip.predicate, skip.negated, trips or 1)
        outer_share = 1.0
        outer = [(other, other_ran) for other, other_ran in outer if other.end >= skip.end]
        if outer and outer[-1][0].loops == skip.loops:
            outer_ran = outer[-1][1]
            ran = [a and b for a, b in zip(ran, outer_ran, strict=True)]
            outer_share = sum(outer_ran) / len(outer_ran)
        share = sum(ran) / len(ran)
        for place in range(skip.first, skip.end):
            times[place] *= share / outer_share if outer_share else 1.0
        outer.append((skip, ran))


def _read(text: str) -> _Listing:
    listing = _Listing()
    open_loops: list[_Loop] = []
    open_skips: list[_Skip] = []
    for line in text.splitlines():
        match = _BUNDLE_LINE.match(line)
        if not match:
            continue
        label, body = match[1], match[2]
        place = listing.bundles
        listing.bundles += 1
        if label == "PF":  # ends the skips whose target is named, at least the last one
            targets = _NAMED.findall(body)
            ended = [skip for skip in open_skips if skip.region in targets] or open_skips[-1:]
            for skip in ended:
                open_skips.remove(skip)
                skip.end = place
            listing.skips += ended
        if label == "LB":
            open_loops.append(_Loop(place, frozenset(_STARTS.findall(body))))
        _define(body, listing.defined)
        for negated, predicate, region in _BRANCH.findall(body):
            loop = next((loop for loop in open_loops if region in loop.regions), None)
            if loop is not None:
                loop.back, loop.end = (predicate, negated == "!"), place + 1
                open_loops.remove(loop)
                listing.loops.append(loop)
            elif predicate:
                skip = _Skip(predicate, negated == "!", place + 1, list(open_loops), region)
                open_skips.append(skip)
    for loop in open_loops:
        loop.end = listing.bundles
        listing.loops.append(loop)
    return listing


def _define(body: str, defined: _Definitions) -> None:
    """Notes how a bundle defines scalars and predicates; a place in memory is one more name."""
    for part in body.split(";;"):
        part = part.lstrip()
        if part.startswith(("%s", "%p")) and (match := _DEFINES.match(part)):
            place = _PLACE.match(match[3])
            if place and match[2] == "sld":
                defined[match[1]] = "smov", [place[1]]
            else:
                operands = re.split(r"[,\s()]+", match[3].strip())
                defined[match[1]] = match[2], [word for word in operands if word]
        elif " = sst " in part and (match := _STORES.search(part)):
            # Of two stores it is unknown which one is read.
            twice = match[1] in defined
            defined[match[1]] = ("", []) if twice else ("smov", [match[2]])


class _Scalars:
    """The values of scalars and predicates in one iteration of the loop that contains them."""

    def __init__(self, defined: _Definitions) -> None:
        self._defined = defined

    def trips(self, predicate: str, negated: bool) -> int | None:
        """How often a loop runs whose branch back is taken while the predicate holds."""
        for iteration in range(_MOST_TRIPS):
            value = self._value(predicate, iteration, {})
            if value is None:
                # The constant that a counter is compared with: most loops count from zero by one.
                operation, operands = self._defined.get(predicate, ("", []))
                is_compare = operation.startswith("scmp") and operands
                bound = _literal(operands[-1]) if is_compare else None
                return bound if bound and 0 < bound <= _MOST_TRIPS else None
            if bool(value) == negated:
                return iteration + 1
        return None

    def not_taken(self, predicate: str, negated: bool, trips: int) -> list[bool]:
        """For the sampled iterations: whether what a branch skips does run. Where that is unknown,
        in all of them, so that the count is never too small."""
        samples = min(trips, _SAMPLES)
        ran = []
        for sample in range(samples):
            value = self._value(predicate, sample * trips // samples, {})
            if value is None:
                return [True] * samples
            ran.append(bool(value) == negated)
        return ran

    def _value(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        if not name.startswith(("%", "#")):
            return _literal(name)
        if name not in known:
            known[name] = None  # a value that depends on itself other than as a counter is unknown
            known[name] = self._compute(name, iteration, known)
        return known[name]

    def _compute(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        operation, operands = self._defined.get(name, ("", []))
        kind, _, suffix = operation.partition(".")
        if kind == "sphi":
            return self._counter(name, operands, iteration)
        if kind == "smov":
            return self._moved(operands, iteration, known)
        # Behind a predicate, of which nothing reads the value where it does not hold.
        values = [self._value(operand, iteration, known) for operand in operands[-2:]]
        if len(values) == 1 and values[0] is not None and kind == "pneg":
            return 1 - values[0]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return None
        if kind == "scmp":
            compare = _COMPARE.get(suffix.partition(".")[0])
            return int(compare(values[0], values[1])) if compare else None
        compute = _ARITHMETIC.get(kind)
        return _signed(compute(values[0], values[1])) if compute else None

    def _moved(
        self, operands: list[str], iteration: int, known: dict[str, int | None]
    ) -> int | None:
        """`smov a`; `smov (p, a), b`: a where p holds, else b; `smov (p), a`: a where p holds, and
        nothing reads the value where it does not."""
        if len(operands) <= 2:
            return self._value(operands[-1], iteration, known)
        if len(operands) != 3:
            return None
        predicate = self._value(operands[0].lstrip("!"), iteration, known)
        if predicate is None:
            return None
        holds = bool(predicate) != operands[0].startswith("!")
        return self._value(operands[1 if holds else 2], iteration, known)

    def _counter(self, name: str, operands: list[str], iteration: int) -> int | None:
        """A value that starts at a constant and grows by a constant in each iteration."""
        start = step = None
        for operand in operands:
            operation, inner = self._defined.get(self._origin(operand), ("", []))
            if operation.startswith("sadd") and name in map(self._origin, inner):
                step = next((_literal(o) for o in inner[-2:] if self._origin(o) != name), None)
            else:
                start = self._value(operand, 0, {name: None})
        if start is None or step is None:
            return None
        return start + step * iteration

    def _origin(self, name: str) -> str:
        """The name of which this one is a copy, or which was kept in memory under it."""
        for _ in range(len(self._defined)):
            operation, operands = self._defined.get(name, ("", []))
            if operation.partition(".")[0] != "smov" or len(operands) != 1:
                break
            name = operands[0]
        return name


def _literal(word: str) -> int | None:
    try:
        return _signed(int(word, 0))
    except ValueError:
        return None


def _signed(value: int) -> int:
    """As 32 bits."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
