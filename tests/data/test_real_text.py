"""Real text comes back whole from packed records."""

from __future__ import annotations

from bigbird_ja.data import blocks
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text import words
from tests.data import making


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
