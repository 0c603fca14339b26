"""`fill-mask` and `evaluate` on an exported folder: the model that was exported."""

from __future__ import annotations

import json

import pytest

from bigbird_ja.cli import main
from bigbird_ja.evaluation import trained_model
from bigbird_ja.export import huggingface, model_card
from bigbird_ja.process.errors import BadInput

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.fixture(scope="module")
def folder(small_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    options = model_card.Options("tiny", parity_sequences=0)
    huggingface.fill(str(path), trained_model.load_run(small_run.model_dir), options)
    return str(path)


def run(capsys, *arguments):
    """The results of a command that ends well."""
    status = main.run_command_line([*arguments, "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


def test_an_export_is_the_model_that_was_exported(folder, small_run):
    ours, theirs = trained_model.load_model(small_run.model_dir), trained_model.load_model(folder)
    assert theirs.params.keys() == ours.params.keys()
    assert all((theirs.params[name] == value).all() for name, value in ours.params.items())
    assert vars(theirs.config.model) == vars(ours.config.model)
    assert theirs.step == ours.step and theirs.tokenizer.sha256 == ours.tokenizer.sha256


def test_commands_take_an_export(folder, small_run, capsys):
    text = "--text=この城は[MASK]である。"
    theirs, ours = (
        run(capsys, "fill-mask", f"--model_dir={path}", text)
        for path in (folder, small_run.model_dir)
    )
    assert theirs["masks"] == ours["masks"]
    data = [f"--data_dir={small_run.data_dir}", "--max_batches=1"]
    assert run(capsys, "evaluate", f"--model_dir={folder}", *data)["by_position"]


def test_what_an_export_cannot_do_is_refused(folder, small_run, capsys, tmp_path):
    data = f"--data_dir={small_run.data_dir}"
    for words in (["evaluate", data, "--watch"], ["fill-mask", "--text=[MASK]", "--step=2"]):
        assert main.run_command_line([*words, f"--model_dir={folder}"]) == 2
        assert "is an export" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="export again"):
        trained_model.load_model(str(tmp_path))
