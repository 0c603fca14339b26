"""What goes between devices: found in every form, priced by its larger side."""

from __future__ import annotations

import pytest

from bigbird_ja.preflight import collectives, cycles, hlo

TEXT = """HloModule m

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


def test_every_form_is_priced_by_its_larger_side() -> None:
    found = {cost.instruction.name: cost for cost in cycles.costs(hlo.parse(TEXT))}
    assert found.keys() == {"r", "s", "f", "g", "k", "z"}
    moving = {name: cost.collective for name, cost in found.items() if cost.collective}
    assert moving == {"r": "all-reduce", "s": "reduce-scatter", "f": "reduce-scatter",
                      "g": "all-gather-start", "k": "all-gather"}  # fmt: skip
    for name in moving:
        assert found[name].moved_bytes == WHOLE
        assert found[name].priced == cycles.price(WHOLE)


@pytest.mark.parametrize(
    ("opcode", "carried"),
    [("all-reduce", 14 / 8), ("reduce-scatter", 7 / 8), ("all-gather", 7 / 8)],
)
def test_bytes_on_links(opcode: str, carried: float) -> None:
    assert collectives.link_bytes(opcode, 800, 8) == pytest.approx(carried * 800)


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
def test_what_is_given_to_a_sparse_core_is_priced_once(work: str, collective: str | None) -> None:
    (cost,) = cycles.costs(hlo.parse(OFFLOADED.replace("WORK", work)))
    assert (cost.instruction.name, cost.collective) == ("c", collective)
    assert cost.priced == cycles.price(WHOLE)
    assert cost.moved_bytes == (WHOLE if collective else 0)
