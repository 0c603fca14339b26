"""`plan` as a command."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

import pytest

from bigbird_ja import cli
from tests.cloud.support import write_manifest


def run(*arguments: str) -> tuple[int, str, dict[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run_command_line(["plan", *arguments, "--json"])
    return status, err.getvalue(), json.loads(out.getvalue())


def test_without_data_the_assumption_is_said() -> None:
    status, text, result = run("--config=base-4096")
    assert status == 0
    assert result["tokens_per_step"] == 65_536
    assert result["steps_per_epoch"] > 1000
    assert "Wiki40b" in result["assumption"] and "Wiki40b" in text
    assert "days old" in text
    rows = {(row["accelerator"], row["pricing"]): row for row in result["rows"]}
    assert len(rows) == 12
    for row in rows.values():
        assert row["hours"] > 0 and row["cost_usd"] > 0


def test_with_data_and_a_plot(tmp_path: object) -> None:
    data = write_manifest(f"{tmp_path}/data")
    plot = f"{tmp_path}/plan.png"
    flags = ["--config=tiny-cpu", f"--data_dir={data}", f"--plot={plot}"]
    status, _, result = run(*flags, "--epochs=4")
    assert status == 0
    assert result["assumption"] is None
    assert result["steps_per_epoch"] == 12 / 8
    assert (result["steps"], result["tokens"]) == (6, 6 * 8 * 512)
    assert os.path.getsize(plot) > 10_000


def test_preflight_figures_replace_assumptions(tmp_path: object) -> None:
    pytest.importorskip("bigbird_ja.preflight.rates")
    path = f"{tmp_path}/preflight.json"
    chip = {
        "chip": "v3", "fits": True, "tokens_per_second_per_core": 12_345.0, "seq_length": 4096,
        "batch_per_core": 2,
    }  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"config_fingerprint": "x", "config": {}, "chips": [chip]}, file)
    status, _, result = run("--config=base-4096", f"--preflight={path}")
    assert status == 0
    row = next(row for row in result["rows"] if row["accelerator"] == "v3-8")
    assert row["rate_source"] == "preflight"
    assert row["tokens_per_second"] == 8 * 12_345.0


def test_simulation_reports_the_interval_that_is_best(tmp_path: object) -> None:
    plot = f"{tmp_path}/share.png"
    flags = ["--simulate", "--simulate_days=3", "--seeds=1", f"--simulate_plot={plot}"]
    status, text, result = run("--config=base-4096", *flags)
    assert status == 0
    assert set(result["simulation"]["best_minutes"]) == {"exponential", "bursty"}
    assert "useful share" in text
    assert os.path.getsize(plot) > 10_000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data_dir=/nonexistent"], "manifest"),
        (["--prices=/nonexistent"], "no such file"),
        (["--simulate", "--seeds=x"], "--seeds"),
        (["--simulate", "--preemptions_per_hour=0"], "--preemptions_per_hour"),
        (["--mfu=2"], "mfu"),
        (["--set=model.num_layer=3"], "did you mean 'model.num_layers'"),
    ],
)
def test_bad_input(flags: list[str], words: str) -> None:
    status, _, result = run(*flags)
    assert (status, result["reason"]) == (2, "bad_input")
    assert words in result["error"]


def test_a_warm_up_that_does_not_end_is_said() -> None:
    status, text, _ = run("--num_train_steps=40")
    assert status == 0 and "warning: training.warmup_steps=10,000" in text
