"""Models that are no run's, and checkpoints that are no model's."""

import pytest

from bigbird_ja import cli, export
from bigbird_ja.evaluation import load_run
from bigbird_ja.export import model_card
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.fixture(scope="module")
def folder(small_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    options = model_card.Options("tiny")
    export.fill_huggingface(str(path), load_run(small_run.model_dir), options)
    return str(path)


def test_training_begins_from_an_export_which_other_commands_leave_to_transformers(
    folder, small_run, capsys
):
    ours = load_run(small_run.model_dir)
    first = load_initial(folder, *with_data(ours.config))
    assert "a Hugging Face folder" in first.summary
    assert all((first.values[name] == value).all() for name, value in ours.params.items())
    data = f"--data_dir={small_run.data_dir}"
    for words in (["evaluate", data], ["fill-mask", "--text=[MASK]"]):
        assert cli.run_command_line([*words, f"--model_dir={folder}"]) == 2
        assert "transformers loads what `export` made" in capsys.readouterr().err
