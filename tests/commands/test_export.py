"""`export` makes a folder, finds it again, and refuses to overwrite."""

from pathlib import Path

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


def test_a_folder_of_hugging_face_holds_no_path_of_this_machine(small_run, tmp_path, run):
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    folder = tmp_path / "hf"
    ended = run(
        "export",
        f"--model_dir={small_run.model_dir}",
        f"--data_dir={small_run.data_dir}",
        f"--output_dir={folder}",
        "--license=cc-by-sa-4.0",
        "--json",
    )
    assert ended.status == 0, ended.stderr
    assert ended.json["parity"]["tokenizer"]["agrees"]
    card, corpus = (folder / "README.md").read_text("utf-8"), Path(small_run.corpus)
    assert "license: cc-by-sa-4.0" in card and corpus.name in card
    for path in folder.iterdir():
        for words in (corpus.parent, small_run.data_dir, small_run.model_dir, tmp_path):
            assert str(words).encode() not in path.read_bytes(), f"{path.name} names {words}"
