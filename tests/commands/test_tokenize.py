"""`bigbird-ja tokenize` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.storage.ownership import MARK, Owned
from bigbird_ja.text import tokenizer, tokenizer_training
from testkit import ROOT
from testkit.command_line import Ended

VOCAB = "--vocab_size=1200"


def run(*arguments: str) -> int:
    return main.run_command_line(["tokenize", *arguments])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_what_it_writes(
    sample_corpus: str,
    tokenizer_path: str,
    tmp_path: Path,
    model_type: str,
    run_cli: Callable[..., Ended],
) -> None:
    prefix = tmp_path / "new" / "ja"
    arguments = (
        "tokenize", f"--input={sample_corpus}", f"--output_prefix={prefix}", VOCAB,
        f"--model_type={model_type}", "--json",
    )  # fmt: skip
    ended = run_cli(*arguments)
    assert ended.status == 0, ended.stderr
    result = ended.json
    assert result["vocab_size"] == 1200
    assert 1 < result["characters_per_token"] < 4
    assert 0 <= result["unknown_rate"] < 0.01
    assert result["seconds"] > 0

    assert sorted(os.listdir(prefix.parent)) == [MARK, "ja.json", "ja.model", "ja.vocab"]
    tok = tokenizer.load(f"{prefix}.model")
    record = json.loads(Path(f"{prefix}.json").read_text("utf-8"))
    same = tok.sha256 == tokenizer.load(tokenizer_path).sha256  # trained on the same corpus
    assert same == (model_type == "unigram")
    assert record["settings"]["model_type"] == model_type
    assert record["model_sha256"] == tok.sha256
    assert record["special_ids"]["newline"] == tok.special.newline
    assert record["longest_piece"] in tok.pieces
    assert len(record["corpus_fingerprint"]) == 64
    rows = [line.split("\t") for line in Path(f"{prefix}.vocab").read_text("utf-8").splitlines()]
    assert [row[0] for row in rows] == tok.pieces
    assert all(float(row[1]) <= 0 for row in rows)

    again = run_cli(*arguments)
    assert again.status == 0 and "finished already" in again.stderr
    assert again.json["vocab_size"] == 1200


def test_other_settings_are_refused_without_overwrite(
    sample_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    assert run(source, prefix, VOCAB) == 0
    model = (tmp_path / "x.model").read_bytes()
    capsys.readouterr()
    assert run(source, prefix, "--vocab_size=1300") == 2
    assert "vocab_size was 1200, is 1300" in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text("別の文書。", "utf-8")
    assert run(f"--input={other}", prefix, VOCAB) == 2
    assert "the corpus is another one" in capsys.readouterr().err
    assert (tmp_path / "x.model").read_bytes() == model
    assert run(source, prefix, "--vocab_size=1300", "--overwrite") == 0
    assert tokenizer.load(f"{tmp_path}/x.model").vocab_size == 1300


def test_files_that_it_did_not_make_are_never_replaced(
    sample_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x", VOCAB)
    names = ("x.model", "x.vocab", "x.json")
    for name in names:
        (tmp_path / name).write_bytes(b"[" * 10_000)
        for flags in ([], ["--overwrite"]):
            assert run(*arguments, *flags) == 2
            assert f"{name}: a file that this program did not make" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    assert run(*arguments) == 0
    for name in names:  # changed since
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole + b"\n")
        assert run(*arguments, "--overwrite") == 2
        assert f"{name}: a file that this program did not make" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == whole + b"\n"
        (tmp_path / name).write_bytes(whole)
    assert run(*arguments, "--overwrite") == 0


def test_two_at_once_and_the_second_is_refused(
    sample_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    statuses = []
    train = tokenizer_training.train

    def while_another_starts(*arguments: Any) -> Any:
        if not statuses:
            statuses.append(run(source, prefix, "--vocab_size=1300", "--overwrite"))
        return train(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_training, "train", while_another_starts)
        assert run(source, prefix, VOCAB) == 0
    assert statuses == [2] and "is training a tokenizer there" in capsys.readouterr().err
    assert tokenizer.load(f"{tmp_path}/x.model").vocab_size == 1200
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [MARK, "x.json", "x.model", "x.vocab"]


def test_after_a_stop_while_a_model_is_replaced_the_same_command_resumes(
    sample_corpus: str, tmp_path: Path
) -> None:
    """After the record and the pieces: the model is the old one."""
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    assert run(source, prefix, VOCAB) == 0
    write, written = Owned.write, []

    def stopping(owned: Owned, name: str, data: bytes) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(name)
        write(owned, name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Owned, "write", stopping)
        assert run(source, prefix, "--vocab_size=1300", "--overwrite") == 74
    assert run(source, prefix, "--vocab_size=1300") == 0
    assert tokenizer.load(f"{tmp_path}/x.model").vocab_size == 1300


def test_settings_come_from_the_config(
    sample_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("tokenize:\n  vocab_size: 1250\n  max_sentences: 500\n")
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    assert run(source, prefix, f"--config={config}", "--max_sentences=600") == 0
    record = json.loads((tmp_path / "x.json").read_text("utf-8"))
    assert (record["vocab_size"], record["lines"]) == (1250, 600)
    assert run(source, prefix, "--txt_documents=line") == 2
    assert "no --input is a .txt file" in capsys.readouterr().err


def test_it_writes_to_a_bucket(sample_corpus: str, bucket: str) -> None:
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={bucket}/t/ja"
    assert run(source, prefix, VOCAB) == 0
    assert set(storage.list_files(f"{bucket}/t")) == {MARK, "ja.json", "ja.model", "ja.vocab"}
    assert run(source, prefix, VOCAB) == 0
    assert run(source, prefix, "--vocab_size=1300") == 2


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "big.txt"
    assert main.run_command_line(["sample", f"--output={corpus}", "--documents=1500"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "bigbird_ja", "tokenize", f"--input={corpus}",
         f"--output_prefix={tmp_path}/x", "--vocab_size=8000"],
        cwd=ROOT, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert b"training" in process.stderr.readline()
    time.sleep(2)  # in the midst of SentencePiece's own work
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    assert b"interrupted" in process.stderr.read()
    assert {p.name for p in tmp_path.iterdir()} == {"big.txt", MARK}  # of `sample`
