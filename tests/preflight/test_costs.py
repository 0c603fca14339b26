"""Priced cycles and FLOPs of hand-written HLO: loops, branches, collectives, what is free."""

from __future__ import annotations

import pytest

from bigbird_ja.preflight import costs, hlo


def _op(name: str, text: str, estimate: int | None = None, op_name: str = "") -> str:
    config = f', backend_config={{"estimated_cycles":"{estimate}"}}' if estimate is not None else ""
    return f'  %{name} = {text}, metadata={{op_name="{op_name}"}}{config}'


def _loop(name: str, start: int, end: int, body: str, direction: str = "LT") -> str:
    """A counted loop as this compiler writes it: condition, body; the caller adds the while."""
    return f"""
%{name}_condition (p.{name}: (s32[], f32[8,128])) -> pred[] {{
  %p.{name} = (s32[], f32[8,128]{{1,0}}) parameter(0)
  %end.{name} = s32[] constant({end})
  %i.{name} = s32[] get-tuple-element((s32[], f32[8,128]{{1,0}}) %p.{name}), index=0
  ROOT %lt.{name} = pred[] compare(s32[] %i.{name}, s32[] %end.{name}), direction={direction}
}}

%{name}_body (q.{name}: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
{body}
}}
"""


def _while(name: str) -> str:
    return (
        f"  %while.{name} = (s32[], f32[8,128]{{1,0}}) while("
        f"(s32[], f32[8,128]{{1,0}}) %init.{name}), condition=%{name}_condition, body=%{name}_body"
    )


NESTED = (
    "HloModule nested\n"
    + _loop("inner", 2, 7, _op("work", "f32[8,128]{1,0} fusion(%a), kind=kLoop", 100))
    + _loop(
        "outer",
        0,
        3,
        "\n".join(
            [
                _op("once", "f32[8,128]{1,0} fusion(%a), kind=kLoop", 10),
                "  %two = s32[] constant(2)",
                "  %init.inner = (s32[], f32[8,128]{1,0}) tuple(s32[] %two, f32[8,128]{1,0} %once)",
                _while("inner"),
            ]
        ),
    )
    + """
ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %zero = s32[] constant(0)
  %start = s32[] copy(s32[] %zero)
  %init.outer = (s32[], f32[8,128]{1,0}) tuple(s32[] %start, f32[8,128]{1,0} %x)
"""
    + _while("outer")
    + "\n}\n"
)


def _found(text: str) -> dict[str, costs.Cost]:
    return {cost.instruction.name: cost for cost in costs.costs(hlo.parse(text))}


def test_nested_loops_multiply() -> None:
    result = _found(NESTED)
    assert (result["work"].trips, result["work"].estimated) == (15, 1500.0)
    assert (result["once"].trips, result["once"].estimated) == (3, 30.0)
    assert all(cost.trips_known for cost in result.values())
    later_trips = (14 + 2) * 8 * 128 * 4
    assert costs.looped_work(hlo.parse(NESTED), result.values()) == (0, later_trips)


@pytest.mark.parametrize(
    ("old", "new", "trips", "known"),
    [
        ("direction=LT", "direction=LE", 4 * 6, True),
        ("direction=LT", "direction=NE", 1, False),  # unknown: counted once
        (
            "body=%inner_body",
            'body=%inner_body, backend_config={"known_trip_count":{"n":"40"}}',
            3 * 40,  # the compiler's note wins
            True,
        ),
    ],
)
def test_trip_counts(old: str, new: str, trips: int, known: bool) -> None:
    work = _found(NESTED.replace(old, new))["work"]
    assert (work.trips, work.trips_known) == (trips, known)


def _entry(*lines: str) -> hlo.Module:
    body = "\n".join(lines)
    return hlo.parse(f"HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n{body}\n}}\n")


def test_an_op_without_estimate_is_priced_by_its_padded_output() -> None:
    (cost,) = costs.costs(_entry(_op("g", "bf16[4096,64]{1,0} gather(%x, %i)")))
    assert cost.estimated == 0
    assert cost.priced == 2 * 4096 * 128 * 2 / 200


@pytest.mark.parametrize(
    ("opcode", "target", "is_free"),
    [
        ("slice-done", "ConcatBitcast", True),
        ("slice-done", "Sort", False),  # another custom call
        ("fusion", "ConcatBitcast", False),  # what was not copied in pieces has to be joined
    ],
)
def test_pieces_of_one_asynchronous_copy_are_joined_for_free(
    opcode: str, target: str, is_free: bool
) -> None:
    module = _entry(
        f"  %a = f32[4,128]{{1,0}} {opcode}(%p)",
        "  %b = f32[4,128]{1,0} slice-done(%q)",
        "  %c = f32[8,128]{1,0} custom-call(f32[4,128]{1,0} %a, f32[4,128]{1,0} %b),"
        f' custom_call_target="{target}"',
    )
    assert ("c" not in {c.instruction.name for c in costs.costs(module)}) == is_free


