"""`plan` as a command."""

from __future__ import annotations

import functools
import json

import pytest

from bigbird_ja.process.console import LiveLine
from tests.launch.support import write_manifest


@pytest.fixture
def plan(run):
    """`plan("--config=base-4096")`, with --json."""
    return functools.partial(run, "plan", "--json")


def test_without_data_the_assumption_is_printed_and_a_pipe_gets_every_column(plan):
    ended = plan("--config=base-4096")
    assert ended.status == 0 and ended.json["warnings"] == []
    assert ended.json["tokens_per_step"] == 65_536 and ended.json["steps_per_epoch"] > 1000
    assert "Wiki40b" in ended.json["assumption"] and "Wiki40b" in ended.stderr
    assert "days old" in ended.stderr
    rows = {(row["accelerator"], row["pricing"]): row for row in ended.json["rows"]}
    assert {name for name, _ in rows} == {
        "v2-8", "v3-8", "v4-8", "v5e-1", "v5e-8", "v5p-8", "v6e-8", "v7x-8"
    }  # fmt: skip
    assert all(row["hours"] > 0 for row in rows.values())
    assert rows["v3-8", "spot"]["cost_usd"] > 0 and rows["v3-8", "spot"]["zone"]
    # Money has two decimals, and doubts stand in the row.
    line = next(line for line in ended.stderr.splitlines() if line.startswith("v5e-8    spot"))
    assert f"  {rows['v5e-8', 'spot']['cost_usd']:.2f}  unproven" in line
    header = next(line for line in ended.stderr.splitlines() if line.startswith("machine"))
    assert all(name in header for name in ("tokens/s", "rate from", "rented h", "$/h"))


def test_machines_by_name_and_zone(plan):
    named = ["--config=base-4096", "--accelerator_type=v5litepod-16", "--accelerator_type=v5p-8"]
    ended = plan(*named)
    assert ended.status == 0
    assert {row["accelerator"] for row in ended.json["rows"]} == {"v5e-16", "v5p-8"}
    ended = plan(*named, "--zone=europe-west1-d")
    assert "not offered in europe-west1-d: v5litepod-16" in ended.stderr
    assert {row["accelerator"] for row in ended.json["rows"]} == {"v5p-8"}


def test_with_data_and_a_plot(plan, tmp_path):
    data = write_manifest(f"{tmp_path}/data")
    flags = ["--config=tiny-cpu", f"--data_dir={data}", f"--plot={tmp_path}/plan.png"]
    ended = plan(*flags, "--epochs=4")
    assert ended.status == 0
    assert ended.json["assumption"] is None and ended.json["steps_per_epoch"] == 12 / 4
    assert (ended.json["steps"], ended.json["tokens"]) == (12, 12 * 4 * 512)
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    ended = plan(*flags, "--num_train_steps=23301")
    assert ended.status == 0, "our own picture is renewed"
    (warning,) = ended.json["warnings"]
    assert "23,301 steps are 7,767 epochs" in warning and f"warning: {warning}" in ended.stderr


def test_preflight_figures_replace_assumptions_and_the_choice_knows_whole_slices(plan, tmp_path):
    path = tmp_path / "preflight.json"
    common = {"fits": True, "seq_length": 4096}
    chip = {**common, "chip": "v3", "tokens_per_second_per_core": 12_345.0, "batch_per_core": 2}
    whole = {
        **common, "topology": "v6e:4x4", "chip": "v6e", "devices": 16, "batch_per_core": 1,
        "tokens_per_second": 5e6, "tokens_per_second_per_core": 3.1e5,
    }  # fmt: skip
    path.write_text(json.dumps({"chips": [chip], "topologies": [whole]}))
    flags = ["--config=base-4096", f"--preflight={path}"]
    ended = plan(*flags, "--finish_by=2099-12-31")
    assert ended.status == 0
    rates = {row["accelerator"]: row["tokens_per_second"] for row in ended.json["rows"]}
    assert (rates["v3-8"], rates["v6e-16"]) == (8 * 12_345.0, 5e6)
    assert ended.json["choice"]["cost_usd"] == min(
        row["cost_usd"] for row in ended.json["rows"] if row["wall_hours"] and row["cost_usd"]
    )
    assert "choice: the cheapest by 2099-12-31 is" in ended.stderr
    ended = plan(*flags, "--max_cost=100000")
    assert ended.json["choice"]["accelerator"] == "v6e-16"
    assert "at most 100,000.00 USD is v6e-16 " in ended.stderr
    assert "launch --accelerator_type v6e-16 --pricing" in ended.stderr
    ended = plan(*flags, "--max_cost=0.01")
    assert (ended.status, ended.json["choice"]) == (0, None)
    assert "no machine here is done for at most 0.01 USD" in ended.stderr
    assert "fastest: v6e-16" in ended.stderr


def test_an_old_table_warns(plan, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("as_of: 2020-01-01\n")
    assert "warning: more than a year" in plan("--config=tiny-cpu", f"--prices={path}").stderr


def test_the_table_fits_a_terminal_of_80_columns(plan, monkeypatch):
    monkeypatch.setattr(LiveLine, "columns", lambda _: 79)
    lines = plan("--config=base-4096").stderr.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("machine"))
    end = lines.index("", start)
    assert end - start > 10 and max(map(len, lines[start:end])) <= 79
    assert all(name in lines[start] for name in ("done after", "cost $", "note"))
    # A long note stands once, below, and its number in the rows.
    assert any(line.startswith("v5e-8    Kaggle") and line.endswith("(1)") for line in lines)
    assert sum(line.startswith("(1) as of ") for line in lines) == 1
