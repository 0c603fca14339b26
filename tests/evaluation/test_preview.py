import re
import unicodedata

import numpy as np

from bigbird_ja.evaluation.preview import preview
from bigbird_ja.text.corpus import open_corpus


def test_the_preview_fills_words_of_held_out_records(result, forward, trained, small_run, batch):
    """Fill in a masked word in each of three held-out records.

    An earlier version showed the same Japanese sentences for every language.
    """
    tokenizer = trained.tokenizer
    asked, ask = [], forward.compute_log_probabilities
    forward.compute_log_probabilities = lambda *given: asked.append(given) or ask(*given)
    assert preview(forward, tokenizer, batch) == result["examples"]
    del forward.compute_log_probabilities
    ((ids, places),) = asked
    assert len(result["examples"]) == len(ids) == 3

    def without_spaces(text):
        return re.sub(r"\s|_NEWLINE_", "", unicodedata.normalize("NFKC", text))

    texts = "".join(open_corpus([small_run.corpus]).texts())
    for e, row, (place,) in zip(result["examples"], ids, places, strict=True):
        whole = f"{e['before']}{e['truth']}{e['after']}".strip()
        assert without_spaces(whole) in without_spaces(texts)
        assert row[place] == tokenizer.special.mask and (row == row[place]).sum() == 1
        assert e["truth"].isalnum() and 0 <= e["probability"] <= 1
        assert e["guess"] in tokenizer.written or f"▁{e['guess']}" in tokenizer.written


def test_preview_separates_words_of_wordpiece(forward, trained, batch, monkeypatch):
    tokenizer = trained.tokenizer
    joined = preview(forward, tokenizer, batch)
    continues = np.arange(tokenizer.vocab_size) % 2 == 0
    monkeypatch.setattr(tokenizer, "continues_word", continues)
    for before, after in zip(joined, preview(forward, tokenizer, batch), strict=True):
        assert after["after"].count(" ") > before["after"].count(" ")


def test_records_without_predictions_have_no_preview(forward, trained, batch):
    batch["masked_lm_weights"][:] = 0
    assert preview(forward, trained.tokenizer, batch) == []
