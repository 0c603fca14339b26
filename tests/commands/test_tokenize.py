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

import pytest

from bigbird_ja import cli, storage
from bigbird_ja.text import tokenizer
from testkit import ROOT
from testkit.command_line import Ended

VOCAB = "--vocab_size=1200"


def run(*arguments: str) -> int:
    return cli.run_command_line(["tokenize", *arguments])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_what_it_writes(
    sample_corpus: str, tmp_path: Path, model_type: str, run_cli: Callable[..., Ended]
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

    assert sorted(os.listdir(prefix.parent)) == ["ja.json", "ja.model", "ja.vocab"]
    tok = tokenizer.load(f"{prefix}.model")
    record = json.loads(Path(f"{prefix}.json").read_text("utf-8"))
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


def test_same_input_same_model(sample_corpus: str, tokenizer_path: str, tmp_path: Path) -> None:
    assert run(f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x", VOCAB) == 0
    assert tokenizer.load(f"{tmp_path}/x.model").sha256 == tokenizer.load(tokenizer_path).sha256


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


def test_a_model_from_elsewhere_is_not_overwritten(
    sample_corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.model").write_bytes(b"mine")
    assert run(f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x", VOCAB) == 2
    assert "not written by this command" in capsys.readouterr().err
    assert (tmp_path / "x.model").read_bytes() == b"mine"


def test_an_interrupted_write_is_done_again(sample_corpus: str, tmp_path: Path) -> None:
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    assert run(source, prefix, VOCAB) == 0
    model = (tmp_path / "x.model").read_bytes()
    (tmp_path / "x.model").unlink()  # the record is written before it
    assert run(source, prefix, VOCAB) == 0
    assert (tmp_path / "x.model").read_bytes() == model


def test_settings_come_from_the_config(sample_corpus: str, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("tokenize:\n  vocab_size: 1250\n  max_sentences: 500\n")
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x"
    assert run(source, prefix, f"--config={config}", "--max_sentences=600") == 0
    record = json.loads((tmp_path / "x.json").read_text("utf-8"))
    assert (record["vocab_size"], record["lines"]) == (1250, 600)


def test_it_writes_to_a_bucket(sample_corpus: str, bucket: str) -> None:
    source, prefix = f"--input={sample_corpus}", f"--output_prefix={bucket}/t/ja"
    assert run(source, prefix, VOCAB) == 0
    assert storage.list_files(f"{bucket}/t") == ["ja.json", "ja.model", "ja.vocab"]
    assert run(source, prefix, VOCAB) == 0
    assert run(source, prefix, "--vocab_size=1300") == 2


def test_tfds_is_a_source(tmp_path: Path) -> None:
    directory = f"{tmp_path}/tfds"
    made = cli.run_command_line(["sample", f"--output=tfds:{directory}", "--documents=40"])
    assert made == 0
    arguments = ("--input=tfds:wiki40b/ja:train", f"--tfds_data_dir={directory}")
    assert run(*arguments, f"--output_prefix={tmp_path}/x", VOCAB) == 0
    assert tokenizer.load(f"{tmp_path}/x.model").vocab_size == 1200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output_prefix=DIR/x"], "--input is needed"),
        (["--input=DIR/none.jsonl", "--output_prefix=DIR/x"], "no such file"),
        (["--input=SAMPLE"], "--output_prefix is needed"),
        (["--input=SAMPLE", "--output_prefix=DIR/x"], "use --vocab_size="),
        (["--input=SAMPLE", "--output_prefix=DIR/x", "--vocab_size=50"], "too small"),
        (["--input=SAMPLE", "--output_prefix=DIR/x", "--vocab_size=3"], "vocab_size"),
        (["--input=SAMPLE", "--output_prefix=DIR/x", "--model_type=word"], "model_type"),
        (["--input=SAMPLE", "--output_prefix=/proc/none/x", VOCAB], "/proc/none"),
    ],
)
def test_what_is_refused(
    sample_corpus: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    filled = [a.replace("DIR", str(tmp_path)).replace("SAMPLE", sample_corpus) for a in arguments]
    assert run(*filled) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("bigbird-ja: ") and message in last
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "big.txt"
    assert cli.run_command_line(["sample", f"--output={corpus}", "--documents=1500"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "bigbird_ja", "tokenize", f"--input={corpus}",
         f"--output_prefix={tmp_path}/x", "--vocab_size=8000"],
        cwd=ROOT, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert b"training" in process.stderr.readline()
    time.sleep(3)  # in the midst of SentencePiece's own work
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    assert b"interrupted" in process.stderr.read()
    assert [p.name for p in tmp_path.iterdir()] == ["big.txt"]
