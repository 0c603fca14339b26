"""Grouping by kind."""

from __future__ import annotations

import dataclasses

import pytest

from bigbird_ja.preflight import breakdown, hlo
from bigbird_ja.preflight.costs import Cost


def _cost(op_name: str, opcode: str = "fusion", cycles: float = 1.0, name: str = "f.1") -> Cost:
    text = f'  %{name} = f32[8]{{0}} {opcode}(%x), metadata={{op_name="{op_name}"}}'
    return Cost(hlo.parse_instruction(text), 1, cycles, 0.0)


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        ("layer_3/attention/scores/einsum/Einsum", "attention scores"),
        ("layer_3/attention/softmax/Exp", "softmax"),
        ("gradient_tape/layer_3/attention/context/Einsum", "attention context"),
        ("layer_3/attention/output/MatMul", "projections"),
        ("layer_3/attention/output/dropout/SelectV2", "dropout"),
        ("layer_3/mlp/MatMul_1", "MLP"),
        ("embedding/GatherV2", "embedding"),
        ("mlm_head/layer_norm/Mean", "layer norm"),
        ("optimizer/SelectV2_3", "optimiser"),
        ("pooler/MatMul", "NSP head"),
        ("", "other"),
    ],
)
def test_kinds(op_name: str, kind: str) -> None:
    assert breakdown.kind_of(_cost(op_name)) == kind
    assert kind in breakdown.KINDS


def test_copies_are_copies_wherever_they_come_from() -> None:
    assert breakdown.kind_of(_cost("layer_1/mlp/MatMul", "copy")) == "copies"
    assert breakdown.kind_of(_cost("layer_1/mlp/MatMul", name="copy_bitcast_fusion.3")) == "copies"


def test_what_goes_between_devices_is_its_own_kind() -> None:
    cost = dataclasses.replace(_cost("optimizer/psum", "all-reduce"), collective="all-reduce")
    assert breakdown.kind_of(cost) == "between devices"


def test_the_same_op_of_all_layers_is_one_line() -> None:
    costs = [_cost(f"layer_{n}/mlp/MatMul_{n}", cycles=10) for n in range(3)]
    (top,) = breakdown.top_ops(costs)
    assert (top["op"], top["count"], top["cycles"]) == ("layer_*/mlp/MatMul", 3, 30)
