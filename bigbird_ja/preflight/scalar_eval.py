"""Evaluation of the scalar arithmetic that controls the loops and branches of machine code."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

_COMMENT = re.compile(r"/\*.*?\*/")
_DEFINES = re.compile(r"(%[sp][\w.]+) = ([\w.]+) ([^}]*)")
# A scalar without a register is spilled to memory, at an address that no other scalar uses.
_STORES = re.compile(r"= sst \[smem:\[(#\w+)\]\] (%s\w+)")
_PLACE = re.compile(r"\[smem:\[(#\w+)\]\]")
# Trips up to this number are counted one by one. For longer loops, an equation is solved.
_MAX_TRIPS = 1 << 17
# A branch skips some instructions of a loop if its condition holds. The condition is evaluated for
# at most this number of iterations, evenly spread.
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
    """Scalars and predicates of machine code, as functions of the iteration of the enclosing loop.

    The scalars are in static single assignment form. A value that depends on anything except the
    iteration is unknown.
    """

    def __init__(self, bundles: Iterable[str]) -> None:
        """Read the definitions of all scalars and predicates from the text of `bundles`."""
        # Operation and operands of each scalar or predicate, by its name or its memory address.
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
                # With two stores to an address, the value is unknown.
                twice = match[1] in self._defined
                self._defined[match[1]] = ("", []) if twice else ("smov", [match[2]])

    def count_trips(self, predicate: str, negated: bool) -> int | None:
        """Return the trip count of a loop, or None if it is unknown.

        Args:
            predicate: Predicate on which the loop branches back.
            negated: Whether the loop branches back if the predicate is false.
        """
        for iteration in range(_MAX_TRIPS):
            value = self._evaluate(predicate, iteration, {})
            if value is None:
                # The predicate cannot be evaluated. Most loops count from zero by one, so take the
                # constant in the predicate's comparison as the trip count.
                operation, operands = self._defined.get(predicate, ("", []))
                is_compare = operation.startswith("scmp") and operands
                bound = _parse_literal(operands[-1]) if is_compare else None
                return bound if bound and 0 < bound <= _MAX_TRIPS else None
            if bool(value) == negated:
                return iteration + 1
        return self._solve_far_end(predicate, negated)

    def _solve_far_end(self, predicate: str, negated: bool) -> int | None:
        """Compute the trip count of a long loop from the linear growth of the compared values.

        The count is above `_MAX_TRIPS`. The result is None if the values do not grow linearly.
        """
        operands = self._defined.get(predicate, ("", []))[1][-2:]
        places = (0, 1, _MAX_TRIPS)
        gaps = []
        for place in places:
            values = [self._evaluate(operand, place, {}) for operand in operands]
            if len(values) != 2 or values[0] is None or values[1] is None:
                return None
            gaps.append(values[0] - values[1])
        first, growth = gaps[0], gaps[1] - gaps[0]
        if not growth or gaps[2] != first + growth * _MAX_TRIPS:
            return None
        near = -first // growth
        for iteration in range(max(near - 1, _MAX_TRIPS), near + 3):
            value = self._evaluate(predicate, iteration, {})
            if value is not None and bool(value) == negated:
                return iteration + 1
        return None

    def sample_not_taken(self, predicate: str, negated: bool, trips: int) -> np.ndarray:
        """Return for each sampled iteration whether a branch is not taken.

        If the predicate is unknown, the branch counts as never taken. A taken branch skips
        instructions, so the number of cycles is then an upper bound.
        """
        samples = min(trips, _SAMPLES)
        ran = np.ones(samples, bool)
        for sample in range(samples):
            value = self._evaluate(predicate, sample * trips // samples, {})
            if value is None:
                return np.ones(samples, bool)
            ran[sample] = bool(value) == negated
        return ran

    def _evaluate(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        if not name.startswith(("%", "#")):
            return _parse_literal(name)
        if name not in known:
            # While a value is evaluated, it counts as unknown. So a value that depends on itself is
            # unknown, unless it is a counter.
            known[name] = None
            known[name] = self._compute(name, iteration, known)
        return known[name]

    def _compute(self, name: str, iteration: int, known: dict[str, int | None]) -> int | None:
        operation, operands = self._defined.get(name, ("", []))
        kind, _, suffix = operation.partition(".")
        if kind == "sphi":
            return self._evaluate_counter(name, operands, iteration, known)
        if kind in ("smov", "scalar_select"):
            return self._evaluate_move(operands, iteration, known)
        # If there are three operands, the first is a predicate. Ignore the predicate, since no
        # instruction reads the value if the predicate is false.
        values = [self._evaluate(operand, iteration, known) for operand in operands[-2:]]
        if len(values) == 1 and values[0] is not None and kind == "pneg":
            return 1 - values[0]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return None
        if kind == "scmp":
            compare = _COMPARE.get(suffix.partition(".")[0])
            return int(compare(values[0], values[1])) if compare else None
        compute = _ARITHMETIC.get(kind[1:])
        return _wrap_signed(compute(values[0], values[1])) if compute else None

    def _evaluate_move(
        self, operands: list[str], iteration: int, known: dict[str, int | None]
    ) -> int | None:
        """Evaluate an instruction that copies a scalar (`smov`) or selects one of two scalars.

        `smov (p, a), b` and `scalar_select` return `a` if predicate `p` is true, else `b`. `smov a`
        and `smov (p), a` return `a`. In the latter, `p` is ignored, since no instruction reads the
        value if `p` is false.
        """
        if len(operands) <= 2:
            return self._evaluate(operands[-1], iteration, known)
        if len(operands) != 3:
            return None
        predicate = self._evaluate(operands[0].lstrip("!"), iteration, known)
        if predicate is None:
            return None
        holds = bool(predicate) != operands[0].startswith("!")
        return self._evaluate(operands[1 if holds else 2], iteration, known)

    def _evaluate_counter(
        self, name: str, operands: list[str], iteration: int, known: dict[str, int | None]
    ) -> int | None:
        """Evaluate a counter that grows by a constant in each iteration, or return None."""
        start = step = None
        # Two counters may start with each other's value. So that the recursion ends, values that
        # are being evaluated count as unknown.
        unknown = {other: None for other, value in known.items() if value is None}
        for operand in operands:
            operation, inner = self._defined.get(self._find_origin(operand), ("", []))
            if operation.startswith("sadd") and name in map(self._find_origin, inner):
                step = next(
                    (_parse_literal(o) for o in inner[-2:] if self._find_origin(o) != name), None
                )
            else:
                start = self._evaluate(operand, 0, {**unknown, name: None})
        if start is None or step is None:
            return None
        return start + step * iteration

    def _find_origin(self, name: str) -> str:
        """Follow copies through registers and memory, and return the name of the original scalar.

        If `name` is not a copy, the result is `name`.
        """
        for _ in range(len(self._defined)):
            operation, operands = self._defined.get(name, ("", []))
            if operation.partition(".")[0] != "smov" or len(operands) != 1:
                break
            name = operands[0]
        return name


def _parse_literal(word: str) -> int | None:
    try:
        return _wrap_signed(int(word, 0))
    except ValueError:
        return None


def _wrap_signed(value: int) -> int:
    """Wrap an integer to signed 32 bits."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
