"""What libtpu is asked for, and how its listings are found and read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbird_ja.preflight import machine_code

UTILISATION = """== CAPACTIY:
MATMUL, VALU, VLOAD
    4     4     3
== UTILIZATION:
4 0 3
0 2 0
"""


@pytest.mark.parametrize(
    ("chip", "libtpu", "there"),
    [
        ("v5e", "0.0.52", True), ("v6e", "0.0.42.1", True), ("v7x", "0.1.0", True),
        ("v5e", "0.0.17", False), ("v5p", "0.0.11.4", False), ("v3", "0.0.52", False),
    ],
)  # fmt: skip
def test_asked_for_only_where_it_is(chip: str, libtpu: str, there: bool) -> None:
    assert machine_code.is_available(chip, libtpu) is there


def test_fullness_goes_by_how_often_bundles_run() -> None:
    found = machine_code.fullness(UTILISATION, [3.0, 1.0])
    assert found == {"MATMUL": 0.75, "VALU": pytest.approx(0.125), "VLOAD": 0.75}
    assert machine_code.fullness(UTILISATION, [1.0]) == {}  # of another listing
    assert machine_code.fullness("", []) == {}


def test_listings_are_found_by_op(tmp_path: Path) -> None:
    bundle = "     0   :  { %v1_v0 = vmov 1.0 }\n   0x1   :  {}\n"
    for name, text in (
        ("1795-fusion.4-01-final_hlo-static-per-bundle-utilization.txt", UTILISATION),
        ("1795-fusion.4-02-schedule-analysis_final_bundles.txt", "Schedule analysis:"),
        ("1795-fusion.4-03-final_bundles.txt", bundle),
        ("1796-copy-done.2-03-final_bundles.txt", bundle + "   0x2   :  {}\n"),
        ("1797-TLP-hlo.txt", "HloModule m"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = machine_code.collect(os.fspath(tmp_path))
    assert {name: code.cycles for name, code in found.items()} == {"fusion.4": 2, "copy-done.2": 3}
    assert found["fusion.4"].slots["VALU"] == pytest.approx(0.25)
    assert found["copy-done.2"].slots == {}
    assert os.fspath(tmp_path) in machine_code.flags(os.fspath(tmp_path))
