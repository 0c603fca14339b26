"""SentencePiece models of other projects, and our reader of `.model` files.

Special pieces are found by name, and all other ids are unchanged. Our reader and the rounding of
scores agree with SentencePiece.
"""

import io
import json
import re
from dataclasses import replace

import pytest
import sentencepiece

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text import model_proto
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.markers import MARKERS
from testkit import ROOT

# SentencePiece's training options for each kind of model. "plain" contains <unk>, <s> and </s>, but
# no tokens for padding and masks.
KINDS = json.loads((ROOT / "tests/fixtures/sentencepiece-kinds.json").read_text("utf-8"))


def train(corpus, **options):
    texts = list(open_corpus([corpus]).texts())[:30]
    lines = "\n".join(texts).split("\n")
    model = io.BytesIO()
    given = {"vocab_size": 1400, "minloglevel": 2, "max_sentence_length": 20000, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **given
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def models(sample_corpus):
    return {name: train(sample_corpus, **options) for name, options in KINDS.items()}


def plain_texts(sample_corpus):
    """Return hard cases and generated text without the markers, which only our models contain."""
    texts = list(open_corpus([sample_corpus]).texts())[:10]
    plain = [re.sub("|".join(MARKERS), "", text) for text in texts]
    return [*plain, "城は山の上にある。ﾃｽﾄ １２３", "𠮷野家 emoji 😀", ""]


@pytest.mark.parametrize("name", KINDS)
def test_ids_stay_and_missing_special_tokens_are_added(name, models, sample_corpus, tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(models[name])
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    ours = read_tokenizer(str(path))
    assert len(set(vars(ours.special).values())) == 11
    assert theirs.pad_id() in (-1, ours.special.pad)
    for text in plain_texts(sample_corpus):
        assert ours.encode(text) == theirs.encode(text)
    assert ours.encode("_START_ARTICLE_")[-1] == ours.special.article
    added = sum("added" in change for change in ours.changes.values())
    assert added and ours.vocab_size - added == theirs.vocab_size()
    before = [theirs.id_to_piece(i) for i in range(theirs.vocab_size())]
    renamed = {one for one, other in zip(ours.tokens, before, strict=False) if one != other}
    assert renamed <= model_proto.PARTS.keys()


def test_models_of_another_kind_are_refused(tmp_path, sample_corpus):
    with pytest.raises(BadInput, match="no tokenizer in this folder"):
        read_tokenizer(str(tmp_path))
    characters = train(sample_corpus, model_type="char")
    with pytest.raises(BadInput, match="neither a unigram nor a BPE"):
        model_proto.adapt(characters, (), "x")


# --- our own model, read as a protocol buffer ---


def test_tokenize_rounds_scores_and_nothing_else(tokenizer_path):
    ours = read_tokenizer(tokenizer_path)
    model = ours.model_bytes
    assert model == read_tokenizer(tokenizer_path).model_bytes and not ours.changes
    assert model_proto.round_scores(model) == model
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    exact = model_proto.read_pieces(model)
    assert [p.score for p in exact] == [processor.GetScore(i) for i in range(len(exact))]
    less = model_proto.SCORE_STEP / 3
    shifted = model_proto.replace_pieces(model, [replace(p, score=p.score - less) for p in exact])
    assert model_proto.read_pieces(shifted) != exact
    assert model_proto.read_pieces(model_proto.round_scores(shifted)) == exact


def test_ids_do_not_depend_on_the_length_of_the_text(tokenizer_path, sample_corpus):
    tokenizer = read_tokenizer(tokenizer_path)
    texts = open_corpus([sample_corpus]).texts()
    lines = [line for line in "\n".join(texts).split("\n") if line]
    # SentencePiece adds a space before every text. A marker before each line makes it irrelevant.
    alone = [tokenizer.encode(f"_NEWLINE_{line}")[1:] for line in lines]
    together = tokenizer.encode("".join(f"_NEWLINE_{line}" for line in lines))[1:]
    assert together == [i for ids in alone for i in ids]
