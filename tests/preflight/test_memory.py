"""What the compiler says when a program does not fit."""

from __future__ import annotations

from bigbird_ja.preflight import memory

DETAILED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory \
space hbm. Used 9.28G of 7.48G hbm. Exceeded hbm capacity by 1.80G.

Total hbm usage >= 9.80G:
    reserved        530.00M

  Largest program allocations in hbm:

  1. Size: 4.64G
     Operator: op_name="layer_3/mlp/MatMul" source_file="ops.py" source_line=1160
     Shape: bf16[49920,49920]{0,1:T(8,128)(2,1)}
     Unpadded size: 4.64G
     XLA label: fusion.8 = fusion(Arg_0.1), kind=kOutput, calls=fused_computation.9
     Allocation type: HLO temp
     ==========================

  2. Size: 196.0K
     Shape: f32[49920]{0:T(1024)}
     Unpadded size: 195.0K
     ==========================
"""
SINGLE = (
    "RESOURCE_EXHAUSTED: Allocation (size=64834560000) would exceed memory (size=17179869184) :: "
    "#allocation8 [shape = 'bf16[180000,180000]{0,1}', space=hbm, size = 0xffff, "
    "tag = 'output of fusion.3@{1}'] :: <no-hlo-instruction>"
)
EARLY = (
    "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early because it's unlikely to"
    " have enough device memory. Requires 120.76G, has 7.11G available."
)
NEWER = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory"
    " required for HLO temporaries (543.31G) exceeds available HBM (30.75G). HLO module: jit_step."
)
_G = 1 << 30


def test_the_detailed_report_names_the_largest_buffers() -> None:
    found = memory.shortage(DETAILED)
    assert (found.used, found.available) == (round(9.28 * _G), round(7.48 * _G))
    assert [b.op_name for b in found.largest] == ["layer_3/mlp/MatMul", "(made by the compiler)"]
    assert found.largest[0].size == round(4.64 * _G)
    assert found.largest[0].shape.startswith("bf16[49920,49920]")


def test_one_buffer_larger_than_the_memory() -> None:
    found = memory.shortage(SINGLE)
    assert (found.used, found.available) == (64834560000, 17179869184)
    assert found.largest[0].shape == "bf16[180000,180000]{0,1}"
    assert found.largest[0].op_name == "output of fusion.3@{1}"


def test_an_early_refusal() -> None:
    found = memory.shortage(EARLY)
    assert (found.used, found.available) == (round(120.76 * _G), round(7.11 * _G))
    assert found.largest == ()


def test_what_newer_compilers_say() -> None:
    found = memory.shortage(NEWER)
    assert (found.used, found.available) == (round(543.31 * _G), round(30.75 * _G))


def test_other_errors_are_no_shortage() -> None:
    assert memory.is_shortage(EARLY)
    assert not memory.is_shortage("INTERNAL: Mosaic failed")


def test_an_output_in_its_arguments_place_counts_once() -> None:
    assert memory.peak(temp=100, arguments=30, outputs=31, aliased=30) == 131
