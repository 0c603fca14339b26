"""Priced cycles on hand-written HLO: loops, branches, prices, what is free."""

from __future__ import annotations

import pytest

from bigbird_ja.preflight import cycles, hlo


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


def test_nested_loops_multiply() -> None:
    found = {c.instruction.name: c for c in cycles.costs(hlo.parse(NESTED))}
    assert (found["work"].trips, found["work"].estimated) == (15, 1500.0)
    assert (found["once"].trips, found["once"].estimated) == (3, 30.0)
    assert all(cost.trips_known for cost in found.values())


@pytest.mark.parametrize(("direction", "trips"), [("LT", 5), ("LE", 6)])
def test_trip_count_from_the_counter(direction: str, trips: int) -> None:
    text = NESTED.replace("direction=LT", f"direction={direction}")
    module = hlo.parse(text)
    loop = next(op for op in module.computations["outer_body"] if op.opcode == "while")
    assert cycles.trip_count(module, loop) == trips


def test_the_compilers_note_wins() -> None:
    noted = NESTED.replace(
        "body=%inner_body", 'body=%inner_body, backend_config={"known_trip_count":{"n":"40"}}'
    )
    found = {c.instruction.name: c for c in cycles.costs(hlo.parse(noted))}
    assert found["work"].trips == 120


def test_a_loop_of_unknown_length_is_said() -> None:
    unknown = NESTED.replace("direction=LT", "direction=NE")
    found = cycles.costs(hlo.parse(unknown))
    assert [c.trips_known for c in found if c.instruction.name == "work"] == [False]


def _entry(*lines: str) -> hlo.Module:
    body = "\n".join(lines)
    return hlo.parse(f"HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n{body}\n}}\n")


def test_an_op_without_estimate_is_priced_by_its_padded_output() -> None:
    (cost,) = cycles.costs(_entry(_op("g", "bf16[4096,64]{1,0} gather(%x, %i)")))
    assert cost.estimated == 0
    assert cost.priced == 2 * 4096 * 128 * 2 / 200


def test_what_is_free() -> None:
    module = _entry(
        "  %x = f32[8]{0} parameter(0)",
        "  %c = f32[8]{0} constant({...})",
        "  %t = (f32[8]{0}) tuple(f32[8]{0} %x)",
        "  %e = f32[8]{0} get-tuple-element((f32[8]{0}) %t), index=0",
        "  %b = f32[2,4]{1,0} bitcast(f32[8]{0} %x)",
        "  %s = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(f32[8]{0} %x)",
        "  %d = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0}, u32[]) %s)",
    )
    assert cycles.costs(module) == []


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
    assert ("c" not in {c.instruction.name for c in cycles.costs(module)}) == is_free


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
    assert [c.instruction.name for c in cycles.costs(hlo.parse(text))] == ["three"]


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
    assert sum(c.cycles for c in cycles.costs(hlo.parse(text))) == 50


def test_bytes_of_later_trips() -> None:
    per_trip = {"work": 8 * 128 * 4, "once": 8 * 128 * 4}
    expected = 14 * per_trip["work"] + 2 * per_trip["once"]
    assert cycles.looped_bytes(hlo.parse(NESTED)) == expected
