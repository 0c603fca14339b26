"""Hugging Face's tokenizer gives our ids, `[MASK]` and all."""

from __future__ import annotations

import os

import pytest

from bigbird_ja.commands.fill_mask import encode_with_masks
from bigbird_ja.export import hf_tokenizer
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.corpus import open_corpus

transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = pytest.mark.both
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HARD = [
    "", " ", "\n", "　全角の空白　", " 前  後 ", "タブ\tと\r\n改行", "ｶﾞｷﾞﾊﾟ ㌔①Ⅳ ＡＢＣ",
    "か\u3099は\u309aウ\uff9e", "_NEWLINE__NEWLINE_ _START_ARTICLE_", "\n_START_ARTICLE_\n題\n",
    "_START_SECTION", "絵文字😀👨‍👩‍👧𠮷", "—―……？！『』", "x" * 5000, "あ" * 3000, "― " * 50,
    "\u200b\ufeff",
]  # fmt: skip


def _folder(path, tokenizer):
    path.mkdir()
    for name, data in hf_tokenizer.files(tokenizer, 4096).items():
        (path / name).write_bytes(data)
    return transformers.AutoTokenizer.from_pretrained(str(path))


@pytest.fixture(scope="module")
def ours(tokenizer_path):
    return tokenizer_lib.load(tokenizer_path)


@pytest.fixture(scope="module")
def theirs(ours, tmp_path_factory):
    return _folder(tmp_path_factory.mktemp("hf") / "folder", ours)


def _ids(theirs, texts):
    return theirs(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def test_it_has_our_special_tokens(theirs, ours):
    special = ours.special
    assert (theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id) == (
        special.pad, special.cls, special.sep,
    )  # fmt: skip
    assert (theirs.mask_token_id, theirs.unk_token_id) == (special.mask, special.unk)
    assert theirs.model_max_length == 4096
    assert theirs.model_input_names == ["input_ids", "attention_mask"]
    assert len(theirs) == ours.vocab_size
    one = theirs("日本")["input_ids"]
    assert one == [special.cls, *ours.encode("日本"), special.sep]
    pair = theirs("日本", "東京")["input_ids"]
    assert pair == [*one, *ours.encode("東京"), special.sep]


def test_hard_texts_and_the_generated_corpus(theirs, ours, sample_corpus):
    texts = [*HARD, *open_corpus([sample_corpus]).texts()]
    for mine, other, text in zip(ours.encode_batch(texts), _ids(theirs, texts), texts, strict=True):
        assert mine == other, text[:100]


def test_some_of_the_real_text(theirs, ours, real_text_path):
    texts = list(open_corpus([real_text_path]).texts())[::100]
    assert _ids(theirs, texts) == ours.encode_batch(texts)


@pytest.mark.parametrize(
    "text",
    [
        "日本の[MASK]は東京。",
        "[MASK]で始まる",
        " [MASK] x [MASK]",
        "終わり[MASK]",
        "a[MASK][MASK] b",
    ],
)
def test_masks_stand_where_tokens_stood(theirs, ours, text):
    assert _ids(theirs, [text])[0] == encode_with_masks(text, ours)


def test_bpe_models_too(sample_corpus, tmp_path, run_cli):
    ended = run_cli(
        "tokenize", f"--input={sample_corpus}", f"--output_prefix={tmp_path}/bpe",
        "--vocab_size=1400", "--model_type=bpe",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    tokenizer = tokenizer_lib.load(f"{tmp_path}/bpe.model")
    theirs = _folder(tmp_path / "folder", tokenizer)
    texts = list(open_corpus([sample_corpus]).texts())[:20]
    assert _ids(theirs, texts) == tokenizer.encode_batch(texts)
    assert _ids(theirs, ["_NEWLINE_[MASK]"])[0] == encode_with_masks("_NEWLINE_[MASK]", tokenizer)


@pytest.mark.nightly
def test_all_of_the_real_text(real_text_path, tmp_path, run_cli):
    ended = run_cli(
        "tokenize", f"--input={real_text_path}", f"--output_prefix={tmp_path}/ja",
        "--vocab_size=32000", "--max_sentences=100000", timeout=600,
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    tokenizer = tokenizer_lib.load(f"{tmp_path}/ja.model")
    theirs = _folder(tmp_path / "folder", tokenizer)
    texts = list(open_corpus([real_text_path]).texts())
    for start in range(0, len(texts), 64):
        part = texts[start : start + 64]
        assert _ids(theirs, part) == tokenizer.encode_batch(part)
