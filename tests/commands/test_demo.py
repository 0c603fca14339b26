"""The parts of the demo; the whole of it, with its killed training, is `nightly`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bigbird_ja.commands import demo
from bigbird_ja.process import errors
from testkit.command_line import run_cli


def _log(model_dir: Path, losses: list[float], *events: str) -> str:
    model_dir.mkdir()
    lines = [json.dumps({"step": i, "loss": x, "time": i}) for i, x in enumerate(losses, start=1)]
    # A killed writer leaves half a line.
    (model_dir / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 9, "lo']))
    (model_dir / "events.jsonl").write_text("".join(f"{line}\n" for line in events))
    return str(model_dir)


@pytest.mark.parametrize(
    ("losses", "reference", "error"),
    [
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0], None),
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0000000000000002], "curve differs"),
        ([3.0, 4.0, 5.0], [3.0, 4.0, 5.0], "did not fall"),
    ],
    ids=["same", "differs", "rises"],
)
def test_curves_must_be_the_same_to_the_last_bit_and_fall(
    losses: list[float], reference: list[float], error: str | None, tmp_path: Path
) -> None:
    resumed = '{"event": "resumed", "time": 1, "global_step": 1}'
    model = _log(tmp_path / "run", losses, resumed)
    whole = _log(tmp_path / "whole", reference)
    if error:
        with pytest.raises(RuntimeError, match=error):
            demo.compare_runs(model, whole, 2)
        return
    results = demo.compare_runs(model, whole, demo.last_step(model))
    assert results["killed_at_step"] == 3 and results["resumed_from_step"] == 1


@pytest.mark.parametrize(
    ("reason", "status"), [("io_error", 74), ("out_of_memory", 71), ("interrupted", 75), ("bug", 1)]
)
def test_the_demo_ends_with_the_status_of_the_command_that_failed(
    reason: str, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "step"
    line = json.dumps({"reason": reason, "error": "what and where"})
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({line!r})\nsys.exit({status})\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(errors.CommandError, match="what and where") as caught:
        demo.bigbird_ja(["tokenize"])
    assert (caught.value.status, caught.value.reason) == (status, reason)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    work_dir = tmp_path / "demo"
    result = run_cli(
        "demo", f"--work_dir={work_dir}", "--num_train_steps=40", "--json", timeout=850
    )
    assert result.status == 0, result.stderr
    shown = result.json
    assert shown["same_curve"] and 0 < shown["resumed_from_step"] < 40
    assert shown["killed_at_step"] >= 20 and shown["last_loss"] < shown["first_loss"]
    assert shown["masks"] and (work_dir / "report.html").is_file()
