"""Reading and rounding a `.model` file agrees with SentencePiece itself."""

from __future__ import annotations

import pytest
import sentencepiece

from bigbird_ja.text import model_proto
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.corpus import open_corpus


@pytest.fixture(scope="module")
def model(tokenizer_path):
    return tokenizer_lib.load(tokenizer_path).model_bytes


def test_settings_and_scores_are_the_model_s(model):
    settings = model_proto.settings(model)
    assert settings.model_type == model_proto.UNIGRAM
    assert settings.add_dummy_prefix and settings.remove_extra_whitespaces
    assert len(settings.charsmap) > 100_000
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    expected = [processor.GetScore(i) for i in range(processor.GetPieceSize())]
    assert [piece.score for piece in model_proto.pieces(model)] == pytest.approx(expected)
    assert all((score / model_proto.SCORE_STEP).is_integer() for score in expected), "not rounded"


def test_rounding_touches_scores_alone(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    rounded = model_proto.round_scores(model)
    again = sentencepiece.SentencePieceProcessor(model_proto=rounded)
    assert len(rounded) == len(model)
    for i in range(processor.GetPieceSize()):
        assert again.IdToPiece(i) == processor.IdToPiece(i)
        assert (again.GetScore(i) / model_proto.SCORE_STEP).is_integer()
        assert abs(again.GetScore(i) - processor.GetScore(i)) <= model_proto.SCORE_STEP / 2
    assert model_proto.round_scores(rounded) == rounded


def test_ids_do_not_depend_on_how_long_the_text_is(tokenizer_path, sample_corpus):
    tokenizer = tokenizer_lib.load(tokenizer_path)
    lines = [
        line
        for document in open_corpus([sample_corpus]).documents()
        for line in document.text.split("\n")
        if line
    ]
    # A marker on both sides stops the space that begins every text from making a difference.
    alone = [tokenizer.encode(f"_NEWLINE_{line}")[1:] for line in lines]
    together = tokenizer.encode("".join(f"_NEWLINE_{line}" for line in lines))[1:]
    assert together == [i for ids in alone for i in ids]
