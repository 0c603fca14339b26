"""Cycles of single ops, of identical ops, and sums over a step."""

import dataclasses
from collections import Counter

import pytest

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE
from bigbird_ja.preflight import costs, figures, hlo, roofline
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.preflight.roofline import StepTime, sum_step_time
from tests.preflight import HLO

V5E = CHIPS["v5e"]
MB2 = 1024 * 1024 * 2
CODE = {"f.1": Code(20_000.0, {"MATMUL": 0.8, "VLOAD": 0.1}), "g": Code(100.0, {"VLOAD": 0.5})}
MODULE = hlo.parse(HLO["alike"])


def _by_name(code):
    result = roofline.combine_costs(MODULE, costs.price_module(MODULE), code, V5E)
    return {each.instruction.name: each for each in result}


def test_bytes_in_hbm():
    """Count the bytes that ops move in HBM.

    An operand of `f.1` is in the core's memory, and `h` updates its operand in place.
    """
    sizes = {"f.1": 2 * MB2, "e": 3 * MB2, "g": 2 * 8 * 128 * 4, "h": 2 * 8 * 128 * 4}
    result = _by_name(CODE)
    for name, size in sizes.items():
        cycles = size / V5E.hbm_bytes_per_second * V5E.clock_hz
        assert result[name].hbm_cycles == pytest.approx(cycles), name


def test_identical_ops_share_their_code():
    result = _by_name(CODE)
    assert result["f.1"].bundle_cycles == result["f.2"].bundle_cycles == 20_000
    # `e` is not identical to `f.1`, since its operand is in another memory.
    assert result["e"].bundle_cycles is None
    assert result["e"].cycles == result["e"].estimated + result["e"].priced > 0
    at_peak = 2 * 1024**3 / V5E.peak_flops * V5E.clock_hz
    assert result["f.1"].matrix_cycles == pytest.approx(at_peak)
    assert result["g"].cycles == 100  # Its bytes in HBM take only 15 cycles.
    assert dataclasses.replace(result["g"], hbm_cycles=300.0).cycles == 300
    assert dataclasses.replace(result["g"], bundle_cycles=None, matrix_cycles=1e9).cycles == 1e9
    # If the number of executions is unknown for many bundles, the code's cycles are not used.
    result = _by_name({"g": Code(100.0, {}, 0.5), "h": Code(100.0, {}, unknown_share=0.01)})
    assert (result["g"].bundle_cycles, result["g"].bound_by) == (None, None)
    assert result["h"].bundle_cycles == 100


def test_no_op_is_priced_below_its_products_at_the_peak():
    """Price an op at least at the time of its matrix products at the chip's peak rate.

    Its machine code may start products faster than the matrix units can execute them.
    """
    result = _by_name({"f.1": Code(10_000.0, {"MATMUL": 1.0})})["f.1"]
    at_peak = 2 * 1024**3 / V5E.peak_flops * V5E.clock_hz
    assert result.cycles == result.matrix_cycles == pytest.approx(at_peak)
    assert result.bound_by == "matrix unit"
    sums = figures.compute_code_figures([result], StepTime())
    assert sums["code_cycles"] == sums["code_roofline_cycles"] == round(at_peak)
    # If the units cannot execute this many products in the counted cycles, the count is wrong, and
    # is not used.
    too_full = _by_name({"f.1": Code(10_000.0, {"MATMUL": 1.1})})["f.1"]
    assert (too_full.bundle_cycles, too_full.bound_by) == (None, None)


