"""The exported folder works in transformers and computes what our model computes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest

from bigbird_ja.commands.fill_mask import fill_mask
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.evaluation.forward import Forward
from bigbird_ja.evaluation.trained_model import load_model, load_run
from bigbird_ja.export import huggingface, model_card, parity
from bigbird_ja.model.params import initial_parameters
from bigbird_ja.train.warm_start import load_initial

torch = pytest.importorskip("torch", reason="parity needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = pytest.mark.both


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    """(folder, parity report, model)"""
    folder = tmp_path_factory.mktemp("hf")
    trained = load_run(small_run.model_dir)
    manifest = manifest_lib.load(small_run.data_dir)
    options = model_card.Options("tiny", "other", 3, small_run.data_dir, manifest)
    return folder, huggingface.fill(str(folder), trained, options), trained


def test_everything_agrees(exported):
    _, report, _ = exported
    assert report["tokenizer"]["agrees"], report["tokenizer"]
    assert report["scores"]["agrees"] and report["scores"]["predictions"] > 50, report["scores"]
    losses = report["masked_lm_loss"]
    assert losses["exported"] == pytest.approx(losses["bigbird_ja"], abs=1e-4)
    assert {"transformers", "tokenizers", "sentencepiece", "torch"} <= report["versions"].keys()
    assert f"transformers {transformers.__version__}" in parity.as_markdown(report)
    assert "not_compared" not in report


def test_transformers_own_class_fills_short_texts_as_we_do(exported):
    folder, _, trained = exported
    text = "この城は[MASK]である。"
    fill = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    assert type(fill.model).__name__ == "BigBirdForMaskedLM"
    assert fill.model.config.attention_type == "block_sparse"
    (ours,) = fill_mask(Forward(trained.config, trained.params), trained.tokenizer, text, 5)
    for mine, other in zip(ours, fill(text), strict=True):
        assert mine["token_id"] == other["token"]
        assert mine["probability"] == pytest.approx(other["score"], rel=1e-3)


def test_the_card_s_code_runs(exported):
    folder, _, _ = exported
    card = (folder / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in card.split("```python\n")[1:]]
    assert len(blocks) == 2
    code = "\n".join(blocks).replace("PATH_TO_THIS_FOLDER", str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_card_states_what_the_files_hold(exported):
    folder, report, trained = exported
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlanguage: ja\nlicense: other\n")
    for fact in ("6 of 6", "1,200 SentencePiece pieces", "not recorded", "`rolled`"):
        assert fact in card, fact
    assert f"masked-LM loss {report['masked_lm_loss']['exported']:.4f} with that code" in card
    assert "No licence was stated" in card
    text = (folder / "parity_report.md").read_text(encoding="utf-8")
    assert "DO NOT" not in text and "identical in 28 of 28" in text
    assert json.loads((folder / "parity_report.json").read_text())["step"] == trained.meta.step


def test_without_pytorch_the_report_names_what_was_not_compared(exported, tmp_path, monkeypatch):
    _, _, trained = exported
    monkeypatch.setitem(sys.modules, "torch", None)
    # transformers 5 asks once, at its import, and keeps the answer.
    monkeypatch.setattr("transformers.configuration_utils.is_torch_available", lambda: False)
    report = huggingface.fill(str(tmp_path), trained, model_card.Options("x"))
    assert report["not_compared"].startswith("PyTorch is not installed")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "was not compared with training's (PyTorch is not installed" in card
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = parity.compare(str(tmp_path), trained, model_card.Options("x"))
    assert "neither token ids nor scores" in parity.as_markdown(report)


def test_generated_records_where_there_is_no_data(exported):
    _, _, trained = exported
    batch = parity.masked_records(trained, model_card.Options("x", parity_sequences=2))
    assert batch["input_ids"].shape == (2, 256)
    truth, places = batch["masked_lm_ids"], batch["masked_lm_positions"]
    special = trained.tokenizer.special
    assert (np.take_along_axis(batch["input_ids"], places, 1) == special.mask).all()
    assert (truth != special.mask).all() and (truth != special.pad).all()


def test_round_trip_through_init_from(exported):
    folder, _, trained = exported
    params, table = load_initial(str(folder), trained.config)
    assert params.keys() == trained.params.keys()
    for name, value in trained.params.items():
        np.testing.assert_array_equal(params[name], value)
    assert "a Hugging Face folder" in table
    assert "bert.embeddings.word_embeddings.weight" in table


def test_next_sentence_models_load_as_for_pretraining(exported, tmp_path):
    _, _, trained = exported
    config = deepcopy(trained.config)
    config.make_data.nsp = True
    pair_model = dataclasses.replace(
        trained, config=config, params=initial_parameters(config, seed=0)
    )
    huggingface.fill(str(tmp_path), pair_model, model_card.Options("x", parity_sequences=0))
    theirs = transformers.BigBirdForPreTraining.from_pretrained(str(tmp_path))
    name = "cls/seq_relationship/output_weights"
    np.testing.assert_array_equal(
        theirs.cls.seq_relationship.weight.detach().numpy(), pair_model.params[name]
    )
    np.testing.assert_array_equal(load_model(str(tmp_path)).params[name], pair_model.params[name])
