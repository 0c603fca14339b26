"""`fill-mask` from flag, file and standard input."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from bigbird_ja.cli import main
from bigbird_ja.commands.fill_mask import encode_with_masks
from bigbird_ja.text import tokenizer as tokenizer_lib


def _run(capsys, *arguments):
    status = main.run_command_line(["fill-mask", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured


def test_each_mask_has_its_candidates(small_run, capsys):
    status, result, captured = _run(
        capsys,
        f"--model_dir={small_run.model_dir}",
        "--text=日本の[MASK]は[MASK]です。",
        "--top_k=3",
    )
    assert status == 0, captured.err
    assert [len(candidates) for candidates in result["masks"]] == [3, 3]
    first = result["masks"][0]
    assert {"token", "probability"} <= first[0].keys()
    assert first[0]["probability"] >= first[1]["probability"] > 0
    assert "日本の【" in captured.err


def test_long_text_from_a_file_and_standard_input_agree(small_run, capsys, tmp_path, monkeypatch):
    text = "漢字とかな" * 20 + "[MASK]です。\n"
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8")
    flags = [f"--model_dir={small_run.model_dir}", "--step=4"]
    _, from_file, _ = _run(capsys, *flags, f"--file={path}")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, from_input, _ = _run(capsys, *flags)
    assert from_file == from_input and from_file["step"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=何もない"], "holds no [MASK]"),
        (["--text=" + "漢字" * 400 + "[MASK]"], "the model takes 256"),
        (["--file=nowhere.txt"], "nowhere.txt"),
        (["--text=[MASK]", "--step=5"], "no checkpoint of step 5"),
    ],
)
def test_bad_input_is_one_line(arguments, message, small_run, capsys):
    status = main.run_command_line(["fill-mask", f"--model_dir={small_run.model_dir}", *arguments])
    error = capsys.readouterr().err
    assert status == 2 and message in error and "Traceback" not in error


def test_a_text_without_an_end_is_not_read_to_it(small_run, capsys, monkeypatch, tmp_path):
    flags = ["fill-mask", f"--model_dir={small_run.model_dir}"]
    with open("/dev/zero", "rb") as zeros:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(zeros))
        assert main.run_command_line(flags) == 2
    assert "standard input: more than 1,048,576 bytes" in capsys.readouterr().err
    huge = tmp_path / "t.txt"
    huge.write_bytes(b"[MASK]")
    os.truncate(huge, 64 << 30)
    assert main.run_command_line([*flags, f"--file={huge}"]) == 2
    assert "t.txt: more than 1,048,576 bytes" in capsys.readouterr().err


def test_a_terminal_obeys_nothing_in_the_text(small_run, capsys):
    flags = ["fill-mask", f"--model_dir={small_run.model_dir}"]
    assert main.run_command_line([*flags, "--text=\x1b[31m\x07\x9b2J漢字[MASK]"]) == 0
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert "\\x1b[31m\\x07\\x9b2J漢字【" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_bytes_that_are_no_text(small_run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff[MASK]")))
    assert main.run_command_line(["fill-mask", f"--model_dir={small_run.model_dir}"]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path):
    return tokenizer_lib.load(tokenizer_path)


def _pieces(text, tokenizer):
    return [tokenizer.pieces[i] for i in encode_with_masks(text, tokenizer)]


def test_text_without_a_mask_is_encoded_as_always(tokenizer):
    text = "_START_ARTICLE_ 題_NEWLINE_ 二行目 です"
    assert encode_with_masks(text, tokenizer) == tokenizer.encode(text)


def test_no_space_appears_after_a_mask(tokenizer):
    pieces = _pieces("日本の[MASK]は東京です。", tokenizer)
    after = pieces[pieces.index("[MASK]") + 1]
    assert not after.startswith("▁")


def test_markers_stay_markers_beside_masks(tokenizer):
    pieces = _pieces("_NEWLINE_[MASK]_NEWLINE_[MASK][MASK]", tokenizer)
    assert [p for p in pieces if p != "▁"] == [
        "_NEWLINE_", "[MASK]", "_NEWLINE_", "[MASK]", "[MASK]",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[MASK]で始まる", "  [MASK] x", "終わり[MASK]", "[MASK]"])
def test_masks_at_the_ends(tokenizer, text):
    pieces = _pieces(text, tokenizer)
    assert pieces.count("[MASK]") == 1
    assert (pieces[0] == "[MASK]") == text.strip().startswith("[MASK]")
