"""The exported tokenizer returns the same token ids in transformers, also for `[MASK]`."""

import json
import os

import pytest

from bigbird_ja.export import tokenizer_files
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text import articles
from bigbird_ja.text.corpus import open_corpus
from tests.text import HARD
from tests.text.test_model_proto import KINDS, train

transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - this module imports transformers

pytestmark = pytest.mark.both
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LONG = ["x" * 5000, "あ" * 3000]


def _exported(folder, tokenizer):
    for name, data in tokenizer_files.make_files(tokenizer, 4096).items():
        (folder / name).write_bytes(data)
    return transformers.AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="module", params=["ours", *KINDS])
def ours(request, tokenizer_path, sample_corpus, tmp_path_factory):
    """Return the sample's tokenizer, or a SentencePiece model with another project's options."""
    if request.param == "ours":
        return read_tokenizer(tokenizer_path)
    path = tmp_path_factory.mktemp("kind") / "own.model"
    path.write_bytes(train(sample_corpus, **KINDS[request.param]))
    return read_tokenizer(str(path))


@pytest.fixture(scope="module")
def theirs(ours, tmp_path_factory):
    return _exported(tmp_path_factory.mktemp("hf"), ours)


def _ids(theirs, texts):
    return theirs(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def test_special_tokens_are_the_same(theirs, ours):
    special = ours.special
    for name in ("pad", "cls", "sep", "mask", "unk"):
        assert getattr(theirs, f"{name}_token_id") == getattr(special, name)
    assert theirs.model_max_length == 4096 and len(theirs) == ours.vocab_size
    assert theirs.model_input_names == ["input_ids", "attention_mask"]
    one = theirs("日本")["input_ids"]
    assert one == [special.cls, *ours.encode("日本"), special.sep]
    pair = theirs("日本", "東京")["input_ids"]
    assert pair == [*one, *ours.encode("東京"), special.sep]


def test_hard_texts_and_the_generated_corpus(theirs, ours, sample_corpus):
    texts = [*HARD, *LONG, *open_corpus([sample_corpus]).texts()]
    for mine, other, text in zip(ours.encode_batch(texts), _ids(theirs, texts), texts, strict=True):
        assert mine == other, text[:100]


def test_masks_have_the_same_positions(theirs, ours):
    for text in ("日本の[MASK]は東京。", " [MASK] x [MASK]", "終わり[MASK]", "a[MASK][MASK] b"):
        assert _ids(theirs, [text])[0] == ours.encode_with_masks(text)


@pytest.mark.parametrize("stated", [True, False, None])
def test_space_in_front_is_as_in_training(stated, tmp_path):
    folder, back = tmp_path / "theirs", tmp_path / "back"
    tokenizer_folders.roberta_bpe(folder, list(articles.generate(20, seed=5)))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("add_prefix_space")
    path.write_text(
        json.dumps(config if stated is None else {**config, "add_prefix_space": stated})
    )
    back.mkdir()
    ours = read_tokenizer(str(folder))
    theirs = _exported(back, ours)
    texts = ["日本", " 前に空白", "a b", ""]
    assert _ids(theirs, texts) == ours.encode_batch(texts)
    assert theirs.model_max_length == 4096


@pytest.mark.slow
def test_all_of_the_real_text(real_text_path, tmp_path, run_cli):
    flags = ["--vocab_size=32000", "--max_sentences=100000", f"--output_prefix={tmp_path}/ja"]
    ended = run_cli("tokenize", f"--input={real_text_path}", *flags, timeout=600)
    assert ended.status == 0, ended.stderr
    tokenizer = read_tokenizer(f"{tmp_path}/ja.model")
    theirs = _exported(tmp_path, tokenizer)
    texts = list(open_corpus([real_text_path]).texts())
    for start in range(0, len(texts), 64):
        part = texts[start : start + 64]
        assert _ids(theirs, part) == tokenizer.encode_batch(part)
