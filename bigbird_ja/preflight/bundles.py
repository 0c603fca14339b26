"""How often each bundle of a compiled op runs, read from the compiler's listing of its final code.

A TensorCore issues one bundle a cycle, in order, and the compiler schedules them so that all units
are ready in time: so an op takes as many cycles as bundles run, and beyond that only waits for
copies from and to HBM (`roofline.py` has their limit). The listing has every bundle once, with the
loops around it and the scalar arithmetic that steers them. Scalars are in single assignment: here
each is worked out from the number of the iteration where it follows from that.

    0x7 LB: > { %i = sphi %zero, %next  ;;  ... } /* Start region 12 */      a loop's first bundle
    0x14   : > { %122 = sbr.rel (%p5) target = $region25 }                  skips to ...
    0x40 PF: > { ... }                                                      ... here
    0x4f   :  { %19 = sbr.rel (!%p9) target = $region12 }                   back to the first
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(\w\w)?\s*:[\s>]*\{(.*)$")
_BRANCH = re.compile(r"sbr\.rel (?:\((!?)(%p\w+)\) )?target = \$region(\d+)")
_STARTS = re.compile(r"Start region (\d+)")
_NAMED = re.compile(r"region (\d+)")
_DEFINES = re.compile(r"(%[sp][\w.]+) = ([\w.]+) ([^}/]*)")
# A scalar that finds no register is kept in memory, one place for each.
_STORES = re.compile(r"= sst \[smem:\[(#\w+)\]\] (?:/\*[^*]*\*/)?(%s\w+)")
_PLACE = re.compile(r"\[smem:\[(#\w+)\]\]")
# More than this is not counted one by one; such a loop's length is unknown.
_MOST_TRIPS = 1 << 17
# A predicate of more iterations than this is looked at in as many of them, evenly spread.
_LOOKS = 4096

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


@dataclass(frozen=True)
class Runs:
    """Of one op."""

    times: list[float]  # how often each bundle runs, in the listing's order
    # The share of bundles that lie in loops whose length does not follow from the listing, as it
    # depends on data; they count once.
    unknown_share: float = 0.0

    @property
    def cycles(self) -> float:
        return sum(self.times)


@dataclass
class _Loop:
    first: int  # bundle
    regions: frozenset[str]
    trips: int | None = None
    end: int = 0  # bundle after the last one

    @property
    def span(self) -> range:
        return range(self.first, self.end)


@dataclass
class _Skip:
    predicate: str
    negated: bool
    first: int
    loops: list[_Loop]  # around it, the innermost last
    region: str  # where the branch leads
    end: int = 0


@dataclass
class _Listing:
    bundles: int = 0
    defined: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    loops: list[_Loop] = field(default_factory=list)
    backs: list[tuple[_Loop, str, bool]] = field(default_factory=list)
    skips: list[_Skip] = field(default_factory=list)


def runs(text: str) -> Runs:
    """Counts the runs of every bundle.

    Args:
        text: a listing of final bundles.
    """
    listing = _read(text)
    scalars = _Scalars(listing.defined)
    for loop, predicate, negated in listing.backs:
        loop.trips = scalars.trips(predicate, negated)
    times = [1.0] * listing.bundles
    for loop in listing.loops:
        for place in loop.span:
            times[place] *= loop.trips or 1
    _apply(listing.skips, scalars, times)
    unknown = {p for loop in listing.loops if loop.trips is None for p in loop.span}
    return Runs(times, len(unknown) / max(len(times), 1))


def _apply(skips: list[_Skip], scalars: _Scalars, times: list[float]) -> None:
    """Takes from `times` the iterations that branches leave out."""
    around: list[tuple[_Skip, list[bool]]] = []
    for skip in sorted(skips, key=lambda skip: (skip.first, -skip.end)):
        trips = next((loop.trips for loop in reversed(skip.loops)), None)
        ran = scalars.not_taken(skip.predicate, skip.negated, trips or 1)
        left = 1.0  # of what the branches around it leave
        around = [(outer, those) for outer, those in around if outer.end >= skip.end]
        if around and around[-1][0].loops == skip.loops:
            outer_ran = around[-1][1]
            ran = [a and b for a, b in zip(ran, outer_ran, strict=True)]
            left = sum(outer_ran) / len(outer_ran)
        share = sum(ran) / len(ran)
        for place in range(skip.first, skip.end):
            times[place] *= share / left if left else 1.0
        around.append((skip, ran))


def _read(text: str) -> _Listing:
    listing = _Listing()
    open_loops: list[_Loop] = []
    open_skips: list[_Skip] = []
    for line in text.splitlines():
        match = _BUNDLE.match(line)
        if not match:
            continue
        label, body = match[1], match[2]
        place = listing.bundles
        listing.bundles += 1
        if label == "PF":
            listing.skips += _ended(open_skips, place, _NAMED.findall(body))
        if label == "LB":
            open_loops.append(_Loop(place, frozenset(_STARTS.findall(body))))
        _define(body, listing.defined)
        for negated, predicate, region in _BRANCH.findall(body):
            back = next((loop for loop in open_loops if region in loop.regions), None)
            if back is not None:
                back.end = place + 1
                open_loops.remove(back)
                listing.loops.append(back)
                listing.backs.append((back, predicate, negated == "!"))
            elif predicate:
                around = list(open_loops)
                open_skips.append(_Skip(predicate, negated == "!", place + 1, around, region))
    for loop in open_loops:
        loop.end = listing.bundles
        listing.loops.append(loop)
    return listing


def _ended(open_skips: list[_Skip], place: int, regions: list[str]) -> list[_Skip]:
    """The skips that end here: those whose target is named, at least the last one."""
    ended = [skip for skip in open_skips if skip.region in regions] or open_skips[-1:]
    for skip in ended:
        open_skips.remove(skip)
        skip.end = place
    return ended


def _define(body: str, defined: dict[str, tuple[str, list[str]]]) -> None:
    """Notes what a bundle makes of scalars and predicates; a place in memory is one more name."""
    for part in body.split(";;"):
        part = part.lstrip()
        if part.startswith(("%s", "%p")):
            match = _DEFINES.match(part)
            if match:
                place = _PLACE.match(match[3])
                if place and match[2] == "sld":
                    defined[match[1]] = "smov", [place[1]]
                else:
                    defined[match[1]] = match[2], _operands(match[3])
        elif " = sst " in part:
            match = _STORES.search(part)
            if match:
                # With two stores it is not known which one is read.
                twice = match[1] in defined
                defined[match[1]] = ("", []) if twice else ("smov", [match[2]])


def _operands(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s()]+", text.strip()) if word]


class _Scalars:
    """The values of scalars and predicates in one iteration of the loop that they count."""

    def __init__(self, defined: Mapping[str, tuple[str, list[str]]]) -> None:
        self._defined = defined

    def trips(self, predicate: str, negated: bool) -> int | None:
        """How often a loop runs that goes on while the branch back is taken."""
        for iteration in range(_MOST_TRIPS):
            value = self._value(predicate, iteration, {})
            if value is None:
                return self._bound(predicate)
            if bool(value) == negated:
                return iteration + 1
        return None

    def _bound(self, predicate: str) -> int | None:
        """The constant that a counter is compared with: loops count from zero by one as a rule."""
        operation, operands = self._defined.get(predicate, ("", []))
        bound = _literal(operands[-1]) if operation.startswith("scmp") and operands else None
        return bound if bound and 0 < bound <= _MOST_TRIPS else None

    def not_taken(self, predicate: str, negated: bool, trips: int) -> list[bool]:
        """For the iterations that are looked at: whether what a branch skips does run; where that
        is not known, in all of them, so that the count is never too small."""
        looks = min(trips, _LOOKS)
        ran = []
        for look in range(looks):
            value = self._value(predicate, look * trips // looks, {})
            if value is None:
                return [True] * looks
            ran.append(bool(value) == negated)
        return ran

    def _value(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        if not name.startswith(("%", "#")):
            return _literal(name)
        if name not in known:
            known[name] = None  # what depends on itself other than by a counter is not known
            known[name] = self._work_out(name, iteration, known)
        return known[name]

    def _work_out(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        operation, operands = self._defined.get(name, ("", []))
        kind, _, rest = operation.partition(".")
        if kind == "sphi":
            return self._counter(name, operands, iteration)
        if kind == "smov":
            return self._moved(operands, iteration, known)
        values = [self._value(operand, iteration, known) for operand in operands[:2]]
        if len(values) == 1 and values[0] is not None and kind == "pneg":
            return 1 - values[0]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return None
        if kind == "scmp":
            compare = _COMPARE.get(rest.partition(".")[0])
            return int(compare(values[0], values[1])) if compare else None
        compute = _ARITHMETIC.get(kind)
        return _signed(compute(values[0], values[1])) if compute else None

    def _moved(
        self, operands: list[str], iteration: int, known: dict[str, int | None]
    ) -> int | None:
        """`smov a`; `smov (p, a), b`: a where p holds, else b; `smov (p), a`: a where p holds, and
        what is read where it does not hold means nothing."""
        if len(operands) <= 2:
            return self._value(operands[-1], iteration, known)
        if len(operands) != 3:
            return None
        chosen = self._value(operands[0].lstrip("!"), iteration, known)
        if chosen is None:
            return None
        holds = bool(chosen) != operands[0].startswith("!")
        return self._value(operands[1 if holds else 2], iteration, known)

    def _counter(self, name: str, operands: list[str], iteration: int) -> int | None:
        """A value that starts at a constant and grows by one in each iteration."""
        start = step = None
        for operand in operands:
            operation, inner = self._defined.get(self._origin(operand), ("", []))
            if operation.startswith("sadd") and name in map(self._origin, inner):
                step = next((_literal(o) for o in inner if self._origin(o) != name), None)
            else:
                start = self._value(operand, 0, {name: None})
        if start is None or step is None:
            return None
        return start + step * iteration

    def _origin(self, name: str) -> str:
        """Where a value comes from that was only moved, or kept in memory."""
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
