"""The command, with the real compiler on a tiny step."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from bigbird_ja import cli
from bigbird_ja.errors import BadInput
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import rates
from tests.preflight.test_memory import DETAILED

TINY = [
    "--set", "model.num_layers=1", "--set", "model.hidden_size=64",
    "--set", "model.num_attention_heads=1", "--set", "model.intermediate_size=128",
    "--set", "tokenize.vocab_size=512", "--set", "make_data.seq_length=128",
    "--set", "make_data.max_predictions_per_seq=20", "--set", "training.global_batch_size=8",
]  # fmt: skip
KEYS = {
    "chip", "fits", "estimated_cycles", "priced_cycles", "step_ms", "temp_bytes",
    "argument_bytes", "hbm_peak_bytes", "hbm_limit_bytes", "flops", "model_flops",
    "hbm_traffic_bytes", "mfu", "tokens_per_second_per_core", "unestimated_ops", "top_ops",
}  # fmt: skip


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    status = cli.run_command_line(["preflight", "--json", "--nocache", *TINY, *arguments])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_figures_files_and_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: os.PathLike[str]
) -> None:
    output, plot = os.path.join(tmp_path, "o.json"), os.path.join(tmp_path, "p.png")
    dump = os.path.join(tmp_path, "hlo")
    status, result, printed = _run(
        capsys, "--chip", "v3", "--output", output, "--plot", plot, "--dump_hlo", dump
    )
    assert status == 0
    (chip,) = result["chips"]
    assert chip.keys() >= KEYS
    assert chip["fits"] is True
    assert 0 < chip["estimated_cycles"] <= chip["priced_cycles"]
    assert chip["step_ms"] == pytest.approx(chip["priced_cycles"] / 940e6 * 1e3, rel=1e-4)
    assert chip["hbm_peak_bytes"] == (
        chip["temp_bytes"] + chip["argument_bytes"] + chip["output_bytes"] - chip["alias_bytes"]
    )
    # Weights and slots are updated in place: what comes out beside them is small.
    assert chip["alias_bytes"] > 0.9 * chip["output_bytes"]
    assert sum(chip["by_kind"].values()) == pytest.approx(chip["priced_cycles"], rel=0.01)
    assert chip["mfu"] == pytest.approx(
        chip["model_flops"] / (chip["step_ms"] / 1e3 * 61.5e12), rel=1e-4
    )
    assert [chip["tokens_per_second_per_core"] for chip in rates.load(output)] == [
        chip["tokens_per_second_per_core"] for chip in result["chips"]
    ]
    assert os.path.getsize(plot) > 1000
    assert sorted(os.listdir(dump)) == ["step-batch1.hlo.pb", "step-batch1.v3.optimized.hlo"]
    for said in ("fits", "MFU", "adding up gradients", "compiler's version", "layer 0"):
        assert said in printed


def test_a_step_that_does_not_fit_names_its_buffers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = f"json.dump({{'error': {DETAILED!r}}}, open(sys.argv[-1] + '/result.json', 'w'))"
    monkeypatch.setattr(compile_lib, "CHILD", (sys.executable, "-c", f"import json, sys; {write}"))
    _check_that_it_does_not_fit(*_run(capsys, "--chip", "v2"))


@pytest.mark.slow
def test_the_real_compiler_refuses_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    _check_that_it_does_not_fit(*_run(capsys, "--chip", "v2", "--batch_per_core", "60000"))


def _check_that_it_does_not_fit(status: int, result: dict[str, Any], printed: str) -> None:
    assert status == 0
    (chip,) = result["chips"]
    assert chip.keys() >= KEYS
    assert chip["fits"] is False
    assert chip["priced_cycles"] is None
    assert "/" in chip["largest_buffers"][0]["op"]
    assert chip["largest_buffers"][0]["op"] in printed
    assert "does not fit" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chip", "v7"], "one of v2, v3"),
        (["--set", "training.global_batch_size=12"], "does not divide"),
        (["--set", "make_data.seq_length=4100"], "multiple"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    status, result, printed = _run(capsys, *arguments)
    assert status == 2
    assert result["reason"] == "bad_input"
    assert said in printed
    assert "Traceback" not in printed


def test_rates_of_something_else(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "x.json")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("{}")
    with pytest.raises(BadInput, match="not a result of"):
        rates.load(path)
    with pytest.raises(BadInput, match="no such file"):
        rates.load(path + ".none")
