"""Models that are no run's, and checkpoints that are no model's."""

import dataclasses
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


def test_training_begins_from_an_export_which_other_commands_leave_to_transformers(
    folder, small_run, capsys
):
    ours = trained_model.load_run(small_run.model_dir)
    first = load_initial(folder, *with_data(ours.config))
    assert "a Hugging Face folder" in first.summary
    assert all((first.values[name] == value).all() for name, value in ours.params.items())
    data = f"--data_dir={small_run.data_dir}"
    for words in (["evaluate", data], ["fill-mask", "--text=[MASK]"]):
        assert main.run_command_line([*words, f"--model_dir={folder}"]) == 2
        assert "transformers loads what `export` made" in capsys.readouterr().err


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
        trained_model.load_run(store.model_dir)
    assert trained_model.load_run(store.model_dir, 6).meta.step == 6
