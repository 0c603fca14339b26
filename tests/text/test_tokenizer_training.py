"""SentencePiece's training gets reproducible text. Bad vocabulary sizes are refused with advice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.schema import TokenizeConfig
from bigbird_ja.text import tokenizer_training
from bigbird_ja.text.corpus import open_corpus


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(16, 64))
def test_parts_of_a_long_line_are_the_line(line, max_bytes):
    parts = list(tokenizer_training.cut(line, max_bytes))
    assert "".join(parts) == line
    assert all(len(part.encode()) <= max_bytes for part in parts)


def test_a_long_line_is_cut_at_ends_of_sentences():
    line = "あいうえお。" * 100
    parts = list(tokenizer_training.cut(line, 400))
    assert len(parts) == 5
    assert all(part.endswith("。") for part in parts)


def corpus_of(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_text(text, "utf-8")
    return open_corpus([str(path)])


def test_lines_leave_out_blank_ones_and_bare_markers(tmp_path):
    corpus = corpus_of(
        tmp_path, "_START_ARTICLE_\n題\n_START_PARAGRAPH_\n一。_NEWLINE_二。\n \n\n三"
    )
    result = list(tokenizer_training.split_lines(corpus, TokenizeConfig()))
    assert result == ["題", "一。_NEWLINE_二。", "三"]


@given(st.integers(0, 60), st.integers(0, 70))
def test_a_sample_has_the_wanted_size_keeps_the_order_and_repeats(total, wanted):
    items = [str(i) for i in range(total)]
    drawn = list(tokenizer_training.draw_sample(items, total, wanted))
    assert len(drawn) == min(total, wanted)
    assert drawn == sorted(set(drawn), key=int)
    assert drawn == list(tokenizer_training.draw_sample(items, total, wanted))


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_a_vocabulary_of_the_wrong_size_is_refused_with_one_that_works(tmp_path, model_type):
    corpus = corpus_of(tmp_path, "すもももももももものうち。隣の客はよく柿食う客だ。" * 5)

    def train(vocab_size):
        settings = TokenizeConfig(vocab_size=vocab_size, model_type=model_type)
        return tokenizer_training.train(corpus, settings)[0]

    advice = "`vocab_size` 1000 is too large for this corpus: use `vocab_size` "
    with pytest.raises(BadInput, match=advice) as error:
        train(1000)
    largest = int(str(error.value).split("`vocab_size` ")[2].split()[0])
    assert train(largest).vocab_size == largest
    with pytest.raises(BadInput, match="too small"):
        train(20)


def test_strange_characters_are_trained_on_without_loss_of_lines(tmp_path):
    strange = "\0NUL \t TAB ▅ ▁ \u200f右から左 ﾊﾝｶｸ 😀 \x07 ⁇ \u2028\x85 é\r"
    corpus = corpus_of(tmp_path, f"{strange}\n" + "ふつうの文。" * 20)
    settings = TokenizeConfig(vocab_size=36, character_coverage=1.0)
    tokens = tokenizer_training.train(corpus, settings)[0].tokens
    assert {"右", "😀"} <= set("".join(tokens))
