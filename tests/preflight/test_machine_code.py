"""Number of executions of each bundle, from libtpu's listings of machine code."""

import pytest

from bigbird_ja.preflight import machine_code

UTILIZATION = """== CAPACTIY:
MATMUL, VALU, VLOAD
    4     4     3
== UTILIZATION:
4 0 3
0 2 0
"""


def test_fullness_is_weighted_by_the_runs_of_bundles():
    result = machine_code.compute_usage(UTILIZATION, [3.0, 1.0])
    assert result == {"MATMUL": 0.75, "VALU": pytest.approx(0.125), "VLOAD": 0.75}
    assert machine_code.compute_usage(UTILIZATION, [1.0]) == {}
    assert machine_code.compute_usage("", []) == {}


def _collected(tmp_path, lines):
    (tmp_path / "17-op.1-02-final_bundles.txt").write_text("\n".join(lines))
    return machine_code.collect(str(tmp_path))["op.1"]


def test_products_count_as_often_as_their_bundles_run(tmp_path):
    """Count each product once per execution of its bundle.

    A product of a bfloat16 register counts 1. A float32 register has half the rows, so its product
    counts 0.5.
    """
    lines = _loop(PHI, 12)
    bf16 = "  ;;  %1 = vmatmul.bf16.gmra.mxu0 %v1_v1  ;;  %2 = vmatmul.mubr.bf16.gmra.mxu1 %v2_v2 }"
    lines[2] = lines[2].replace(" }", bf16)
    lines[4] = "   0x4   :  { %3 = vmatmul.f32.gmra.mxu0 %v3_v3 }"
    assert _collected(tmp_path, lines).matmuls == 2 * 10 + 0.5


def test_trips_of_a_very_long_loop_are_solved_for():
    assert _runs(_loop(PHI, 262144))[0][2] == 262144 - 2


def test_a_grid_has_as_many_steps_as_its_copies_from_hbm_are_started(tmp_path):
    lines = _loop(PHI, 12)
    start = "%2 = dma.hbm_to_vmem [thread:$0]  (!%p1_p1), %s1_s1, 1024"
    # The first bundle starts the copy of the first block.
    lines[0] = lines[0].replace(" }", f"  ;;  {start} }}")
    assert _collected(tmp_path, lines).steps == 1
    lines[2] = lines[2].replace(" }", f"  ;;  {start} }}")
    assert _collected(tmp_path, lines).steps == 10


def test_loops_of_a_kernel_that_depend_on_data_run_as_often_as_is_stated():
    lines = _loop(PHI, "%s99_s9")  # The bound is a register, which depends on data.
    # A kernel without matrix products belongs to XLA. The stated trips do not apply to it.
    assert _runs(lines, [(1.0, 2.5), (2.5,)])[1] == 0.6
    lines[2] = lines[2].replace(" }", "  ;;  %1 = vmatmul.bf16.gmra.mxu0 %v1_v1 }")
    assert _runs(lines, [(1.0, 2.5), (2.5,)]) == ([1.0, 2.5, 2.5, 2.5, 1.0], 0)
    assert _runs(lines, [(2.5, 1.0)])[1] == 0.6  # These trips are those of another kernel.


def _runs(lines, trips=()):
    head = "= control target key start\nLB: loop body\n= control target key end\n"
    return machine_code.count_runs(machine_code.find_bundles(head + "\n".join(lines)), trips)


def _loop(counter, bound, negated="!", compare="ge"):
    """Return the lines of a bundle, a loop of three bundles, and a bundle after the loop.

    `counter` defines %s20_s2, which the loop compares with `bound`.
    """
    return [
        "     0   :  { %s10_s1 = smov.u32 2 /* copy for cssa */ }",
        f"   0x1 LB: > {{ {counter} }} /* Start region 7 */",
        f"   0x2   : > {{ %p5_p7 = scmp.{compare}.s32.totalorder %s20_s2, {bound} }}",
        f"   0x3   :  {{ %11 = sbr.rel ({negated}%p5_p7) target = $region7 }}",
        "   0x4   :  {}",
    ]


PHI = "%s30_s3 = sphi %s10_s1, %s20_s2 /* phi copy */  ;;  %s20_s2 = sadd.s32 1, %s30_s3"
# Variants of `PHI` whose counter is stored in memory (`IN_MEMORY`), or copied to another register
# before the next iteration (`MOVED`).
IN_MEMORY = (
    "%s30_s3 = sphi %s10_s1, %s20_s2  ;;  %77 = sst [smem:[#allocation2_spill]] %s30_s3  ;;"
    "  %s40_s4 = sld [smem:[#allocation2_spill]] /* phi copy */  ;;  %s20_s2 = sadd.s32 1, %s40_s4"
)
MOVED = (
    "%s30_s3 = sphi %s10_s1, %s40_s4  ;;  %s20_s2 = sadd.s32 1, %s30_s3  ;;"
    "  %s40_s4 = smov.u32 %s20_s2"
)


@pytest.mark.parametrize(
    ("lines", "trips"),
    [
        (_loop(PHI, 12), 10),  # The counter starts at 2.
        (_loop(PHI, 12, negated="", compare="lt"), 10),
        (_loop(PHI.replace("sadd.s32 1", "sadd.s32 4"), 12), 3),
        (_loop(PHI, 1), 1),  # The comparison follows the body, which runs once.
        (_loop(IN_MEMORY, 12), 10),
        (_loop(PHI.replace("sadd.s32 1", "sadd.s32 (%p9_p1), 1"), 12), 10),
        ([line.replace("order %s", "order (!%p9_p1), %s") for line in _loop(PHI, 12)], 10),
        (_loop(MOVED, 12), 10),
        (["", *_loop(f"{PHI}  ;;  %s10_s1 = smov.u32 (%p7_p7), 3", 12)[1:]], 9),
    ],
)
def test_a_loop_runs_as_often_as_its_counter_says(lines, trips):
    times, unknown = _runs(lines)
    assert times[-4:] == [trips, trips, trips, 1.0]
    assert unknown == 0


