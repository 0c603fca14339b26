"""Waits for copies: what HBM has no time for beside the ops between a copy's start and its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.preflight import cycles, hlo, roofline
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.preflight.waits import Waits, waits

V5E = CHIPS["v5e"]
MIB = 1024 * 1024
HEAD = """HloModule m, is_scheduled=true

%body (x: f32[8,128]) -> f32[8,128] {
  ROOT %x = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)
}
"""
START = (
    "  %start.{n} = (f32[2048,128]{{1,0:T(8,128)S(1)}}, f32[2048,128]{{1,0:T(8,128)}},"
    " u32[]{{:S(2)}}) copy-start(%p)\n"
)
DONE = "  %done.{n} = f32[2048,128]{{1,0:T(8,128)S(1)}} copy-done(%start.{n})\n"
OP = "  %op.{n} = f32[8,128]{{1,0:T(8,128)S(1)}} fusion(%q), kind=kLoop, calls=%body\n"
# A mebibyte: a quarter of the array.
SLICE = (
    "  %start.{n} = ((f32[8192,128]{{1,0:T(8,128)}}), f32[2048,128]{{1,0:T(8,128)S(1)}},"
    " s32[]{{:S(2)}}) slice-start(%p), slice={{[0:2048], [0:128]}}\n"
)
SLICE_DONE = DONE.replace("copy-", "slice-")
ONE = MIB / V5E.hbm_bytes_per_second * V5E.clock_hz  # cycles of one of these copies


def _waits(*lines: str, ops: float, text: str = HEAD) -> Waits:
    """Of a program of these lines; each op takes so many times `ONE`."""
    entry = "".join(line.format(n=n) for n, line in _numbered(lines))
    module = hlo.parse(
        text + "\nENTRY %main (p: f32[2048,128], q: f32[8,128]) -> f32[8,128] {\n"
        "  %p = f32[2048,128]{1,0:T(8,128)} parameter(0)\n"
        "  %q = f32[8,128]{1,0:T(8,128)S(1)} parameter(1)\n" + entry + "}\n"
    )
    code = {
        op.name: Code(ops * ONE)
        for instructions in module.computations.values()
        for op in instructions
        if op.opcode == "fusion"
    }
    return waits(module, roofline.code_costs(module, cycles.costs(module), code, V5E), V5E)


def _numbered(lines: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Starts and their ends by order: the n-th end is that of the n-th start."""
    seen: dict[str, int] = {}
    for line in lines:
        kind = line.strip().partition(".")[0]
        seen[kind] = seen.get(kind, 0) + 1
        yield seen[kind], line


@pytest.mark.parametrize(
    ("lines", "ops", "expected"),
    [
        ((START, OP, DONE), 2.0, 0.0),  # the op is long enough
        ((START, OP, DONE), 0.25, 0.75),
        ((START, DONE), 0.0, 1.0),
        ((OP, START, DONE, OP), 5.0, 1.0),  # only what runs between counts
        ((START, START, OP, DONE, DONE), 1.5, 0.5),  # one after the other
        ((START, START, OP, DONE, OP, DONE), 1.0, 0.0),  # what is needed first goes first
        ((SLICE, OP, SLICE_DONE), 0.25, 0.75),  # a slice moves what it makes
        ((START, OP), 0.25, 0.0),  # nobody waits for it
    ],
)
def test_what_does_not_fit_between_start_and_end(lines, ops, expected):
    found = _waits(*lines, ops=ops)
    assert found.waiting_cycles == pytest.approx(expected * ONE)
    copies = sum(line.startswith("  %start") for line in lines)
    assert found.copied_hbm_cycles == pytest.approx(copies * ONE)


def test_an_op_that_fills_hbm_leaves_no_time():
    op = "  %op.{n} = f32[8192,128]{{1,0:T(8,128)}} fusion(%q), kind=kLoop, calls=%body\n"
    # It writes four mebibytes, in as many times `ONE`, whatever its bundles.
    assert _waits(START, op, DONE, ops=1.0).waiting_cycles == pytest.approx(ONE)
    assert _waits(START, op, DONE, ops=4.5).waiting_cycles == pytest.approx(0.5 * ONE)


def test_copies_within_the_core_and_to_hbm_and_back():
    inside = START.replace("T(8,128)}}, u32", "T(8,128)S(1)}}, u32")
    assert _waits(inside, DONE, ops=0.0) == Waits(0.0, 0.0)
    outside = START.replace("T(8,128)S(1)}}, f32", "T(8,128)}}, f32")
    assert _waits(outside, DONE, ops=0.0).waiting_cycles == pytest.approx(2 * ONE)


def test_loops_wait_in_every_trip():
    inner = HEAD + (
        "\n%step (t: f32[2048,128]) -> f32[2048,128] {\n"
        "  %t = f32[2048,128]{1,0:T(8,128)} parameter(0)\n"
        + START.format(n=9).replace("(%p)", "(%t)")
        + OP.format(n=9).replace("(%q)", "()")
        + DONE.format(n=9).replace("  %done", "  ROOT %done")
        + "}\n"
    )
    loop = (
        "  %op.{n} = f32[2048,128]{{1,0:T(8,128)}} while(%p), condition=%body, body=%step,"
        ' backend_config={{"known_trip_count":{{"n":"5"}}}}\n'
    )
    found = _waits(loop, ops=0.25, text=inner)
    assert found.waiting_cycles == pytest.approx(5 * 0.75 * ONE)
    assert found.copied_hbm_cycles == pytest.approx(5 * ONE)
    # What the loop leaves of HBM's time is for the copies around it.
    around = _waits(START, loop, DONE, ops=3.0, text=inner)
    assert around.waiting_cycles == 0
