"""A step's figures by machine code, with the keys of `--json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bigbird_ja.preflight import breakdown
from bigbird_ja.preflight.roofline import CodeCost

KEYS: tuple[str, ...] = (
    "code_cycles", "code_coverage", "code_roofline_cycles", "code_by_kind", "code_bound_by",
    "code_uncounted",
)  # fmt: skip


def figures(found: Sequence[CodeCost]) -> dict[str, Any]:
    """Sums over a step's ops; an op whose bundles cannot be counted has its priced cycles."""
    total = sum(code.cycles for code in found)
    counted = sum(code.cycles for code in found if code.bundle_cycles is not None)
    bound: dict[str, float] = defaultdict(float)
    for code in found:
        bound[code.bound_by or "not counted"] += code.cycles
    return {
        "code_cycles": round(total),
        "code_coverage": counted / total if total else 1.0,
        # What is left where every op keeps to its limit of HBM or of the matrix units.
        "code_roofline_cycles": round(sum(max(c.hbm_cycles, c.matrix_cycles) for c in found)),
        "code_by_kind": {
            kind: round(cycles)
            for kind, cycles in breakdown.by_kind(code.as_cost for code in found).items()
        },
        "code_bound_by": {
            name: round(cycles) for name, cycles in sorted(bound.items(), key=lambda i: -i[1])
        },
        "code_uncounted": uncounted(found),
    }


def uncounted(found: Sequence[CodeCost]) -> list[dict[str, Any]]:
    """The ops whose bundles cannot be counted, alike ones together, dearest first.

    Returns:
        `op`, `count` and `priced_cycles` of each that takes any.
    """
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for code in found:
        if code.bundle_cycles is None:
            name = breakdown.generic_name(code.cost)
            group = groups.setdefault(
                (name, code.cost.instruction.opcode), {"op": name, "count": 0, "priced_cycles": 0}
            )
            group["count"] += code.cost.trips
            group["priced_cycles"] += round(code.cycles)
    dear = [group for group in groups.values() if group["priced_cycles"]]
    return sorted(dear, key=lambda group: -group["priced_cycles"])