def test_an_unknown_bound_is_reported():
    lines = [line.replace("%s20_s2, 12", "%s20_s2, %s98_s9") for line in _loop(PHI, 12)]
    times, unknown_share = _runs(lines)
    assert (times[1], unknown_share) == (1.0, 0.6)
    # With two stores it is unknown which one is read, so only the counter's bound is known.
    twice = f"%66 = sst [smem:[#allocation2_spill]] %s10_s1  ;;  {IN_MEMORY}"
    assert _runs(_loop(twice, 12))[0][1] == 12


def test_a_value_that_depends_on_itself_is_unknown():
    lines = _loop("%s20_s2 = sadd.s32 1, %s20_s2", "%s98_s9")
    assert _runs(lines) == ([1.0] * 5, 0.6)


def test_counters_that_start_with_each_others_value_are_unknown():
    """Evaluate two counters, each of which starts with the value of the other one.

    An earlier version evaluated them in an endless recursion.
    """
    one = "%s20_s2 = sphi %s50_s5, %s21_s6  ;;  %s21_s6 = sadd.s32 1, %s20_s2"
    other = "%s50_s5 = sphi %s20_s2, %s51_s7  ;;  %s51_s7 = sadd.s32 1, %s50_s5"
    # If a counter is unknown, the number of trips is assumed to be the bound, which is 12.
    assert _runs(_loop(f"{one}  ;;  {other}", 12))[0] == [1.0, 12.0, 12.0, 12.0, 1.0]


def _with_skip(predicate):
    """Return the loop with two bundles that are skipped if %p9_p1 is true."""
    first, head, compare, back, last = _loop(PHI, 18)
    return [
        first,
        head,
        f"   0x2   : > {{ {predicate} }}",
        "   0x3   : > { %81 = sbr.rel (%p9_p1) target = $region24 }",
        "   0x4   : > { %v1_v0 = vmov 1.0 }",
        "   0x5   : > { %v2_v0 = vmov 1.0 } /* End region 23 */",
        compare.replace("0x2   :", "0x6 PF:"),
        back.replace("0x3", "0x7"),
        last.replace("0x4", "0x8"),
    ]


@pytest.mark.parametrize(
    ("predicate", "runs"),
    [
        # The counter goes from 2 to 17. The bundles run while it is 2 to 11.
        ("%p9_p1 = scmp.ge.s32.totalorder %s30_s3, 12", 10),
        (
            "%p8_p0 = scmp.ge.s32.totalorder %s30_s3, 4  ;;"
            "  %p7_p2 = scmp.lt.s32.totalorder %s30_s3, 16  ;;  %p9_p1 = pnand %p8_p0, %p7_p2",
            12,
        ),
        (  # The predicate is stored as a scalar.
            "%p8_p0 = scmp.ge.s32.totalorder %s30_s3, 12  ;;  %s70_s7 = scalar_select"
            " /*predicate=*/%p8_p0, /*on_true=*/1, /*on_false=*/0  ;;"
            "  %p9_p1 = scmp.ne.s32.totalorder %s70_s7, 0",
            10,
        ),
        # The predicate is unknown, so no bundle counts as skipped.
        ("%p9_p1 = scmp.ge.s32.totalorder %s30_s3, %s97_s9", 16),
    ],
)
def test_skipped_bundles_run_in_the_other_iterations(predicate, runs):
    assert _runs(_with_skip(predicate))[0] == [1, 16, 16, 16, runs, runs, 16, 16, 1]


def test_two_branches_that_lead_to_places_in_one_bundle():
    lines = _with_skip("%p9_p1 = scmp.ge.s32.totalorder %s30_s3, 12")
    lines[4] = "   0x4   : > { %82 = sbr.rel (!%p8_p0) target = $region26 }"
    lines[2] = lines[2].replace(" }", "  ;;  %p8_p0 = scmp.ge.s32.totalorder %s30_s3, 8 }")
    lines[6] = lines[6].rstrip() + " /* Start/End empty region 26 :: End region 24 */"
    # The outer branch runs in the iterations 2 to 11, the inner branch in 8 to 11.
    assert _runs(lines)[0] == [1, 16, 16, 16, 10, 4, 16, 16, 1]


def test_loops_inside_loops_multiply():
    lines = [
        "     0   :  { %s1_s1 = smov.u32 0 }",
        "   0x1 LB: > { %s2_s2 = sphi %s1_s1, %s3_s3  ;;  %s3_s3 = sadd.s32 1, %s2_s2 }"
        " /* Start region 3 */",
        "   0x2 LB: >> { %s4_s4 = sphi %s1_s1, %s5_s5  ;;  %s5_s5 = sadd.s32 1, %s4_s4 }"
        " /* Start region 5 */",
        "   0x3   : > { %p1_p1 = scmp.ge.s32.totalorder %s5_s5, 4 }",
        "   0x4   : > { %8 = sbr.rel (!%p1_p1) target = $region5 }",
        "   0x5   : > { %p2_p2 = scmp.ge.s32.totalorder %s3_s3, 3 }",
        "   0x6   :  { %9 = sbr.rel (!%p2_p2) target = $region3 }",
    ]
    assert _runs(lines)[0] == [1, 3, 12, 12, 12, 3, 3]
