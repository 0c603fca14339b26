"""Over 35 MB of real text: packing loses not one token, and hardly a position is empty."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bigbird_ja.data import blocks, build
from bigbird_ja.data.manifest import SPLITS
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text import words
from tests.data import making


@pytest.mark.nightly
def test_packing_real_text_loses_no_token(tmp_path, real_text_path, tokenizer_path):
    output = str(tmp_path / "data")
    request = making.request(
        real_text_path, tokenizer_path, output, num_workers=2, seq_length=4096,
        max_predictions_per_seq=600, num_shards=0,
    )  # fmt: skip
    manifest, _ = build.make_data(request)
    assert manifest.density >= 0.99
    tokenizer = tokenizer_lib.load(tokenizer_path)
    special = tokenizer.special
    fragments: Counter[tuple[int, ...]] = Counter()
    for split in SPLITS:
        for tokens in making.unmasked(manifest, output, split):
            fragments.update(tuple(fragment) for fragment in making.fragments_of(tokens, special))
    texts = [document.text for document in corpus_lib.open_corpus([real_text_path]).documents()]
    total = 0
    whole = 0
    left = Counter(fragments)
    for ids in tokenizer.encode_arrays(texts):
        total += len(ids)
        if left[tuple(ids.tolist())]:
            left[tuple(ids.tolist())] -= 1
            whole += 1
    # What is not there as a whole is there in fragments: all tokens together are all tokens.
    assert sum(len(fragment) * n for fragment, n in fragments.items()) == total == manifest.tokens
    assert whole > 0.85 * len(texts)
    counted = Counter()
    for fragment, n in fragments.items():
        ids, numbers = np.unique(fragment, return_counts=True)
        counted.update({int(i): int(c) * n for i, c in zip(ids, numbers, strict=True)})
    expected = np.bincount(np.concatenate(tokenizer.encode_arrays(texts)))
    assert counted == {int(i): int(c) for i, c in enumerate(expected) if c}


def test_the_longest_real_documents_come_back_letter_for_letter(real_text_path, tokenizer_path):
    tokenizer = tokenizer_lib.load(tokenizer_path)
    texts = [document.text for document in corpus_lib.open_corpus([real_text_path]).documents()]
    longest = sorted(texts, key=len)[-3:]
    settings = making.request(real_text_path, tokenizer_path, "unused", seq_length=512).spec
    for text in longest:
        block = blocks.Block("train", 0, (text,))
        rows, _ = blocks.make_rows(block, tokenizer, words.ScriptMarker(tokenizer), settings)
        joined = [
            t
            for row in rows
            for p in making.fragments_of(row["tokens"], tokenizer.special)
            for t in p
        ]
        assert tokenizer.decode(joined) == tokenizer.decode(tokenizer.encode(text))
        if tokenizer.special.unk not in joined:
            surface = tokenizer.surface(text).removeprefix("▁").replace("▁", " ")
            assert tokenizer.decode(joined) == surface
