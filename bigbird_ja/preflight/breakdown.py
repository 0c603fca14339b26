"""Where the cycles go: every instruction's layer and kind, from the name scopes of its op."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from bigbird_ja.preflight.cycles import Cost

KINDS: tuple[str, ...] = (
    "attention scores", "softmax", "attention context", "projections", "MLP", "layer norm",
    "embedding", "MLM head", "NSP head", "optimiser", "dropout", "between devices", "copies",
    "other",
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


def top_ops(costs: Iterable[Cost], count: int = 15) -> list[dict[str, Any]]:
    """The costliest ops, the same op of all layers taken together."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for cost in costs:
        name = generic_name(cost)
        key = (name, cost.instruction.opcode)
        group = groups.setdefault(
            key,
            {
                "op": name, "opcode": cost.instruction.opcode, "kind": kind_of(cost),
                "count": 0, "cycles": 0.0, "priced": 0.0,
            },
        )  # fmt: skip
        group["count"] += cost.trips
        group["cycles"] += cost.cycles
        group["priced"] += cost.priced
    ranked = sorted(groups.values(), key=lambda group: -group["cycles"])[:count]
    return [{**g, "cycles": round(g["cycles"]), "priced": round(g["priced"])} for g in ranked]


def generic_name(cost: Cost) -> str:
    """The op's name without the layer's number and the suffixes that make names unique."""
    op = cost.instruction
    name = op.op_name or f"({op.opcode})"
    name = re.sub(r"layer_\d+", "layer_*", name)
    return re.sub(r"_\d+(?=/|$)", "", name)