def test_asynchronous_slices_are_free_and_other_asynchronous_work_is_not() -> None:
    text = """HloModule m

%sliced (a: f32[8,128]) -> f32[4,128] {
  %a = f32[8,128]{1,0} parameter(0)
  ROOT %s = f32[4,128]{1,0} slice(f32[8,128]{1,0} %a), slice={[0:4], [0:128]}
}

%gathered (b: f32[8,128]) -> f32[4,128] {
  %b = f32[8,128]{1,0} parameter(0)
  ROOT %g = f32[4,128]{1,0} gather(f32[8,128]{1,0} %b, s32[4] %i)
}

ENTRY %main (x: f32[8,128]) -> f32[4,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %one = (f32[8,128]{1,0}, f32[4,128]{1,0}) async-start(f32[8,128]{1,0} %x), calls=%sliced
  %two = f32[4,128]{1,0} async-done((f32[8,128]{1,0}, f32[4,128]{1,0}) %one), calls=%sliced
  %three = (f32[8,128]{1,0}, f32[4,128]{1,0}) async-start(f32[8,128]{1,0} %x), calls=%gathered
  %four = f32[4,128]{1,0} async-done((f32[8,128]{1,0}, f32[4,128]{1,0}) %three), calls=%gathered
}
"""
    assert [c.instruction.name for c in costs.costs(hlo.parse(text))] == ["three"]


def test_the_dearest_branch_counts() -> None:
    text = "HloModule m\n"
    for name, estimate in (("cheap", 5), ("dear", 50)):
        work = _op(f"w_{name}", "f32[8]{0} fusion(%p), kind=kLoop", estimate)
        text += f"\n%{name} (p: f32[8]) -> f32[8] {{\n{work}\n}}\n"
    text += (
        "\nENTRY %main (x: f32[8]) -> f32[8] {\n"
        "  %c = f32[8]{0} conditional(s32[] %i, f32[8] %x, f32[8] %x),"
        " branch_computations={%cheap, %dear}\n}\n"
    )
    assert sum(c.cycles for c in costs.costs(hlo.parse(text))) == 50


COLLECTIVES = """HloModule m

%inside (a: f32[1024,128]) -> f32[128,128] {
  %a = f32[1024,128]{1,0} parameter(0)
  ROOT %s = f32[128,128]{1,0} reduce-scatter(f32[1024,128]{1,0} %a), dimensions={0}
}

%gathering (b: f32[128,128]) -> f32[1024,128] {
  %b = f32[128,128]{1,0} parameter(0)
  ROOT %t = f32[1024,128]{1,0} all-gather(f32[128,128]{1,0} %b), dimensions={0}
}

%calling (c: f32[128,128]) -> f32[1024,128] {
  %c = f32[128,128]{1,0} parameter(0)
  ROOT %u = f32[1024,128]{1,0} call(f32[128,128]{1,0} %c), to_apply=%gathering
}

ENTRY %main (x: f32[1024,128], y: f32[128,128]) -> f32[1024,128] {
  %x = f32[1024,128]{1,0} parameter(0)
  %y = f32[128,128]{1,0} parameter(1)
  %r = f32[1024,128]{1,0} all-reduce(f32[1024,128]{1,0} %x), to_apply=%add
  %s = f32[128,128]{1,0} reduce-scatter(f32[1024,128]{1,0} %r), dimensions={0}
  %f = f32[128,128]{1,0} fusion(f32[1024,128]{1,0} %r), kind=kCustom, calls=%inside
  %g = (f32[128,128]{1,0}, f32[1024,128]{1,0}) all-gather-start(f32[128,128]{1,0} %y)
  %d = f32[1024,128]{1,0} all-gather-done((f32[128,128]{1,0}, f32[1024,128]{1,0}) %g)
  %k = ((), (), s32[8192]{0}) async-start(f32[128,128]{1,0} %y), calls=%calling
  %l = f32[1024,128]{1,0} async-done(((), (), s32[8192]{0}) %k), calls=%calling
  ROOT %z = f32[1024,128]{1,0} fusion(f32[1024,128]{1,0} %d), kind=kLoop, calls=%other
}
"""
WHOLE = 1024 * 128 * 4


