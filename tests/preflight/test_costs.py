"""The parser of HLO, and priced cycles and FLOPs of loops, branches and collectives."""

import math

import pytest

from bigbird_ja.preflight import costs, figures, hlo
from tests.preflight import HLO

NESTED = HLO["loops"]


def _by_name(text):
    return {cost.instruction.name: cost for cost in costs.price_module(hlo.parse(text))}


def test_trips_of_nested_loops_are_multiplied():
    result = _by_name(NESTED)
    assert (result["work"].trips, result["work"].estimated) == (35, 3500.0)
    assert (result["once"].trips, result["once"].estimated) == (7, 70.0)
    assert all(cost.trips_known for cost in result.values())
    later_trips = (34 + 6) * 8 * 128 * 4
    assert costs.count_looped_work(result.values()) == (0, later_trips)


@pytest.mark.parametrize(
    ("old", "new", "trips", "known"),
    [
        ("direction=LT", "direction=LE", 8 * 6, True),
        ("direction=LT", "direction=NE", 1, False),  # A loop of unknown length counts once.
    ],
)
def test_trip_counts(old, new, trips, known):
    work = _by_name(NESTED.replace(old, new))["work"]
    assert (work.trips, work.trips_known) == (trips, known)


FORMS = HLO["forms"]
WHOLE = 1024 * 128 * 4
TILE = 8 * 128 * 4


def test_ops_are_estimated_or_priced_by_padded_bytes():
    """Price a collective by its larger array, and a conditional by its most expensive branch."""
    result = _by_name(FORMS)
    moving = {"sum": "all-reduce", "scatter": "reduce-scatter", "fused": "reduce-scatter"}
    moving |= {"gather": "all-gather-start", "called": "all-gather", "core": "all-reduce"}
    priced = dict.fromkeys(moving, WHOLE)
    priced |= {"picked": 128 * 128 * 4 + TILE, "sorted": TILE, "pasted": TILE}
    priced |= {"relaid": 4096 * 128 * 2}
    cycles = {name: 2 * size / 200 for name, size in priced.items()}
    assert {name: cost.cycles for name, cost in result.items()} == cycles | {"fifty": 50}
    between = {name: cost for name, cost in result.items() if cost.collective}
    assert {name: cost.collective for name, cost in between.items()} == moving
    assert {cost.moved_bytes for cost in between.values()} == {WHOLE}


def test_collective_during_computations_counts_once():
    start, beside = costs.price_module(hlo.parse(HLO["beside"]))
    assert (start.collective, start.moved_bytes) == ("all-gather", WHOLE)
    assert start.priced == costs.price(WHOLE)
    assert (beside.instruction.name, beside.collective, beside.cycles) == ("fusion.9", None, 90)
    assert [figures.classify_op(cost) for cost in (start, beside)] == [
        "between devices",
        "optimizer",
    ]


def test_bytes_on_links():
    carried = {"all-reduce": 14 / 8, "reduce-scatter": 7 / 8, "all-gather": 7 / 8}
    for opcode, share in carried.items():
        assert costs.count_link_bytes(opcode, 800, 8) == pytest.approx(share * 800), opcode


def test_work_on_a_sparse_core_is_priced_once():
    """Price a call by the computation that it calls, which is a gather here, not a collective."""
    result = _by_name(FORMS.replace("to_apply=%of_all", "to_apply=%of_some"))
    assert result.keys() == _by_name(FORMS).keys()
    cost = result["core"]
    assert (cost.priced, cost.collective, cost.moved_bytes) == (costs.price(WHOLE), None, 0)


@pytest.mark.parametrize(
    ("window", "labels", "kernel", "output", "summed"),
    [
        # A matmul without batch dimensions.
        ("", "bf_io->bf", "8,32", "16,32", 8),
        # A batched matmul. The window moves over the batch, and selects one element at a time.
        ("size=4 stride=3 pad=0_0 lhs_dilate=4", "bf_0io->0bf", "4,8,32", "4,16,32", 8),
        # The window sums over a dimension of the kernel.
        ("size=4", "b0f_0io->b0f", "4,8,32", "16,1,32", 8 * 4),
        # A dimension of the output exists only in the kernel.
        ("size=4 pad=3_3 rhs_reversal=1", "b0f_0io->b0f", "4,8,32", "16,4,32", 8),
    ],
)
def test_flops_of_matmuls_written_as_convolutions(window, labels, kernel, output, summed):
    product = f"convolution(%a, %k), window={{{window}}}, dim_labels={labels}"
    ops = {"a": "f32[16,8] parameter(0)", "k": f"f32[{kernel}] parameter(1)"}
    ops["c"] = f"f32[{output}] {product}"
    *_, convolution = hlo.parse_lines([f"  %{name} = {text}" for name, text in ops.items()], {})
    expected = 2.0 * math.prod(map(int, output.split(","))) * summed
    assert costs.count_flops(convolution) == expected


FUSION = (
    "  %fusion.20 = (bf16[1024]{0:T(1024)(128)(2,1)}, bf16[1024,768]{0,1:T(8,128)(2,1)}) "
    "fusion(f32[768,768]{1,0:T(8,128)} %a, /*index=1*/f32[1024,768]{1,0:T(8,128)} %b), "
    'kind=kOutput, calls=%fused.20, metadata={op_name="layer_0/mlp/MatMul" source_line=7}, '
    'backend_config={"window_config":{"estimated_cycles":"11953","iteration_bounds":[]}}'
)


def test_instruction_with_tuple_layouts_and_comments_is_parsed():
    (op,) = hlo.parse_lines([FUSION], {"fused.20": hlo.Computation("fused.20", [])})
    assert (op.name, op.opcode) == ("fusion.20", "fusion")
    assert [shape.dimensions for shape in op.shapes] == [(1024,), (1024, 768)]
    assert op.shapes[1].minor_to_major == (0, 1)
    assert [operand.name for operand in op.operands] == ["a", "b"]
    assert [computation.name for computation in op.called] == ["fused.20"]
    assert op.estimated_cycles == 11953
    # With this number the compiler states that the cycles are unknown.
    unknown = FUSION.replace("11953", "9223372036854775807")
    assert hlo.parse_lines([unknown], {})[0].estimated_cycles is None
    assert op.op_name == "layer_0/mlp/MatMul"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("bf16[24,4096,64]{2,1,0}", 24 * 4096 * 128 * 2),  # The 64 lanes are padded to 128.
        ("bf16[24,4096,64]{1,2,0}", 24 * 64 * 4096 * 2),  # With 4,096 lanes there is no padding.
        ("f32[100]{0}", 128 * 4),
        ("f32[]", 4),
        ("(f32[3,100]{1,0}, pred[8,128]{1,0:T(8,128)})", 8 * 128 * 4 + 8 * 128),
        ("token[]", 0),
    ],
)
def test_padded_bytes(shape, expected):
    (op,) = hlo.parse_lines([f"  %x = {shape} custom-call(%y)"], {})
    assert op.padded_bytes == expected
