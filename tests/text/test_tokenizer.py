"""The tokenizer finds ids by name, encodes markers as tokens, and normalizes text once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text.markers import MARKERS


@pytest.fixture(scope="module")
def tok(tokenizer_path):
    return read_tokenizer(tokenizer_path)


def normalized(tok, text):
    """Return the normalized text, without the space that begins every text."""
    surface, _ = tok.spell_with_offsets(text, tok.encode_arrays([text])[0])
    return surface.removeprefix("▁").replace("▁", " ")


def test_special_ids_come_out_as_listed(tok):
    listed = "<pad> <s> </s> <unk> [CLS] [SEP] [MASK] _START_ARTICLE_ _START_SECTION_"
    assert tok.tokens[:11] == [*listed.split(), "_START_PARAGRAPH_", "_NEWLINE_"]
    assert (tok.special.pad, tok.special.mask, tok.special.newline) == (0, 6, 10)
    assert tok.vocab_size == len(tok.tokens) == 1200


def test_markers_are_tokens_and_control_tokens_are_never_encoded(tok):
    ids = tok.encode("_START_ARTICLE_\n東京[MASK]</s><pad>_NEWLINE_")
    assert tok.special.article in ids and tok.special.newline in ids
    assert not {*range(7)} - {tok.special.unk} & {*ids}


def test_normalization_is_idempotent(tok):
    once = normalized(tok, "ＡＢｃ　ｶﾞ\n①")
    assert once == normalized(tok, once) == "ABc ガ 1"


def test_lone_surrogates_are_refused(tok):
    with pytest.raises(BadInput, match=r"lone surrogate \\ud800 after '日本'"):
        tok.encode("日本\ud800語")


TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(MARKERS))


@given(st.lists(TEXT).map("".join))
def test_decoded_ids_are_the_normalized_text(tok, text):
    ids = tok.encode(text)
    if tok.special.unk not in ids:
        decoded = "".join(tok.written[i] for i in ids).replace("▁", " ")
        assert decoded.strip() == normalized(tok, text).strip()


def test_a_token_that_is_not_utf_8_is_refused(tmp_path, tok):
    path = tmp_path / "y.model"
    path.write_bytes(tok.model_bytes.replace("である".encode(), b"\xff" * 9))
    with pytest.raises(BadInput, match=r"y\.model is not a SentencePiece model"):
        read_tokenizer(str(path))
