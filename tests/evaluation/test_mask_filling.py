"""Masks in text: the ids that training saw, and the candidates."""

from __future__ import annotations

import numpy as np
import pytest

from bigbird_ja.evaluation import mask_filling
from bigbird_ja.text import tokenizer as tokenizer_lib


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path):
    return tokenizer_lib.load(tokenizer_path)


def _pieces(text, tokenizer):
    return [tokenizer.pieces[i] for i in mask_filling.encode_with_masks(text, tokenizer)]


def test_text_without_a_mask_is_encoded_as_always(tokenizer):
    text = "_START_ARTICLE_ 題_NEWLINE_ 二行目 です"
    assert mask_filling.encode_with_masks(text, tokenizer) == tokenizer.encode(text)


def test_no_space_appears_after_a_mask(tokenizer):
    pieces = _pieces("日本の[MASK]は東京です。", tokenizer)
    after = pieces[pieces.index("[MASK]") + 1]
    assert not after.startswith("▁")


def test_markers_and_masks_are_told_apart(tokenizer):
    pieces = _pieces("_NEWLINE_[MASK]_NEWLINE_[MASK][MASK]", tokenizer)
    assert [p for p in pieces if p != "▁"] == [
        "_NEWLINE_", "[MASK]", "_NEWLINE_", "[MASK]", "[MASK]",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[MASK]で始まる", "  [MASK] x", "終わり[MASK]", "[MASK]"])
def test_masks_at_the_ends(tokenizer, text):
    pieces = _pieces(text, tokenizer)
    assert pieces.count("[MASK]") == 1
    assert (pieces[0] == "[MASK]") == text.strip().startswith("[MASK]")


def test_candidates_are_the_likeliest_in_order():
    scores = np.log(np.array([0.1, 0.5, 0.05, 0.35], np.float32))
    best = mask_filling.top_candidates(scores, ["a", "b", "c", "d"], 2)
    assert [(c["token"], round(c["probability"], 4)) for c in best] == [("b", 0.5), ("d", 0.35)]
