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


def limited(what: str, mebibytes: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of `testkit.any_command` under `ulimit -v`."""
    command = f"ulimit -v {mebibytes << 10}; exec {sys.executable} -m testkit.any_command {what}"
    return subprocess.run(
        ["bash", "-c", " ".join((command, *flags))], capture_output=True, text=True, cwd=ROOT,
        timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("abort_for_memory", 71, "ulimit -v"),
        ("abort_thread", 71, "ulimit -v"),
        ("exit_of_libc", 71, "ulimit -v"),
        ("abort_check", 1, "Check failed: size > 0"),
        ("no_memory", 71, "out of memory"),
        ("odd_exception", 71, "ValueError: Error parsing message"),
        ("work", 0, ""),
    ],
)
def test_a_library_that_ends_the_process_under_a_limit(what: str, status: int, said: str) -> None:
    ended = limited(what, 400, "--json")
    assert ended.returncode == status, ended.stderr
    assert said in ended.stderr and "Traceback" not in ended.stderr
    assert ended.stdout.count("\n") == 1
    reasons = {71: "out_of_memory", 1: "bug", 0: "finished"}
    assert json.loads(ended.stdout)["reason"] == reasons[status]


def test_a_signal_reaches_the_command_under_a_limit() -> None:
    process = subprocess.Popen(
        ["bash", "-c", f"ulimit -v 400000; exec {sys.executable} -m testkit.any_command wait"],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert process.stderr.read().count("interrupted (SIGTERM)") == 1


def test_without_a_limit_there_is_no_second_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "testkit.any_command", "wait"],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    process.terminate()
    process.wait(timeout=60)
    process.stderr.close()
    assert children == ""


# TensorFlow's threads and arenas are refused at different places with different limits.
@pytest.mark.parametrize("extra", [8, 64, 256])
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


def full_disk_cases(run: SmallRun, out: Path) -> dict[str, list[str]]:
    model, data = f"--model_dir={run.model_dir}", f"--data_dir={run.data_dir}"
    return {
        "sample": [f"--output={out}/x.jsonl", "--documents=40"],
        "tokenize": [f"--input={run.corpus}", f"--output_prefix={out}/x", "--vocab_size=1200"],
        "make-data": [f"--input={run.corpus}", f"--tokenizer={run.tokenizer}",
                      f"--output_dir={out}/data", "--seq_length=256", "--num_workers=1"],
        "export": [model, f"--output_dir={out}/x", "--format=saved_model"],
        "report": [model, f"--output={out}/x.html"],
        "plan": [data, f"--plot={out}/x.png", "--config=tiny-cpu"],
    }  # fmt: skip


@pytest.mark.parametrize("command", ["sample", "tokenize", "make-data", "export", "report", "plan"])
def test_a_full_disk_is_74(
    zygote: Zygote, small_run: SmallRun, tmp_path: Path, command: str
) -> None:
    arguments = full_disk_cases(small_run, tmp_path)[command]
    limits = {"FSIZE": 8000}
    ended = zygote.run(command, *arguments, "--json", limits=limits)
    assert ended.status == 74, ended.err
    assert ended.result["reason"] == "io_error" and "{{" not in ended.result["error"]
    assert command == "make-data" or os.listdir(tmp_path) == []
