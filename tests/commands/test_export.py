"""`export` makes a folder, finds it again, and refuses to overwrite."""

from __future__ import annotations

import pytest


def test_saved_model_and_the_same_again(small_run, tmp_path, run):
    flags = (f"--model_dir={small_run.model_dir}", f"--output_dir={tmp_path}/out")
    export = ("export", *flags, "--format=saved_model", "--json")
    made = run(*export)
    assert made.status == 0 and made.json["step"] == 6, made.stderr
    assert (tmp_path / "out/saved_model.pb").exists()
    again = run(*export)
    assert again.status == 0 and "finished before" in again.stderr
    other = run(*export, "--step=4")
    assert other.status == 2 and "--overwrite" in other.stderr
    replaced = run(*export, "--step=4", "--overwrite")
    assert replaced.status == 0 and replaced.json["step"] == 4


def test_hugging_face(small_run, tmp_path, run):
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    ended = run(
        "export", f"--model_dir={small_run.model_dir}", f"--output_dir={tmp_path}/hf",
        "--parity_sequences=0", "--license=cc-by-sa-4.0", "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    assert "license: cc-by-sa-4.0" in (tmp_path / "hf/README.md").read_text(encoding="utf-8")
    assert ended.json["parity"]["tokenizer"]["agrees"]
