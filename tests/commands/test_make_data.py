"""`make-data` as a command. Most of its refusals are tested in tests/test_bad_inputs.py."""

import functools
from pathlib import Path

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.text import articles
from tests.data import making
from tests.text.test_model_proto import train

SMALL = """
    --seq_length=128 --max_predictions_per_seq=20 --num_shards=4 --num_workers=1 --eval_fraction=0.1
""".split()


@pytest.fixture
def make_data(run, tokenizer_path):
    """Return a function that runs `make-data` with the sample's tokenizer and given flags."""
    tokenizer = f"--tokenizer={tokenizer_path}"
    return functools.partial(run, "make-data", tokenizer, *SMALL, "--json")


def test_make_data_reports_continues_and_refuses_other_settings(tmp_path, make_data, sample_corpus):
    places = (f"--input={sample_corpus}", f"--output_dir={tmp_path}/data")
    first = make_data(*places)
    assert first.status == 0, first.stderr
    result = first.json
    promised = "documents tokens sequences shards density mean_predictions seconds"
    assert set(promised.split()) <= set(result)
    assert result["documents"] == 60 and result["shards"] == 5 and result["density"] > 0.97
    assert 15 < result["mean_predictions"] <= 20 and result["skipped"] == 0
    assert result["unknown_rate"] < 0.01 and "warning" not in first.stderr
    before = making.tree(f"{tmp_path}/data")
    again = make_data(*places)
    assert again.status == 0 and "finished already" in again.stderr
    other = make_data(*places, "--seed=9")
    assert other.status == 2 and "12345 there, 9 requested" in other.stderr
    assert making.tree(f"{tmp_path}/data") == before


def test_another_text_field_and_a_foreign_tokenizer(tmp_path, sample_corpus, make_data):
    tokenizer, corpus = tmp_path / "own.model", tmp_path / "corpus.jsonl"
    # The special tokens are <unk>, <s>, </s> and <pad>. The tokenizer has no mask token.
    tokenizer.write_bytes(train(sample_corpus, pad_id=3))
    corpus.write_text(Path(sample_corpus).read_text("utf-8").replace('"text"', '"body"'), "utf-8")
    inputs = (f"--input={corpus}", "--text_field=body", f"--tokenizer={tokenizer}")
    ended = make_data(*inputs, f"--output_dir={tmp_path}/data")
    assert ended.status == 0, ended.stderr
    # The command logs the tokens that it adds to the tokenizer, and does not change other ids.
    assert "[MASK]" in ended.stderr
    manifest = manifest_lib.load(f"{tmp_path}/data")
    assert manifest.special_ids["pad"] == 3 and manifest.documents == 60


def test_markers_without_a_token_are_removed_from_the_text(tmp_path, make_data):
    pytest.importorskip("transformers")
    from testkit import tokenizer_folders

    texts = list(articles.generate(20, seed=5))
    tokenizer_folders.byte_level_bpe(tmp_path / "tok", texts)
    marked = making.write_corpus(tmp_path / "marked.jsonl", ["", *texts])
    inputs = (f"--input={marked}", f"--tokenizer={tmp_path}/tok")
    made = make_data(*inputs, f"--output_dir={tmp_path}/default")
    assert made.status == 0, made.stderr
    assert made.json["skipped"] == 1 and "1 records, left out" in made.stderr
    assert "no tokens for them" in made.stderr
    kept = make_data(*inputs, f"--output_dir={tmp_path}/kept", "--nostrip_markers")
    assert made.json["tokens"] < kept.json["tokens"]


def test_many_unknown_tokens_are_warned_of(tmp_path, make_data, run):
    foreign = making.write_corpus(tmp_path / "foreign.jsonl", ["ζωή και φως"] * 20)
    made = make_data(f"--input={foreign}", f"--output_dir={tmp_path}/foreign")
    checked = run("check-data", f"--data_dir={tmp_path}/foreign", "--json")
    assert made.json["unknown_rate"] == checked.json["unknown_rate"] > 0.3
    for ended in (made, checked):
        assert "of the tokens are unknown to the tokenizer" in ended.stderr
        assert "(such as " in ended.stderr and "ω" in ended.json["unknown_characters"]
    assert "no document is held out" not in made.stderr


def test_data_that_no_run_can_be_evaluated_on_is_warned_of(tmp_path, make_data):
    one = making.write_corpus(tmp_path / "one.jsonl", ["吾輩は猫である。"])
    made = make_data(f"--input={one}", f"--output_dir={tmp_path}/data")
    assert made.status == 0 and "warning: no document is held out" in made.stderr


def test_a_length_that_a_preset_cannot_train_is_warned_of(tmp_path, make_data, sample_corpus):
    places = (f"--input={sample_corpus}", f"--output_dir={tmp_path}/data")
    ended = make_data(*places, "--seq_length=500", "--max_predictions_per_seq=75")
    assert ended.status == 0, ended.stderr
    assert "the preset tiny-cpu cannot be trained on this data" in ended.stderr
    assert "use 480 or 512" in ended.stderr
