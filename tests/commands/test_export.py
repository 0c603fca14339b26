"""`export` makes a folder, finds it again, and refuses to overwrite."""

from __future__ import annotations

import json

import pytest

from bigbird_ja.cli import main


def _run(capsys, *arguments):
    status = main.run_command_line(["export", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured


def test_saved_model_and_the_same_again(small_run, tmp_path, capsys):
    flags = [f"--model_dir={small_run.model_dir}", f"--output_dir={tmp_path}/out"]
    status, result, captured = _run(capsys, *flags, "--format=saved_model")
    assert status == 0 and result["step"] == 6, captured.err
    assert (tmp_path / "out/saved_model.pb").exists()
    status, _, captured = _run(capsys, *flags, "--format=saved_model")
    assert status == 0 and "finished before" in captured.err
    status, _, captured = _run(capsys, *flags, "--format=saved_model", "--step=4")
    assert status == 2 and "--overwrite" in captured.err
    status, result, _ = _run(capsys, *flags, "--format=saved_model", "--step=4", "--overwrite")
    assert status == 0 and result["step"] == 4


def test_hugging_face(small_run, tmp_path, capsys):
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    status, result, captured = _run(
        capsys, f"--model_dir={small_run.model_dir}", f"--output_dir={tmp_path}/hf",
        "--parity_sequences=0", "--license=cc-by-sa-4.0",
    )  # fmt: skip
    assert status == 0, captured.err
    card = (tmp_path / "hf/README.md").read_text(encoding="utf-8")
    assert "license: cc-by-sa-4.0" in card
    assert result["parity"]["tokenizer"]["agrees"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model_dir=nowhere", "--output_dir=OUT"], "no checkpoint here"),
        (["--model_dir=MODEL", "--output_dir=OUT", "--license=mit\ntags: [x]"], "--license="),
        (["--model_dir=MODEL", "--output_dir=MODEL/hf"], "overlaps with --model_dir"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, message, small_run, tmp_path, capsys):
    given = [
        a.replace("MODEL", small_run.model_dir).replace("OUT", f"{tmp_path}/out") for a in arguments
    ]
    assert main.run_command_line(["export", *given]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
