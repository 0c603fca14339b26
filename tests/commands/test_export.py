"""`export` makes a folder, finds it again, and refuses to overwrite."""

import functools
from pathlib import Path

import pytest

from testkit.fakes import hub


def test_saved_model_is_made_once_and_replaced_on_request(small_run, tmp_path, run):
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


def test_a_folder_that_disagrees_ends_with_status_1_and_is_not_pushed(
    small_run, tmp_path, run, monkeypatch
):
    """It printed DO NOT AGREE, and ended with status 0; the card was silent."""
    pytest.importorskip("torch", reason="parity needs PyTorch")
    monkeypatch.setattr("bigbird_ja.export.parity.TOLERANCE", 0.0)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_test")
    monkeypatch.setattr("bigbird_ja.storage.hub.push", lambda *names: pytest.fail("was pushed"))
    folder = tmp_path / "mine"
    places = [f"--{name}={getattr(small_run, name)}" for name in ("model_dir", "data_dir")]
    words = ("export", *places, f"--output_dir={folder}", "--license=mit", "--json")
    for more in ((), ("--push_to_hub=me/model",)):  # the second finds it finished
        ended = run(*words, *more)
        assert ended.status == 1 and "log-probabilities differ by" in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr and ended.json["reason"] == "bug"
    card = (folder / "README.md").read_text("utf-8")
    assert "**Do not use it as it is**: log-probabilities differ by" in card
    assert "\n# mine\n" in card  # the title


def test_push_to_hub(small_run, tmp_path, run, zygote, monkeypatch):
    """Refused, the export stays, and the same command pushes it; strangers' files stay here."""
    pytest.importorskip("huggingface_hub", reason="needs the huggingface extra")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    folder = tmp_path / "hf"
    places = (f"--model_dir={small_run.model_dir}", f"--output_dir={folder}", "--json")
    export = ("export", *places, "--push_to_hub=me/model", "--license=mit")
    with hub.serving() as there:
        export_there = functools.partial(zygote.run, *export, environ=there.environ(tmp_path))
        for words, wanted in ((export[:-1], "--license"), (export, "hf auth login")):
            ended = run(*words)
            assert ended.status == 2 and wanted in ended.stderr and not folder.exists()
        there.refuses = 403
        refused = export_there()
        assert refused.status == 2 and "403" in refused.err, refused.err
        assert (folder / "export.json").exists()
        (folder / "notes.txt").write_text("mine")
        there.refuses = None
        pushed = export_there()
        assert pushed.status == 0 and "finished before" in pushed.err, pushed.err
        assert pushed.result["pushed"].startswith(f"{there.url}/me/model/commit/")
        files = there.repos["me/model"]
        assert there.private["me/model"] and "Bearer hf_test" in there.tokens
    names = {path.name for path in folder.iterdir()} - {"notes.txt", ".bigbird-ja.json"}
    assert {n.partition("/")[0] for n in files} == names and "model.safetensors" in files
    assert all((folder / n).read_bytes() == data for n, data in files.items())
    gone = export_there()
    assert gone.status == 74 and "run the same command again" in gone.err