def test_kernel_is_priced_only_with_its_code():
    """Price a kernel whose instruction spans several lines, as JAX writes it."""
    module = hlo.parse(HLO["kernel"])
    found = costs.price_module(module)
    assert [(op.name, op.op_name) for op in module.entry.instructions[1:]] == [
        ("kernel", "splash"),
        ("after", ""),
    ]
    code = {"kernel": Code(100.0, {}, 0.0, 640.0), "after": Code(5.0)}
    kernel, after = roofline.combine_costs(module, found, code, V5E)
    at_peak = 640 * 2 * 16 * 128 * 128 / V5E.peak_flops * V5E.clock_hz
    assert kernel.cycles == kernel.matrix_cycles == pytest.approx(at_peak)
    assert kernel.bound_by == "matrix unit"
    assert roofline.find_uncounted([kernel, after]) is None
    # A device of a v4 slice has two cores, which execute twice the products in the same cycles.
    core, joined = (
        roofline.combine_costs(module, found, code, chip)[0]
        for chip in (CHIPS["v4"], MEGACORE["v4"])
    )
    assert core.matrix_cycles == joined.matrix_cycles > 0
    # Each step of a kernel's grid starts copies and waits for them.
    waits = 100 * roofline.STEP_SECONDS * V5E.clock_hz
    (copying, _) = roofline.combine_costs(module, found, {"kernel": Code(5000.0, steps=100.0)}, V5E)
    assert copying.cycles == pytest.approx(5000 + waits)
    full = {"kernel": Code(100.0, {}, 0.0, 640.0, 100.0)}  # The products take longest.
    assert roofline.combine_costs(module, found, full, V5E)[0].cycles == pytest.approx(
        at_peak + waits
    )
    (unknown, _) = roofline.combine_costs(module, found, {"kernel": Code(9.0, {}, 0.5)}, V5E)
    assert "kernel, a kernel" in str(roofline.find_uncounted([after, unknown]))


@pytest.mark.parametrize(
    ("slots", "hbm", "matrix", "expected"),
    [
        ({"MATMUL": 0.9, "VALU": 0.5}, 100, 0, "matrix unit"),
        ({"MATMUL": 0.1}, 100, 800, "matrix unit"),
        ({"VALU": 0.3, "VSTORE": 0.9}, 0, 0, "loads"),
        ({"VALU": 0.9}, 2000, 0, "HBM"),
        ({"VALU": 0.1}, 100, 0, "latency"),
        ({}, 0, 0, "latency"),
    ],
)
def test_bound_by_the_fullest(slots, hbm, matrix, expected):
    assert roofline.find_bottleneck(Code(1000.0, slots), hbm, matrix) == expected


def test_sums_over_a_step():
    result = list(_by_name(CODE).values())
    sums = figures.compute_code_figures(result, StepTime(waiting=5_000.0, copied=8_000.0))
    assert sums["code_cycles"] == pytest.approx(sum(c.cycles for c in result) + 5_000, abs=1)
    listed = 2 * 20_000 + 100 + 5_000
    assert sums["code_coverage"] == pytest.approx(listed / sums["code_cycles"], rel=1e-3)
    assert sum(sums["code_by_kind"].values()) == pytest.approx(sums["code_cycles"], abs=3)
    assert sums["code_bound_by"].keys() == {"matrix unit", "loads", "HBM", "not counted"}
    assert sums.keys() == set(figures.CODE_KEYS)
    # A step takes at least the time in which HBM moves all its bytes.
    sums = figures.compute_code_figures(result, StepTime(copied=1e9))
    assert sums["code_cycles"] == sums["code_roofline_cycles"] > 1e9


LINES = {
    "start": "%start.N = (f32[2048,128]{1,0:S(1)}, f32[2048,128]{1,0}, u32[]) copy-start(%p)",
    "done": "%done.N = f32[2048,128]{1,0:T(8,128)S(1)} copy-done(%start.N)",
    # This op copies a quarter of the array.
    "slice": "%slice.N = ((f32[8192,128]{1,0}), f32[2048,128]{1,0:S(1)}, s32[]) slice-start(%p)",
    "sliced": "%sliced.N = f32[2048,128]{1,0:T(8,128)S(1)} slice-done(%slice.N)",
    "op": "%op.N = f32[8,128]{1,0:T(8,128)S(1)} fusion(%q), kind=kLoop, calls=%body",
    # This op writes 4 MiB to HBM, which takes 4 times `ONE`.
    "fill": "%fill.N = f32[8192,128]{1,0:T(8,128)} fusion(%q), kind=kLoop, calls=%body",
    "loop": "%loop.N = f32[2048,128]{1,0:T(8,128)} while(%first), condition=%fewer, body=%step",
}
ONE = 1024 * 1024 / V5E.hbm_bytes_per_second * V5E.clock_hz  # Cycles of a copy.


