"""`tokenize` writes a model and its record. Only --overwrite replaces a model of other settings."""

import functools
import json
import os
import shutil
from pathlib import Path

import pytest

from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.storage.ownership import MANIFEST_NAME, Owned

NAMES = {MANIFEST_NAME, "ja.json", "ja.model", "ja.vocab"}


@pytest.fixture
def tokenize(run, sample_corpus):
    """Return a function that trains a tokenizer of 1,200 entries on the sample with given flags."""
    return functools.partial(run, "tokenize", f"--input={sample_corpus}", "--vocab_size=1200")


@pytest.fixture
def trained(tokenizer_path, tmp_path):
    """Return a folder with the files that `tokenize --output_prefix=ja` writes for the sample."""
    for name in NAMES:
        shutil.copy(Path(tokenizer_path).parent / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_tokenize_writes_a_model_and_its_record(tokenize, tokenizer_path, tmp_path, model_type):
    folder = tmp_path / "new"
    flags = (f"--output_prefix={folder}/ja", f"--model_type={model_type}", "--json")
    first = tokenize(*flags)
    assert first.status == 0, first.stderr
    result = first.json
    assert result["vocab_size"] == 1200 and result["seconds"] > 0
    assert 1 < result["characters_per_token"] < 4 and 0 <= result["unknown_rate"] < 0.01
    assert set(os.listdir(folder)) == NAMES
    made = read_tokenizer(f"{folder}/ja.model")
    record = json.loads((folder / "ja.json").read_text("utf-8"))
    # The fixture's tokenizer is a unigram model that was trained on the same corpus.
    same = made.sha256 == read_tokenizer(tokenizer_path).sha256
    assert same == (model_type == "unigram")
    assert record["settings"]["model_type"] == model_type
    assert record["model_sha256"] == made.sha256
    rows = [line.split("\t") for line in (folder / "ja.vocab").read_text("utf-8").splitlines()]
    assert [token for token, _ in rows] == made.tokens
    assert all(float(score) <= 0 for _, score in rows)
    again = tokenize(*flags)
    assert again.status == 0 and "finished already" in again.stderr
    assert again.json["vocab_size"] == 1200


def test_other_settings_are_refused_or_replace_the_model(tokenize, trained, monkeypatch):
    prefix = f"--output_prefix={trained}/ja"
    model = (trained / "ja.model").read_bytes()
    refused = tokenize(prefix, "--vocab_size=1300")
    assert refused.status == 2 and "vocab_size was 1200, is 1300" in refused.stderr
    (trained / "other.txt").write_text("別の文書。", "utf-8")
    refused = tokenize(prefix, f"--input={trained}/other.txt")
    assert refused.status == 2 and "another corpus" in refused.stderr
    assert (trained / "ja.model").read_bytes() == model
    write, written = Owned.write, []

    def stop_at_the_model(owned, name, data):
        # At this point the record and the vocabulary are new, but the model is still the old one.
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(name)
        write(owned, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Owned, "write", stop_at_the_model)
        assert tokenize(prefix, "--vocab_size=1300", "--overwrite").status == 74
    assert tokenize(prefix, "--vocab_size=1300").status == 0, "it continues"
    assert read_tokenizer(f"{trained}/ja.model").vocab_size == 1300
