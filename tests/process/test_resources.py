"""Memory and disk that come to an end, by limits that the kernel enforces on real commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT
from testkit.runs import SmallRun
from testkit.zygote import Zygote

MEBIBYTE = 1 << 20


def start(what: str, limit: str) -> subprocess.Popen[str]:
    """Starts a command of `testkit.any_command` behind a `ulimit`."""
    return subprocess.Popen(
        ["bash", "-c", f"{limit}; exec {sys.executable} -m testkit.any_command {what}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "reason", "words"),
    [
        ("abort", "out_of_memory", "ulimit -v"),
        ("exit_of_libc", "out_of_memory", "ulimit -v"),
        ("no_memory", "out_of_memory", "out of memory"),
        ("odd_exception", "out_of_memory", "ValueError: Error parsing message"),
        ("work", "finished", ""),
    ],
)
def test_a_library_that_ends_the_process_under_a_limit(what: str, reason: str, words: str) -> None:
    process = start(f"{what} --json", f"ulimit -v {400 << 10}")
    out, err = process.communicate(timeout=120)
    assert process.returncode == (0 if reason == "finished" else 71), err
    assert words in err and "Traceback" not in err
    assert out.count("\n") == 1 and json.loads(out)["reason"] == reason


@pytest.mark.parametrize(
    ("limit", "processes"), [("ulimit -v 400000", 1), ("ulimit -v unlimited", 0)]
)
def test_a_limited_command_runs_in_a_child_that_gets_its_signals(
    limit: str, processes: int
) -> None:
    process = start("wait", limit)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    assert len(children.split()) == processes
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and err.count("interrupted (SIGTERM)") == 1


# TensorFlow's threads and arenas are refused at different places with different limits.
@pytest.mark.parametrize(
    "extra", [8, *(pytest.param(extra, marks=pytest.mark.nightly) for extra in (64, 256))]
)
def test_tensorflow_without_memory_is_71(
    zygote: Zygote, small_run: SmallRun, tmp_path: Path, extra: int
) -> None:
    model = shutil.copytree(small_run.model_dir, tmp_path / "model")
    (model / "eval.jsonl").unlink(missing_ok=True)  # what was evaluated before needs no memory
    ended = zygote.run(
        "evaluate", f"--model_dir={model}", f"--data_dir={small_run.data_dir}",
        "--max_batches=1", "--json", limits={"AS": extra * MEBIBYTE},
    )  # fmt: skip
    assert ended.status == 71, ended.err
    assert ended.result["reason"] == "out_of_memory"


def test_sentencepiece_without_memory_is_71(
    zygote: Zygote, sample_corpus: str, tmp_path: Path
) -> None:
    ended = zygote.run(
        "tokenize", f"--input={sample_corpus}", f"--output_prefix={tmp_path}/x",
        "--vocab_size=1200", "--json", limits={"AS": 8 * MEBIBYTE},
    )  # fmt: skip
    assert ended.status == 71 and ended.result["reason"] == "out_of_memory", ended.err
    assert os.listdir(tmp_path) == []


FULL_DISK = {
    "sample": "--output={out}/new/x.jsonl --documents=40",
    "tokenize": "--input={corpus} --output_prefix={out}/new/x --vocab_size=1200",
    "make-data": "--input={corpus} --tokenizer={tokenizer} --output_dir={out}/new/data"
    " --seq_length=256 --num_workers=1",
    "export": "--model_dir={model_dir} --output_dir={out}/new/x --format=saved_model",
    "report": "--model_dir={model_dir} --output={out}/new/x.html",
    "plan": "--data_dir={data_dir} --plot={out}/new/x.png --config=tiny-cpu",
}


@pytest.mark.parametrize("command", FULL_DISK)
def test_a_full_disk_is_74(
    zygote: Zygote, small_run: SmallRun, tmp_path: Path, command: str
) -> None:
    words = FULL_DISK[command].format(out=tmp_path, **vars(small_run)).split()
    ended = zygote.run(command, *words, "--json", limits={"FSIZE": 8000})
    assert ended.status == 74, ended.err
    assert ended.result["reason"] == "io_error" and "{{" not in ended.result["error"]
    if command != "tokenize":  # SentencePiece writes into a folder for temporary files first
        assert f"disk full: {tmp_path}/new/" in ended.result["error"]
    # What make-data has finished by then is kept for the next try.
    assert os.listdir(tmp_path) == (["new"] if command == "make-data" else [])
