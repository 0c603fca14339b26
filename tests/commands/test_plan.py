"""`plan` as a command."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.cli import main
from bigbird_ja.process.console import LiveLine
from tests.launch.support import write_manifest


def run(*arguments: str) -> tuple[int, str, dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.run_command_line(["plan", *arguments, "--json"])
    return status, err.getvalue(), json.loads(out.getvalue())


def test_without_data_the_assumption_is_printed() -> None:
    status, text, result = run("--config=base-4096")
    assert status == 0 and result["warnings"] == []
    assert result["tokens_per_step"] == 65_536 and result["steps_per_epoch"] > 1000
    assert "Wiki40b" in result["assumption"] and "Wiki40b" in text and "days old" in text
    rows = {(row["accelerator"], row["pricing"]): row for row in result["rows"]}
    assert {name for name, _ in rows} == {
        "v2-8", "v3-8", "v4-8", "v5e-1", "v5e-8", "v5p-8", "v6e-8", "v7x-8"
    }  # fmt: skip
    assert all(row["hours"] > 0 for row in rows.values())
    assert rows["v3-8", "spot"]["cost_usd"] > 0 and rows["v3-8", "spot"]["zone"]
    # Money has two decimals, and doubts stand in the row.
    line = next(line for line in text.splitlines() if line.startswith("v5e-8    spot"))
    assert f"  {rows['v5e-8', 'spot']['cost_usd']:.2f}  unproven" in line


def test_machines_by_name_and_zone() -> None:
    named = ["--config=base-4096", "--accelerator_type=v5litepod-16", "--accelerator_type=v5p-8"]
    status, _, result = run(*named)
    assert status == 0
    assert {row["accelerator"] for row in result["rows"]} == {"v5e-16", "v5p-8"}
    _, text, result = run(*named, "--zone=europe-west1-d")
    assert "not offered in europe-west1-d: v5litepod-16" in text
    assert {row["accelerator"] for row in result["rows"]} == {"v5p-8"}


def test_with_data_and_a_plot(tmp_path: Path) -> None:
    data = write_manifest(f"{tmp_path}/data")
    flags = ["--config=tiny-cpu", f"--data_dir={data}", f"--plot={tmp_path}/plan.png"]
    status, _, result = run(*flags, "--epochs=4")
    assert status == 0
    assert result["assumption"] is None and result["steps_per_epoch"] == 12 / 8
    assert (result["steps"], result["tokens"]) == (6, 6 * 8 * 512)
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    status, text, result = run(*flags, "--num_train_steps=23301")
    assert status == 0, "our own picture is renewed"
    (warning,) = result["warnings"]
    assert "23,301 steps are 15,534 epochs" in warning and f"warning: {warning}" in text


def test_preflight_figures_replace_assumptions_and_the_choice_knows_whole_slices(
    tmp_path: Path,
) -> None:
    path = tmp_path / "preflight.json"
    common = {"fits": True, "seq_length": 4096}
    chip = {**common, "chip": "v3", "tokens_per_second_per_core": 12_345.0, "batch_per_core": 2}
    whole = {
        **common, "topology": "v6e:4x4", "chip": "v6e", "devices": 16, "batch_per_core": 1,
        "tokens_per_second": 5e6, "tokens_per_second_per_core": 3.1e5,
    }  # fmt: skip
    path.write_text(json.dumps({"chips": [chip], "topologies": [whole]}))
    flags = ["--config=base-4096", f"--preflight={path}"]
    status, text, result = run(*flags, "--finish_by=2099-12-31")
    assert status == 0
    rates = {row["accelerator"]: row["tokens_per_second"] for row in result["rows"]}
    assert (rates["v3-8"], rates["v6e-16"]) == (8 * 12_345.0, 5e6)
    assert result["choice"]["cost_usd"] == min(
        row["cost_usd"] for row in result["rows"] if row["wall_hours"] and row["cost_usd"]
    )
    assert "choice: the cheapest by 2099-12-31 is" in text
    status, text, result = run(*flags, "--max_cost=100000")
    assert result["choice"]["accelerator"] == "v6e-16"
    assert "at most 100,000.00 USD is v6e-16 " in text
    assert "launch --accelerator_type v6e-16 --pricing" in text
    status, text, result = run(*flags, "--max_cost=0.01")
    assert (status, result["choice"]) == (0, None)
    assert "no machine here is done for at most 0.01 USD" in text and "fastest: v6e-16" in text


def test_an_old_table_warns(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("as_of: 2020-01-01\n")
    assert "warning: more than a year" in run("--config=tiny-cpu", f"--prices={path}")[1]


def test_the_table_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveLine, "columns", lambda _: 79)
    lines = run("--config=base-4096")[1].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("machine"))
    end = lines.index("", start)
    assert end - start > 10 and max(map(len, lines[start:end])) <= 79
    assert all(name in lines[start] for name in ("done after", "cost $", "note"))
    # A long note stands once, below, and its number in the rows.
    assert any(line.startswith("v5e-8    Kaggle") and line.endswith("(1)") for line in lines)
    assert sum(line.startswith("(1) as of ") for line in lines) == 1


def test_a_pipe_gets_every_column() -> None:
    header = next(t for t in run("--config=base-4096")[1].splitlines() if t.startswith("machine"))
    assert all(name in header for name in ("tokens/s", "rate from", "rented h", "$/h"))