def test_collectives_in_every_form_are_priced_by_its_larger_side() -> None:
    result = _found(COLLECTIVES)
    assert result.keys() == {"r", "s", "f", "g", "k", "z"}
    moving = {name: cost.collective for name, cost in result.items() if cost.collective}
    assert moving == {"r": "all-reduce", "s": "reduce-scatter", "f": "reduce-scatter",
                      "g": "all-gather-start", "k": "all-gather"}  # fmt: skip
    for name in moving:
        assert result[name].moved_bytes == WHOLE
        assert result[name].priced == costs.price(WHOLE)


@pytest.mark.parametrize(
    ("opcode", "carried"),
    [("all-reduce", 14 / 8), ("reduce-scatter", 7 / 8), ("all-gather", 7 / 8)],
)
def test_bytes_on_links(opcode: str, carried: float) -> None:
    assert costs.link_bytes(opcode, 800, 8) == pytest.approx(carried * 800)


OFFLOADED = """HloModule m

%of_all (a: f32[1024,128]) -> f32[1024,128] {
  %a = f32[1024,128]{1,0} parameter(0)
  ROOT %t = f32[1024,128]{1,0} all-reduce(%a), to_apply=%add
}

%beside (b: f32[1024,128]) -> f32[1024,128] {
  %b = f32[1024,128]{1,0} parameter(0)
  %s = ((f32[1024,128]{1,0}), f32[1024,128]{1,0}, u32[]{:S(8)}) call-start(%b), to_apply=%WORK
  ROOT %e = f32[1024,128]{1,0} call-done(%s)
}

%picking (p: f32[1024,128]) -> f32[1024,128] {
  %p = f32[1024,128]{1,0} parameter(0)
  ROOT %u = f32[1024,128]{1,0} gather(%p, %p)
}

ENTRY %main (x: f32[1024,128]) -> f32[1024,128] {
  %x = f32[1024,128]{1,0} parameter(0)
  %c = ((), (), (s32[16384]{0:T(1024)}, s32[0]{0})) custom-call-start(), called_computations={%beside}
  %v = ((f32[1024,128]{1,0}), f32[1024,128]{1,0}, (s32[16384]{0})) custom-call-update(%c, %x)
  ROOT %d = f32[1024,128]{1,0} custom-call-done(%v)
}
"""  # noqa: E501


@pytest.mark.parametrize(("work", "collective"), [("of_all", "all-reduce"), ("picking", None)])
def test_work_on_a_sparse_core_is_priced_once(work: str, collective: str | None) -> None:
    (cost,) = costs.costs(hlo.parse(OFFLOADED.replace("WORK", work)))
    assert (cost.instruction.name, cost.collective) == ("c", collective)
    assert cost.priced == costs.price(WHOLE)
    assert cost.moved_bytes == (WHOLE if collective else 0)


def _flops(module: hlo.Module) -> float:
    beside = {op.name: op for op in module.computations[module.entry]}
    return sum(costs.instruction_flops(module, op, beside) for op in beside.values())


@pytest.mark.parametrize(
    ("window", "labels", "kernel", "output", "expected"),
    [
        # A plain matmul.
        ("", "bf_io->bf", "8,32", "16,32", 2 * 16 * 32 * 8),
        # A batched one: the window walks over the batch and picks one element of it.
        ("size=4 stride=3 pad=0_0 lhs_dilate=4", "0bf_0io->0bf", "4,8,32", "4,16,32",
         2 * 4 * 16 * 32 * 8),
        # A dimension of the kernel that is summed over.
        ("size=4", "b0f_0io->b0f", "4,8,32", "16,1,32", 2 * 16 * 32 * 8 * 4),
        # A dimension of the output that comes from the kernel alone.
        ("size=4 pad=3_3 rhs_reversal=1", "b0f_0io->b0f", "4,8,32", "16,4,32",
         2 * 16 * 4 * 32 * 8),
    ],
)  # fmt: skip
def test_matmuls_that_the_compiler_writes_as_convolutions(
    window: str, labels: str, kernel: str, output: str, expected: int
) -> None:
    module = _entry(
        "  %a = f32[16,8]{1,0} parameter(0)",
        f"  %k = f32[{kernel}] parameter(1)",
        f"  %c = f32[{output}] convolution(f32[16,8]{{1,0}} %a, f32[{kernel}] %k),"
        f" window={{{window}}}, dim_labels={labels}",
    )
    assert _flops(module) == expected
