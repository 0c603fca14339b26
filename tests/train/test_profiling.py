"""The ten lines about a profile."""

from __future__ import annotations

from bigbird_ja.train.profiling import Timing, _kind, summary


def test_ten_lines_name_the_costliest_and_the_limit() -> None:
    by_op = {f"Op{i}": float(i) for i in range(1, 12)} | {"IteratorGetNext": 0.1}
    lines = summary(Timing(5, 1.0, 0.02, by_op)).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("profile of 5 steps: 200.0 ms per step")
    assert "Op11" in lines[1] and "Op5" in lines[7] and "everything else" in lines[8]
    assert lines[9].endswith("the step is the limit")


def test_waiting_for_input_is_called_by_its_name() -> None:
    text = summary(Timing(5, 1.0, 0.4, {"IteratorGetNext": 0.4, "MatMul": 0.6}))
    assert "40.0% of the time was spent waiting for input: the input is the limit" in text


def test_kinds_of_events() -> None:
    assert _kind("layer_0/mlp/MatMul:MatMul", is_device=False) == "MatMul"
    assert _kind("ExecutorState::Process", is_device=False) == ""
    assert _kind("%fusion.12 = bf16[2]", is_device=True) == "fusion"
