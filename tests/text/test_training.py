"""Feeding SentencePiece: nothing is dropped, samples repeat, refusals are words to act on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja.config import TokenizeConfig
from bigbird_ja.errors import BadInput, OutOfMemory
from bigbird_ja.text import training
from bigbird_ja.text.corpus import open_corpus


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(16, 64))
def test_pieces_of_a_long_line_are_the_line(line: str, max_bytes: int) -> None:
    pieces = list(training.cut(line, max_bytes))
    assert "".join(pieces) == line
    assert all(len(piece.encode()) <= max_bytes for piece in pieces)


def test_a_long_line_is_cut_at_ends_of_sentences() -> None:
    line = "あいうえお。" * 100
    pieces = list(training.cut(line, 400))
    assert len(pieces) == 5
    assert all(piece.endswith("。") for piece in pieces)


def test_lines_leave_out_blank_ones_and_bare_markers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("_START_ARTICLE_\n題\n_START_PARAGRAPH_\n一。_NEWLINE_二。\n \n\n三", "utf-8")
    found = list(training.lines(open_corpus([str(path)]), TokenizeConfig()))
    assert found == ["題", "一。_NEWLINE_二。", "三"]


@given(st.integers(0, 60), st.integers(0, 70))
def test_a_sample_has_the_wanted_size_keeps_the_order_and_repeats(total: int, wanted: int) -> None:
    items = [str(i) for i in range(total)]
    drawn = list(training.sampled(items, total, wanted))
    assert len(drawn) == min(total, wanted)
    assert drawn == sorted(set(drawn), key=int)
    assert drawn == list(training.sampled(items, total, wanted))


def test_a_sample_does_not_follow_the_layout() -> None:
    items = ["marker", "text"] * 5000
    drawn = list(training.sampled(items, len(items), len(items) // 2))
    assert 2300 < drawn.count("text") < 2700


def test_the_settings_are_those_of_the_original_run() -> None:
    arguments = training.trainer_arguments(TokenizeConfig())
    assert arguments["vocab_size"] == 32000
    assert arguments["character_coverage"] == 0.9995
    assert arguments["max_sentence_length"] == 16384
    assert [arguments[f"{name}_id"] for name in ("pad", "bos", "eos", "unk")] == [0, 1, 2, 3]
    assert arguments["control_symbols"] == ["[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("text", ["あ", "あいう\n\nえお"])
def test_a_tiny_corpus_is_refused_in_words(tmp_path: Path, model_type: str, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, "utf-8")
    settings = TokenizeConfig(vocab_size=1000, model_type=model_type)
    with pytest.raises(BadInput, match="--vocab_size=1000 is too large for this corpus: use --voc"):
        training.train(open_corpus([str(path)]), settings)


def test_the_largest_size_that_is_named_works(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("すもももももももものうち。隣の客はよく柿食う客だ。" * 5, "utf-8")
    corpus = open_corpus([str(path)])
    with pytest.raises(BadInput) as error:
        training.train(corpus, TokenizeConfig(vocab_size=500))
    largest = int(str(error.value).split("--vocab_size=")[2].split()[0])
    trained = training.train(corpus, TokenizeConfig(vocab_size=largest))
    assert trained.tokenizer.vocab_size == largest
    with pytest.raises(BadInput, match="too small"):
        training.train(corpus, TokenizeConfig(vocab_size=20))


def test_strange_characters_are_trained_on_without_loss_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    strange = "\0NUL \t TAB ▅ ▁ \u200f右から左 ﾊﾝｶｸ 😀 \x07 ⁇ \u2028\x85 é\r"
    path.write_text(f"{strange}\n" + "ふつうの文。" * 20, "utf-8")
    trained = training.train(
        open_corpus([str(path)]), TokenizeConfig(vocab_size=36, character_coverage=1.0)
    )
    assert "右" in "".join(trained.tokenizer.pieces)
    assert "😀" in "".join(trained.tokenizer.pieces)


def test_a_killed_child_is_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("あ", "utf-8")
    module = tmp_path / "killed_child.py"
    module.write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(training.train_child, "__name__", "killed_child")
    with pytest.raises(OutOfMemory, match="--max_sentences"):
        training.train(open_corpus([str(path)]), TokenizeConfig())


def test_the_progress_line_knows_the_number_of_steps() -> None:
    # 100,000 candidates, three quarters in each round, down to 1.1 times 32,000.
    assert training._em_steps(100_000, TokenizeConfig()) == 2 * 5
    assert training._em_steps(10, TokenizeConfig()) == 2
