"""The parser of optimised HLO text."""

from __future__ import annotations

import pytest

from bigbird_ja.preflight import hlo

FUSION = (
    "  %fusion.20 = (bf16[1024]{0:T(1024)(128)(2,1)}, bf16[1024,768]{0,1:T(8,128)(2,1)}) "
    "fusion(f32[768,768]{1,0:T(8,128)} %a, /*index=1*/f32[1024,768]{1,0:T(8,128)} %b), "
    'kind=kOutput, calls=%fused.20, metadata={op_name="layer_0/mlp/MatMul" source_line=7}, '
    'backend_config={"window_config":{"estimated_cycles":"11953","iteration_bounds":[]}}'
)


def test_an_instruction_with_a_tuple_layouts_and_comments() -> None:
    op = hlo.parse_instruction(FUSION)
    assert (op.name, op.opcode) == ("fusion.20", "fusion")
    assert [shape.dimensions for shape in op.shapes] == [(1024,), (1024, 768)]
    assert op.shapes[1].minor_to_major == (0, 1)
    assert op.operands == ("a", "b")
    assert op.called == ("fused.20",)
    assert op.estimated_cycles == 11953
    assert op.op_name == "layer_0/mlp/MatMul"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("bf16[24,4096,64]{2,1,0}", 24 * 4096 * 128 * 2),  # 64 lanes padded to 128
        ("bf16[24,4096,64]{1,2,0}", 24 * 64 * 4096 * 2),  # rows minor: nothing to pad
        ("f32[100]{0}", 128 * 4),
        ("f32[]", 4),
        ("(f32[3,100]{1,0}, pred[8,128]{1,0:T(8,128)})", 8 * 128 * 4 + 8 * 128),
        ("token[]", 0),
    ],
)
def test_padded_bytes(shape: str, expected: int) -> None:
    assert hlo.parse_instruction(f"  %x = {shape} custom-call(%y)").padded_bytes == expected


def test_the_mark_for_unknown_is_not_an_estimate() -> None:
    line = '  %c = f32[8]{0} copy(%x), backend_config={"estimated_cycles":"9223372036854775807"}'
    assert hlo.parse_instruction(line).estimated_cycles is None


def test_a_module_without_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("HloModule m\n\n%c (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n")
