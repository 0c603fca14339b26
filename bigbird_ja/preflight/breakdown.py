"""Where the cycles go: every instruction's layer and kind, from the name scopes of its op."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bigbird_ja.preflight.cycles import Cost
from bigbird_ja.preflight.roofline import CodeCost

WAITING = "waiting for copies"  # of no op: between a copy's start and its use (`waits.py`)
KINDS: tuple[str, ...] = (
    "attention scores", "softmax", "attention context", "projections", "MLP", "layer norm",
    "embedding", "MLM head", "NSP head", "optimiser", "dropout", "between devices", "copies",
    "other", WAITING,
)  # fmt: skip

# The innermost scope that says something decides; the first match in this order breaks ties.
_SCOPES: tuple[tuple[str, str], ...] = (
    ("dropout", "dropout"),
    ("softmax", "softmax"),
    ("scores", "attention scores"),
    ("context", "attention context"),
    ("projections", "projections"),
    ("attention/output", "projections"),
    ("layer_norm", "layer norm"),
    ("mlp", "MLP"),
    ("embedding", "embedding"),
    ("mlm_head", "MLM head"),
    ("nsp_head", "NSP head"),
    ("pooler", "NSP head"),
    ("optimizer", "optimiser"),
    ("attention", "attention scores"),
)
_COPIES = frozenset({"copy", "transpose", "reshape", "concatenate", "pad", "slice", "broadcast"})
_LAYER = re.compile(r"(?:^|/)layer_(\d+)/")


def kind_of(cost: Cost) -> str:
    """One of `KINDS`."""
    op = cost.instruction
    if cost.collective:
        return "between devices"
    if op.opcode in _COPIES or op.name.startswith("copy"):
        return "copies"
    places = [(op.op_name.rfind(scope), -rank) for rank, (scope, _) in enumerate(_SCOPES)]
    place, rank = max(places)
    return _SCOPES[-rank][1] if place >= 0 else "other"


def layer_of(cost: Cost) -> int | None:
    """The encoder layer, or None."""
    found = _LAYER.findall(cost.instruction.op_name)
    return int(found[-1]) if found else None


def by_kind(costs: Iterable[Cost]) -> dict[str, float]:
    """Cycles per kind, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        sums[kind_of(cost)] += cost.cycles
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def by_layer(costs: Iterable[Cost]) -> dict[str, float]:
    """Cycles per layer (`layer 0`, ..., `outside`)."""
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        layer = layer_of(cost)
        sums["outside" if layer is None else f"layer {layer}"] += cost.cycles
    return dict(sums)


def top_ops(
    costs: Sequence[Cost], count: int = 15, code: Sequence[CodeCost] = ()
) -> list[dict[str, Any]]:
    """The costliest ops, the same op of all layers taken together.

    Args:
        code: of the same costs in the same order, where there is machine code: it decides what is
            costliest, and adds `code_cycles`, `bundle_cycles`, `hbm_cycles` and `bound_by`.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, cost in enumerate(costs):
        groups[generic_name(cost), cost.instruction.opcode].append(place)
    found = []
    for (name, opcode), places in groups.items():
        several = [costs[place] for place in places]
        group: dict[str, Any] = {
            "op": name, "opcode": opcode, "kind": kind_of(several[0]),
            "count": sum(cost.trips for cost in several),
            "cycles": round(sum(cost.cycles for cost in several)),
            "priced": round(sum(cost.priced for cost in several)),
        }  # fmt: skip
        found.append(group | (_by_code([code[place] for place in places]) if code else {}))
    key = "code_cycles" if code else "cycles"
    return sorted(found, key=lambda group: -group[key])[:count]


def _by_code(several: Sequence[CodeCost]) -> dict[str, Any]:
    """What a group's machine code adds; it is bound by what its dearest op is bound by."""
    return {
        "code_cycles": round(sum(code.cycles for code in several)),
        "bundle_cycles": round(sum(code.bundle_cycles or 0.0 for code in several)),
        "hbm_cycles": round(sum(code.hbm_cycles for code in several)),
        "bound_by": max(several, key=lambda code: code.cycles).bound_by,
    }


def generic_name(cost: Cost) -> str:
    """The op's name without the layer's number and the suffixes that make names unique."""
    op = cost.instruction
    name = op.op_name or f"({op.opcode})"
    name = re.sub(r"layer_\d+", "layer_*", name)
    return re.sub(r"_\d+(?=/|$)", "", name)
