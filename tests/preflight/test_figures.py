"""What people read of a step by machine code."""

from __future__ import annotations

from typing import Any

from bigbird_ja.preflight import breakdown, figures

RESULT: dict[str, Any] = {
    "chip": "v5e", "batch_per_core": 2, "seq_length": 4096, "fits": True,
    "hbm_peak_bytes": 10**9, "hbm_limit_bytes": 2 * 10**9, "temp_bytes": 10**8,
    "argument_bytes": 10**9, "step_ms": 100.0, "priced_cycles": 150_000_000,
    "estimated_cycles": 140_000_000, "unestimated_ops": 10, "tokens_per_second_per_core": 8e4,
    "mfu": 0.4, "model_flops": 4e12, "flops": 5e12, "hbm_traffic_bytes": 7e10,
    "loops_of_unknown_length": False,
    "by_kind": {"MLP": 100_000_000, "softmax": 50_000_000},
    "top_ops": [{"op": "layer_*/mlp/a", "opcode": "fusion", "kind": "MLP", "count": 12,
                 "cycles": 100_000_000, "priced": 0}],
}  # fmt: skip
CODE: dict[str, Any] = {
    "code_cycles": 75_000_000, "code_coverage": 0.984, "code_waiting_cycles": 4_000_000,
    "code_roofline_cycles": 60_000_000,
    "code_by_kind": {"MLP": 67_000_000, "softmax": 4_000_000, "waiting for copies": 4_000_000},
    "code_bound_by": {"matrix unit": 45_000_000, "HBM": 30_000_000},
}  # fmt: skip
OP = RESULT["top_ops"][0] | {
    "code_cycles": 70_000_000,
    "bundle_cycles": 70_000_000,
    "hbm_cycles": 20_000_000,
    "bound_by": "matrix unit",
}
WHOLE = RESULT | CODE | {"top_ops": [OP]}


def test_cycles_by_code_stand_beside_priced_ones() -> None:
    assert CODE.keys() == set(breakdown.CODE_KEYS)
    text = figures.describe(WHOLE)
    assert "75.0 M cycles, 50 ms (98.4% counted), 4.0 M of them waiting for copies" in text
    assert "60.0 M; bound by: matrix unit 60%, HBM 40%" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "MLP 100.0 67% 67.0" in rows
    assert "waiting for copies 0.0 0% 4.0" in rows
    assert "layer_*/mlp/a MLP 12 100.00 66.7% 70.00 20.00 matrix unit" in rows


def test_the_first_phase_is_compared_by_one_figure() -> None:
    """Kernels have cycles by machine code alone."""
    phase = WHOLE | {"step_ms": 300.0, "code_cycles": 112_500_000}
    assert "(1.50 x by machine code)" in figures.describe(WHOLE | {"first_phase": phase})
    phase["code_cycles"] = None
    assert "(3.00 x)" in figures.describe(WHOLE | {"first_phase": phase})
