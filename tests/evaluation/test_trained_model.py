"""`fill-mask` and `evaluate` on an exported folder: the model that was exported."""

from __future__ import annotations

import json
import shutil

import pytest

from bigbird_ja.cli import main
from bigbird_ja.evaluation import trained_model
from bigbird_ja.export import huggingface, model_card, source
from bigbird_ja.process.errors import BadInput

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.fixture(scope="module")
def folder(small_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    options = model_card.Options("tiny", parity_sequences=0)
    huggingface.fill(str(path), source.load(small_run.model_dir), options)
    return str(path)


def run(capsys, *arguments):
    """The results of a command that ends well."""
    status = main.run_command_line([*arguments, "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


def test_it_fills_the_same(folder, small_run, capsys):
    text = "--text=この城は[MASK]である。"
    theirs, ours = (
        run(capsys, "fill-mask", f"--model_dir={path}", text)["masks"]
        for path in (folder, small_run.model_dir)
    )
    assert theirs == ours


def test_it_is_as_good(folder, small_run, capsys, tmp_path):
    data = [f"--data_dir={small_run.data_dir}", "--max_batches=1"]
    theirs = run(capsys, "evaluate", f"--model_dir={folder}", *data)
    config, params = (lambda s: (s.config, s.params))(source.load(small_run.model_dir))
    model = trained_model.load_model(folder)
    assert all((model.params[name] == value).all() for name, value in params.items())
    assert vars(model.config.model) == vars(config.model)
    copy = shutil.copytree(small_run.model_dir, tmp_path / "model")  # evaluate writes there
    ours = run(capsys, "evaluate", f"--model_dir={copy}", *data)
    assert theirs["masked_lm_loss"] == ours["masked_lm_loss"] and theirs["by_position"]


def test_what_an_export_cannot_do_is_refused(folder, small_run, capsys, tmp_path):
    data = f"--data_dir={small_run.data_dir}"
    for words in (["evaluate", data, "--watch"], ["fill-mask", "--text=[MASK]", "--step=2"]):
        assert main.run_command_line([*words, f"--model_dir={folder}"]) == 2
        assert "is an export" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="export again"):
        trained_model.load_model(str(tmp_path))
