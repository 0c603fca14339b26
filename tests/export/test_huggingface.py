"""The exported folder works in transformers and computes what our model computes."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from bigbird_ja.commands.fill_mask import fill_mask
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.evaluation.forward import Forward
from bigbird_ja.evaluation.trained_model import load_run
from bigbird_ja.export import huggingface, model_card, parity
from bigbird_ja.train.warm_start import load_initial
from testkit import runs

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


def test_the_card_says_what_the_files_say(exported):
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


def test_without_pytorch_the_report_says_so(exported, tmp_path, monkeypatch):
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


@pytest.mark.nightly
def test_next_sentence_models_load_as_for_pretraining(
    tmp_path, sample_corpus, tokenizer_path, run_cli
):
    data, model = tmp_path / "data", tmp_path / "model"
    for arguments in (
        ["make-data", f"--input={sample_corpus}", f"--tokenizer={tokenizer_path}", "--nsp",
         f"--output_dir={data}", "--seq_length=256", "--max_predictions_per_seq=40",
         "--eval_fraction=0.1", "--num_shards=2"],
        ["pretrain", f"--data_dir={data}", f"--model_dir={model}", "--num_train_steps=2",
         runs.ENGINE, *runs.SETTINGS],
    ):  # fmt: skip
        ended = run_cli(*arguments)
        assert ended.status == 0, ended.stderr
    folder = tmp_path / "hf"
    ended = run_cli("export", f"--model_dir={model}", f"--output_dir={folder}")
    assert ended.status == 0, ended.stderr
    theirs = transformers.BigBirdForPreTraining.from_pretrained(str(folder))
    trained = load_run(str(model))
    np.testing.assert_array_equal(
        theirs.cls.seq_relationship.weight.detach().numpy(),
        trained.params["cls/seq_relationship/output_weights"],
    )
    ended = run_cli("evaluate", f"--model_dir={model}", f"--data_dir={data}", "--json")
    assert 0 <= ended.json["next_sentence_accuracy"] <= 1
