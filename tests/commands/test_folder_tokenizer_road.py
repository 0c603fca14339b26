"""make-data, pretrain, evaluate, fill-mask and export by the tokenizer of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the huggingface extra")

import transformers

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, pipeline
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.train import warm_start
from testkit import runs, tokenizer_folders

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """As ModernBERT's: padding is id 3,003 of 3,009, with unused ids behind it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer_folders.byte_level_bpe(path, list(articles.documents(40, seed=5)))
    return path


@pytest.fixture(scope="module")
def run(folder, sample_corpus, tmp_path_factory) -> runs.SmallRun:
    return runs.make(tmp_path_factory.mktemp("run"), sample_corpus, str(folder))


def test_padding_and_random_tokens_are_the_tokenizers(run, folder) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    manifest = manifest_lib.load(run.data_dir)
    assert manifest.pad_id == theirs.pad_token_id > 0
    assert manifest.as_settings()["make_data.pad_id"] == theirs.pad_token_id
    drawn = {theirs.convert_ids_to_tokens(int(i)) for i in manifest.rule().ordinary_ids()}
    assert not drawn & {*theirs.all_special_tokens, "[unused0]", "[unused1]"}
    batch = next(iter(pipeline.eval_batches(manifest, run.data_dir, batch_size=64)))
    ids = batch["input_ids"].numpy()
    assert (ids[:, 0] == theirs.cls_token_id).any() and (ids[-1] == theirs.pad_token_id).all()
    assert ((batch["document_ids"].numpy() == 0) == (ids == theirs.pad_token_id)).all()


def test_the_commands_take_the_run(run, run_cli) -> None:
    model = f"--model_dir={run.model_dir}"
    evaluated = run_cli("evaluate", model, f"--data_dir={run.data_dir}", "--max_batches=1")
    assert evaluated.status == 0, evaluated.stderr
    checked = run_cli("check-data", f"--data_dir={run.data_dir}", "--json")
    assert checked.status == 0 and checked.json["problems"] == []
    filled = run_cli("fill-mask", model, "--text=この城は[MASK]である。", "--json")
    assert filled.status == 0, filled.stderr
    assert len(filled.json["masks"]) == 1


def test_export_hands_the_folder_back(run, folder, run_cli, tmp_path) -> None:
    flags = [f"--model_dir={run.model_dir}", f"--data_dir={run.data_dir}"]
    exported = run_cli("export", *flags, f"--output_dir={tmp_path}/hf", timeout=200)
    assert exported.status == 0, exported.stderr
    name = "tokenizer.json"
    assert (tmp_path / "hf" / name).read_bytes() == (folder / name).read_bytes()
    report = json.loads((tmp_path / "hf/parity_report.json").read_text())
    assert report["tokenizer"]["agrees"]
    config = json.loads((tmp_path / "hf/config.json").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for part in ("pad", "cls", "sep"):
        assert config[f"{part}_token_id"] == getattr(theirs, f"{part}_token_id")
    again = run_cli("fill-mask", f"--model_dir={tmp_path}/hf", "--text=この城は[MASK]。", "--json")
    assert again.status == 0, again.stderr


def test_markers_that_are_text_are_mentioned_once(run, folder, sample_corpus, run_cli, tmp_path):
    flags = [f"--input={sample_corpus}", f"--tokenizer={folder}", f"--output_dir={tmp_path}/data"]
    made = run_cli("make-data", *flags, "--seq_length=256", "--num_workers=1")
    assert made.status == 0
    assert made.stderr.count("has no piece for Wiki40b's markers") == 1
    refused = run_cli(
        "make-data", *flags[:2], f"--output_dir={tmp_path}/x", "--set=make_data.pad_id=3"
    )
    assert refused.status == 2 and not (tmp_path / "x").exists()
    refused = run_cli(
        "make-data", flags[0], f"--tokenizer={tmp_path}", f"--output_dir={tmp_path}/x"
    )
    assert refused.status == 2 and "no tokenizer in this folder" in refused.stderr


def test_embeddings_that_are_too_few_are_refused(run, folder) -> None:
    (folder / "model.safetensors").touch()
    config = {"model_type": "modernbert", "hidden_size": 32}
    manifest = manifest_lib.load(run.data_dir)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3008}))
    with pytest.raises(BadInput, match=r"embeddings of 3,008 pieces .* ids up to 3,008"):
        warm_start.adopted_settings(str(folder), None, manifest)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3072}))
    adopted = warm_start.adopted_settings(str(folder), None, manifest)
    assert ("model.vocab_size", 3072) in [(o.key, o.value) for o in adopted]


def test_many_special_ids_are_looked_up() -> None:
    rule = masking.MaskingRule(50, tuple(range(3, 40, 2)), 5, 3, 9, 0.15, "subword")
    tokens = np.arange(50)[None]
    assert (masking.is_ordinary(tokens, rule)[0] == ~np.isin(tokens[0], rule.special_ids)).all()
    assert (
        masking.is_ordinary(tokens, rule, pipeline.TENSORFLOW).numpy()
        == masking.is_ordinary(tokens, rule)
    ).all()
    assert (
        rule.ordinary_ids().tolist()
        == np.flatnonzero(masking.is_ordinary(tokens, rule)[0]).tolist()
    )
