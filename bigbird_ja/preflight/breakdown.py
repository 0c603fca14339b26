"""Sums cycles by kind of op, and of the costliest ops; a step's figures by machine code."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bigbird_ja.preflight.costs import Cost
from bigbird_ja.preflight.roofline import CodeCost, StepTime

WAITING = "waiting for copies"  # of no op: see `roofline.step_time`
_CODE_KEYS = (
    "code_cycles code_coverage code_roofline_cycles code_by_kind code_bound_by code_waiting_cycles"
)
CODE_KEYS = tuple(_CODE_KEYS.split())

# The innermost of these name scopes decides; the first in this order breaks ties.
_SCOPES: dict[str, str] = {
    "dropout": "dropout",
    "softmax": "softmax",
    "scores": "attention scores",
    "context": "attention context",
    "projections": "projections",
    "attention/output": "projections",
    "layer_norm": "layer norm",
    "mlp": "MLP",
    "embedding": "embedding",
    "mlm_head": "MLM head",
    "nsp_head": "NSP head",
    "pooler": "NSP head",
    "optimizer": "optimiser",
    "attention": "attention scores",
}
_COPIES = frozenset({"copy", "transpose", "reshape", "concatenate", "pad", "slice", "broadcast"})


def kind_of(cost: Cost) -> str:
    """Say what an op is part of: "attention scores", "MLP", "copies" and so on, or "other"."""
    op = cost.instruction
    if cost.collective:
        return "between devices"
    if op.opcode in _COPIES or op.name.startswith("copy"):
        return "copies"
    scope = max(_SCOPES, key=op.op_name.rfind)
    return _SCOPES[scope] if scope in op.op_name else "other"


def by_kind(costs: Iterable[Cost]) -> dict[str, int]:
    """Sum cycles per kind, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        sums[kind_of(cost)] += cost.cycles
    return _rounded(sums)


def _rounded(sums: dict[str, float]) -> dict[str, int]:
    """Round sums and sort them, largest first."""
    return {name: round(sums[name]) for name in sorted(sums, key=lambda name: -sums[name])}


def top_ops(
    costs: Sequence[Cost], count: int = 15, code: Sequence[CodeCost] = ()
) -> list[dict[str, Any]]:
    """List the costliest ops, the same op of all layers taken together.

    Args:
        costs: of a step.
        count: how many.
        code: of the same costs in the same order, where there is machine code: it decides which are
            costliest, and adds `code_cycles`, `bundle_cycles`, `hbm_cycles` and `bound_by`.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, cost in enumerate(costs):
        groups[generic_name(cost), cost.instruction.opcode].append(place)
    ops = []
    for (name, opcode), places in groups.items():
        alike = [costs[place] for place in places]
        op: dict[str, Any] = {"op": name, "opcode": opcode, "kind": kind_of(alike[0])}
        op["count"] = sum(cost.trips for cost in alike)
        op["cycles"] = round(sum(cost.cycles for cost in alike))
        op["priced"] = round(sum(cost.priced for cost in alike))
        if code:
            by_code = [code[place] for place in places]
            op["code_cycles"] = round(sum(one.cycles for one in by_code))
            op["bundle_cycles"] = round(sum(one.bundle_cycles or 0.0 for one in by_code))
            op["hbm_cycles"] = round(sum(one.hbm_cycles for one in by_code))
            op["bound_by"] = max(by_code, key=lambda one: one.cycles).bound_by  # of the dearest
        ops.append(op)
    key = "code_cycles" if code else "cycles"
    return sorted(ops, key=lambda op: -op[key])[:count]


def generic_name(cost: Cost) -> str:
    """Return the op's name without the layer's number and the suffixes that make names unique."""
    op = cost.instruction
    name = op.op_name or f"({op.opcode})"
    name = re.sub(r"layer_\d+", "layer_*", name)
    return re.sub(r"_\d+(?=/|$)", "", name)


def code_figures(costs: Sequence[CodeCost], time: StepTime) -> dict[str, Any]:
    """Return a step's figures by machine code: `CODE_KEYS`.

    An op whose bundles cannot be counted has its priced cycles.
    """
    total = sum(code.cycles for code in costs) + time.waiting
    priced = sum(code.cycles for code in costs if code.bundle_cycles is None)
    kinds: dict[str, float] = defaultdict(float)
    bound: dict[str, float] = defaultdict(float)
    for code in costs:
        kinds[kind_of(code.cost)] += code.cycles
        bound[code.bound_by or "not counted"] += code.cycles
    if time.waiting:
        kinds[WAITING] = time.waiting
        bound["HBM"] += time.waiting
    limits = sum(max(code.hbm_cycles, code.matrix_cycles) for code in costs)
    hbm = sum(code.hbm_cycles for code in costs) + time.copied
    return {
        "code_cycles": round(total),
        "code_coverage": 1.0 - priced / total if total else 1.0,
        "code_waiting_cycles": round(time.waiting),
        # With every op at its limit of HBM or of the matrix units, and HBM at its limit.
        "code_roofline_cycles": round(max(limits, hbm)),
        "code_by_kind": _rounded(kinds),
        "code_bound_by": _rounded(bound),
    }
