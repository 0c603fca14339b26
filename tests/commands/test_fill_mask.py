"""`fill-mask` with a text from a flag, a file, or standard input."""

import functools
from types import SimpleNamespace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.evaluation.fill_mask import normalize_masks


@pytest.fixture
def fill_mask(small_run, run):
    """Return a function that runs `fill-mask` with the small run's model and given flags."""
    return functools.partial(run, "fill-mask", f"--model_dir={small_run.model_dir}")


def test_each_mask_has_its_candidates(fill_mask, tmp_path):
    text = "日本の[MASK]は[MASK]です。"
    ended = fill_mask(f"--text={text}", "--top_k=3", "--json")
    assert ended.status == 0, ended.stderr
    first, second = ended.json["masks"]
    assert len(first) == len(second) == 3
    assert {"token", "probability"} <= first[0].keys()
    assert first[0]["probability"] >= first[1]["probability"] > 0
    assert "日本の【" in ended.stderr
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    from_file = fill_mask("--step=4", f"--input={tmp_path}/t.txt", "--json").json
    assert from_file["step"] == 4 and from_file["masks"] != ended.json["masks"]


def test_the_mask_of_the_models_own_tokenizer_is_a_mask():
    tokenizer = SimpleNamespace(names=["<s>", "<mask>"], special=SimpleNamespace(mask=1))
    assert normalize_masks("日本の<mask>は[MASK]", tokenizer) == "日本の[MASK]は[MASK]"  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"contains no \[MASK\] or <mask>: "):
        normalize_masks("日本", tokenizer)  # type: ignore[arg-type]


def test_control_characters_are_escaped(fill_mask):
    ended = fill_mask("--text=\x1b[31m\x07\x9b2J漢字[MASK]")
    assert ended.status == 0 and "\\x1b[31m\\x07\\x9b2J漢字【" in ended.stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(ended.stdout + ended.stderr)
