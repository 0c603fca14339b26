"""`make-data` as a user runs it; what is refused: tests/test_bad_inputs.py."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bigbird_ja.data import manifest as manifest_lib
from tests.data import making
from tests.text.test_model_proto import train

SMALL = (
    "--seq_length=128", "--max_predictions_per_seq=20", "--num_shards=4", "--num_workers=1",
    "--eval_fraction=0.1",
)  # fmt: skip


@pytest.fixture
def make_data(run, tokenizer_path):
    """`make_data("--input=...", "--output_dir=...")`: small, with the sample's tokenizer."""
    tokenizer = f"--tokenizer={tokenizer_path}"
    return functools.partial(run, "make-data", tokenizer, *SMALL, "--json")


def test_results_repetition_and_other_settings(tmp_path, make_data, sample_corpus):
    places = (f"--input={sample_corpus}", f"--output_dir={tmp_path}/data")
    first = make_data(*places)
    assert first.status == 0, first.stderr
    result = first.json
    promised = "documents tokens sequences shards density mean_predictions seconds"
    assert set(promised.split()) <= set(result)
    assert result["documents"] == 60 and result["shards"] == 5 and result["density"] > 0.97
    assert 15 < result["mean_predictions"] <= 20
    before = making.tree(f"{tmp_path}/data")
    again = make_data(*places)
    assert again.status == 0 and "finished already" in again.stderr
    other = make_data(*places, "--seed=9")
    assert other.status == 2 and "--seed (12345 there, 9 requested)" in other.stderr
    assert making.tree(f"{tmp_path}/data") == before


def test_few_held_out_sequences_are_warned_of(tmp_path, make_data, sample_corpus):
    long = ("--seq_length=1024", "--eval_fraction=0.02", f"--output_dir={tmp_path}/data")
    ended = make_data(f"--input={sample_corpus}", *long)
    count = ended.json["eval_sequences"]
    assert 0 < count < 20 and f"warning: only {count} held-out sequences" in ended.stderr


def test_mixed_corpora_are_in_the_results_of_make_data_and_check_data(
    tmp_path, sample_corpus, make_data, run
):
    lines = Path(sample_corpus).read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("news", lines[:20]), ("books", lines[20:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
    inputs = (f"--input={tmp_path}/news.jsonl=2", f"--input={tmp_path}/books.jsonl")
    made = make_data(*inputs, f"--output_dir={tmp_path}/data")
    assert made.status == 0, made.stderr
    news, books = made.json["corpora"]
    assert (news["name"], news["weight"], news["documents"]) == ("news.jsonl", 2.0, 36)
    assert (books["name"], books["weight"], books["documents"]) == ("books.jsonl", 1.0, 36)
    assert news["eval_documents"] == 2 and news["share"] + books["share"] == pytest.approx(1)
    assert made.json["train_sequences"] == news["sequences"] + books["sequences"]
    checked = run("check-data", f"--data_dir={tmp_path}/data", "--json")
    assert checked.status == 0 and checked.json["corpora"] == made.json["corpora"]
    for ended in (made, checked):
        assert f"{news['share']:.1%}" in ended.stderr and "books.jsonl" in ended.stderr


def test_mecab_boundaries(tmp_path, make_data, sample_corpus):
    pytest.importorskip("fugashi")
    places = (f"--input={sample_corpus}", f"--output_dir={tmp_path}/data")
    assert make_data(*places, "--word_boundaries=mecab", "--nsp").status == 0


def test_a_field_and_a_tokenizer_of_ones_own(tmp_path, sample_corpus, make_data):
    tokenizer, corpus = tmp_path / "own.model", tmp_path / "corpus.jsonl"
    tokenizer.write_bytes(train(sample_corpus, pad_id=3))  # <unk>, <s>, </s>, <pad>, no mask
    corpus.write_text(Path(sample_corpus).read_text("utf-8").replace('"text"', '"body"'), "utf-8")
    inputs = (f"--input={corpus}", "--text_field=body", f"--tokenizer={tokenizer}")
    ended = make_data(*inputs, f"--output_dir={tmp_path}/data")
    assert ended.status == 0, ended.stderr
    assert "[MASK]" in ended.stderr  # what was added to the tokenizer is logged
    manifest = manifest_lib.load(f"{tmp_path}/data")
    assert manifest.special_ids["pad"] == 0 and manifest.documents == 60
