"""A step's figures by machine code, with the keys of `--json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bigbird_ja.preflight import breakdown
from bigbird_ja.preflight.roofline import CodeCost
from bigbird_ja.preflight.waits import Waits

KEYS: tuple[str, ...] = (
    "code_cycles", "code_coverage", "code_roofline_cycles", "code_by_kind", "code_bound_by",
    "code_uncounted", "code_waiting_cycles",
)  # fmt: skip


def figures(found: Sequence[CodeCost], waits: Waits) -> dict[str, Any]:
    """Sums over a step's ops, and what they wait for; an op whose bundles cannot be counted has its
    priced cycles."""
    waiting = waits.waiting_cycles
    total = sum(code.cycles for code in found) + waiting
    priced = sum(code.cycles for code in found if code.bundle_cycles is None)
    kinds = breakdown.by_kind(code.as_cost for code in found)
    bound: dict[str, float] = defaultdict(float)
    for code in found:
        bound[code.bound_by or "not counted"] += code.cycles
    if waiting:
        kinds[breakdown.WAITING] = waiting
        bound["HBM"] += waiting
    limits = sum(max(code.hbm_cycles, code.matrix_cycles) for code in found)
    hbm = sum(code.hbm_cycles for code in found) + waits.copied_hbm_cycles
    return {
        "code_cycles": round(total),
        "code_coverage": 1.0 - priced / total if total else 1.0,
        "code_waiting_cycles": round(waiting),
        # What is left where every op keeps to its limit of HBM or of the matrix units, and HBM to
        # its own.
        "code_roofline_cycles": round(max(limits, hbm)),
        "code_by_kind": {
            kind: round(cycles) for kind, cycles in sorted(kinds.items(), key=lambda i: -i[1])
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
