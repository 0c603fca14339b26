"""`export` writes a folder, accepts a finished export, and refuses to overwrite other folders."""

from pathlib import Path

import pytest

from bigbird_ja.export import parity


def test_saved_model_is_made_once_and_replaced_on_request(small_run, tmp_path, run):
    flags = (f"--model_dir={small_run.model_dir}", f"--output_dir={tmp_path}/out")
    export = ("export", *flags, "--format=saved_model", "--json")
    made = run(*export)
    assert made.status == 0 and made.json["step"] == 6, made.stderr
    assert (tmp_path / "out/saved_model.pb").exists()
    again = run(*export)
    assert again.status == 0 and "already contains this export of step 6" in again.stderr
    other = run(*export, "--step=4")
    assert other.status == 2 and "--overwrite" in other.stderr
    replaced = run(*export, "--step=4", "--overwrite")
    assert replaced.status == 0 and replaced.json["step"] == 4


def test_exported_folder_names_no_local_path(small_run, tmp_path, run):
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
    for path in filter(Path.is_file, folder.rglob("*")):
        for words in (corpus.parent, small_run.data_dir, small_run.model_dir, tmp_path):
            assert str(words).encode() not in path.read_bytes(), f"{path.name} names {words}"


def test_a_folder_that_disagrees_ends_with_status_1(small_run, tmp_path, run, monkeypatch):
    """Exit with status 1, and warn in the card, if outputs in transformers differ from the run's.

    An earlier version exited with status 0, and its card had no warning.
    """
    pytest.importorskip("torch", reason="parity needs PyTorch")
    monkeypatch.setattr(parity, "TOLERANCE", 0.0)
    folder = tmp_path / "mine"
    places = [f"--{name}={getattr(small_run, name)}" for name in ("model_dir", "data_dir")]
    # The second call finds the finished folder, and must report the difference, too.
    for _ in range(2):
        ended = run("export", *places, f"--output_dir={folder}", "--license=mit", "--json")
        assert ended.status == 1 and "log-probabilities differ by" in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr and ended.json["reason"] == "bug"
    card = (folder / "README.md").read_text("utf-8")
    assert "**Do not use it as it is**: log-probabilities differ by" in card
    assert "\n# mine\n" in card
