"""`fill-mask` and `evaluate` on an exported folder: the model that was exported."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bigbird_ja.cli import main
from bigbird_ja.evaluation import trained_model
from bigbird_ja.export import formats, model_card
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import STEP, read_variables, write_variables
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.fixture(scope="module")
def folder(small_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf")
    options = model_card.Options("tiny")
    formats.fill_huggingface(str(path), trained_model.load_run(small_run.model_dir), options)
    return str(path)


def test_an_export_is_the_model_that_was_exported_and_training_begins_from_it(folder, small_run):
    ours, theirs = trained_model.load_model(small_run.model_dir), trained_model.load_model(folder)
    assert theirs.params.keys() == ours.params.keys()
    assert all((theirs.params[name] == value).all() for name, value in ours.params.items())
    assert theirs.config.model == ours.config.model
    first = load_initial(folder, *with_data(ours.config))
    initial, table = first.values, first.summary
    assert all((initial[name] == value).all() for name, value in ours.params.items())
    assert "a Hugging Face folder" in table
    assert theirs.step == ours.step and theirs.tokenizer.sha256 == ours.tokenizer.sha256


def test_commands_take_an_export(folder, small_run, capsys):
    for words, key in (
        (["fill-mask", "--text=この城は[MASK]である。"], "masks"),
        (["evaluate", f"--data_dir={small_run.data_dir}", "--max_batches=1"], "by_position"),
    ):
        status = main.run_command_line([*words, f"--model_dir={folder}", "--json"])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        assert json.loads(captured.out)[key]


def test_what_an_export_cannot_do_is_refused(folder, small_run, capsys, tmp_path):
    data = f"--data_dir={small_run.data_dir}"
    for words in (["evaluate", data, "--step=2"], ["fill-mask", "--text=[MASK]", "--step=2"]):
        assert main.run_command_line([*words, f"--model_dir={folder}"]) == 2
        assert "is an export" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="export again"):
        trained_model.load_model(str(tmp_path))


BIAS = "cls/predictions/output_bias"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("missing", f"step 7: {BIAS} is missing.*by --step"),
        ("short", rf"step 7: {BIAS} has the shape \[1199\].*by --step"),
        ("not a number", f"ckpt-7: {BIAS} holds text, NaN or infinite numbers"),
    ],
)
def test_a_checkpoint_whose_variables_are_not_the_model_is_refused(
    damage, problem, small_run, tmp_path
):
    """Its sidecar is right: size and checksums are those of the files."""
    model_dir = str(shutil.copytree(small_run.model_dir, tmp_path / "model"))
    store = CheckpointStore(model_dir, owned=Owned.load(model_dir))
    values = read_variables(f"{store.model_dir}/model.ckpt-6")
    values[STEP] = np.int64(7)
    bias = values.pop(BIAS)
    if damage == "short":
        values[BIAS] = bias[:-1]
    elif damage == "not a number":
        values[BIAS] = np.full_like(bias, np.nan)
    write_variables(str(tmp_path / "new"), values)
    meta = dataclasses.replace(store.read_meta(6), step=7)
    store.publish(str(tmp_path / "new"), meta, keep_last=5, keep_every=0)
    with pytest.raises(BadInput, match=problem):
        trained_model.load_model(store.model_dir)
    assert trained_model.load_model(store.model_dir, 6).step == 6


def test_damaged_weights_of_an_export_are_refused(folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    copy = shutil.copytree(folder, tmp_path / "hf")
    state = load_file(f"{copy}/model.safetensors")
    state["cls.predictions.bias"][7] = np.inf
    save_file(state, f"{copy}/model.safetensors")
    with pytest.raises(BadInput, match="output_bias holds NaN or infinite numbers: export again"):
        trained_model.load_model(str(copy))
