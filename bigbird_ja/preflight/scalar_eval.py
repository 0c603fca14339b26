"""Scalar arithmetic of a machine code listing, which controls its loops and branches."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

_COMMENT = re.compile(r"/\*.*?\*/")
_DEFINES = re.compile(r"(%[sp][\w.]+) = ([\w.]+) ([^}]*)")
# A scalar without a register is kept in memory, each in a place of its own.
_STORES = re.compile(r"= sst \[smem:\[(#\w+)\]\] (%s\w+)")
_PLACE = re.compile(r"\[smem:\[(#\w+)\]\]")
# Maximum of trips that are counted one by one; longer loops are solved for, if possible.
_MAX_TRIPS = 1 << 17
# A predicate is evaluated in at most this many iterations, evenly spread.
_SAMPLES = 4096

_COMPARE = {name: getattr(operator, name) for name in ("ge", "gt", "le", "lt", "eq", "ne")}
# Operations by libtpu's name without its first letter, s (scalar) or p (predicate).
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "nand": lambda a, b: 1 - (a & b),
    "nor": lambda a, b: 1 - (a | b),
    "shll": operator.lshift,
    "shrl": lambda a, b: (a & 0xFFFFFFFF) >> b,
    "shra": operator.rshift,
    "min": min,
    "max": max,
}


class Scalars:
    """Scalars and predicates in one iteration of the loop that contains them.

    They are in static single assignment: each is computed from the number of the iteration, if it
    depends only on that.
    """

    def __init__(self, bundles: Iterable[str]) -> None:
        """Note how the bundles define scalars and predicates."""
        # Name -> operation, operands. A place in memory is one more name.
        self._defined: dict[str, tuple[str, list[str]]] = {}
        for part in (part for bundle in bundles for part in bundle.split(";;")):
            part = _COMMENT.sub("", part).lstrip()
            if part.startswith(("%s", "%p")) and (match := _DEFINES.match(part)):
                place = _PLACE.match(match[3])
                if place and match[2] == "sld":
                    self._defined[match[1]] = "smov", [place[1]]
                else:
                    operands = re.split(r"[,\s()]+", match[3].strip())
                    self._defined[match[1]] = match[2], [word for word in operands if word]
            elif " = sst " in part and (match := _STORES.search(part)):
                # With two stores it is unknown which one is read.
                twice = match[1] in self._defined
                self._defined[match[1]] = ("", []) if twice else ("smov", [match[2]])

    def trips(self, predicate: str, negated: bool) -> int | None:
        """Return the trips of a loop whose branch back is taken while the predicate holds."""
        for iteration in range(_MAX_TRIPS):
            value = self._value(predicate, iteration, {})
            if value is None:
                # The constant that a counter is compared with: most loops count from zero by one.
                operation, operands = self._defined.get(predicate, ("", []))
                is_compare = operation.startswith("scmp") and operands
                bound = _literal(operands[-1]) if is_compare else None
                return bound if bound and 0 < bound <= _MAX_TRIPS else None
            if bool(value) == negated:
                return iteration + 1
        return self._far_end(predicate, negated)

    def _far_end(self, predicate: str, negated: bool) -> int | None:
        """Solve for the end of a longer loop, whose compared values grow evenly."""
        operands = self._defined.get(predicate, ("", []))[1][-2:]
        places = (0, 1, _MAX_TRIPS)
        gaps = []
        for place in places:
            values = [self._value(operand, place, {}) for operand in operands]
            if len(values) != 2 or values[0] is None or values[1] is None:
                return None
            gaps.append(values[0] - values[1])
        first, growth = gaps[0], gaps[1] - gaps[0]
        if not growth or gaps[2] != first + growth * _MAX_TRIPS:
            return None
        near = -first // growth
        for iteration in range(max(near - 1, _MAX_TRIPS), near + 3):
            value = self._value(predicate, iteration, {})
            if value is not None and bool(value) == negated:
                return iteration + 1
        return None

    def not_taken(self, predicate: str, negated: bool, trips: int) -> np.ndarray:
        """Return for each sampled iteration whether a branch is not taken.

        True for all of them if that is unknown, so that the count is never too small.
        """
        samples = min(trips, _SAMPLES)
        ran = np.ones(samples, bool)
        for sample in range(samples):
            value = self._value(predicate, sample * trips // samples, {})
            if value is None:
                return np.ones(samples, bool)
            ran[sample] = bool(value) == negated
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
        if kind in ("smov", "scalar_select"):
            return self._moved(operands, iteration, known)
        # Behind a predicate; nothing reads the value if the predicate does not hold.
        values = [self._value(operand, iteration, known) for operand in operands[-2:]]
        if len(values) == 1 and values[0] is not None and kind == "pneg":
            return 1 - values[0]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return None
        if kind == "scmp":
            compare = _COMPARE.get(suffix.partition(".")[0])
            return int(compare(values[0], values[1])) if compare else None
        compute = _ARITHMETIC.get(kind[1:])
        return _signed(compute(values[0], values[1])) if compute else None

    def _moved(
        self, operands: list[str], iteration: int, known: dict[str, int | None]
    ) -> int | None:
        """Evaluate `smov a`, or `smov (p, a), b`, or a select: a if p holds, else b.

        Nothing reads the value of `smov (p), a` if p does not hold.
        """
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
        """Evaluate a value that starts at a constant and grows by a constant in each iteration."""
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
        """Return the name whose value this one is a copy of, in a register or from memory."""
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
    """Wrap to 32 bits."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