def _written(words):
    """Return the lines of a program. The n-th "done" completes the n-th "start"."""
    seen = Counter()
    lines = []
    for word in words.split():
        seen[word] += 1
        lines.append("  " + LINES[word].replace(".N", f".{seen[word]}"))
    return "\n".join(lines)


@pytest.mark.parametrize(
    # Instructions of a step, time of each "op" and "fill", and expected time for which the step
    # waits for copies. The unit of both times is the time of a copy.
    ("words", "ops", "waiting"),
    [
        ("start op done", 2.0, 0.0),
        ("start op done", 0.25, 0.75),
        ("start done", 0.0, 1.0),
        ("op start done op", 5.0, 1.0),  # Only ops between "start" and "done" cover a copy.
        ("start start op done done", 1.5, 0.5),  # Copies run one after the other.
        ("start start op done op done", 1.0, 0.0),  # The copy that is needed first runs first.
        ("slice op sliced", 0.25, 0.75),  # A slice moves as many bytes as its result contains.
        ("start op", 0.25, 0.0),  # The step does not wait for this copy.
        ("start fill done", 1.0, 1.0),  # An op that uses HBM all the time does not cover a copy.
        ("start fill done", 4.5, 0.5),
        ("loop", 0.25, 5 * 0.75),  # A loop waits in every iteration.
        ("start loop done", 3.0, 0.0),  # A loop covers a copy while it does not use HBM.
    ],
)
def test_step_waits_for_copies_that_ops_do_not_cover(words, ops, waiting):
    """Compute the waiting time. The time of a copy is `ONE`."""
    step = _written("start op done")
    module = hlo.parse(HLO["copies"].replace("STEP", step).replace("MAIN", _written(words)))
    code = {f"{name}.{n}": Code(ops * ONE) for name in ("op", "fill") for n in (1, 2)}
    result = sum_step_time(
        module, roofline.combine_costs(module, costs.price_module(module), code, V5E), V5E
    )
    assert result.waiting == pytest.approx(waiting * ONE)
    copies = words.count("start") + words.count("slice ") + 5 * words.count("loop")
    assert result.copied == pytest.approx(copies * ONE)


def _cost(op_name, opcode="fusion", cycles=1.0, name="f.1"):
    text = f'  %{name} = f32[8]{{0}} {opcode}(%x), metadata={{op_name="{op_name}"}}'
    return costs.Cost(hlo.parse_lines([text], {})[0], 1, cycles, 0.0)


@pytest.mark.parametrize(
    ("op_name", "kind", "changed"),
    [
        ("layer_3/attention/scores/einsum/Einsum", "attention scores", {}),
        ("layer_3/attention/softmax/Exp", "softmax", {}),
        ("gradient_tape/layer_3/attention/context/Einsum", "attention context", {}),
        ("layer_3/attention/output/dropout/SelectV2", "dropout", {}),
        ("mlm_head/layer_norm/Mean", "layer norm", {}),
        ("optimizer/SelectV2_3", "optimizer", {}),
        ("", "other", {}),
        ("layer_1/mlp/MatMul", "copies", {"opcode": "copy"}),
        ("layer_1/mlp/MatMul", "copies", {"name": "copy_bitcast_fusion.3"}),
    ],
)
def test_kind_of_op_is_its_innermost_scope_or_copies(op_name, kind, changed):
    assert figures.classify_op(_cost(op_name, **changed)) == kind


def test_same_op_of_all_layers_is_one_row():
    same = [_cost(f"layer_{n}/mlp/MatMul_{n}", cycles=10) for n in range(3)]
    (top,) = figures.list_top_ops(same)
    assert (top["op"], top["count"], top["cycles"]) == ("layer_*/mlp/MatMul", 3, 30)


def test_long_name_is_shortened_in_its_middle():
    scopes = "/".join(f"scope_{n}" for n in range(9))
    short = figures.shorten_name(f"jit(run_replica)/while/body/{scopes}/scores/dot_general")
    assert len(short) <= 72 and short.startswith("jit(run_replica)/…/")
    assert short.endswith("/scope_8/scores/dot_general")
    assert figures.shorten_name("layer_*/mlp/MatMul") == "layer_*/mlp/MatMul"
