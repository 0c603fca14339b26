"""With --json, standard output is one line with one object: of every command, at every end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.cli import main
from bigbird_ja.launch.services import EMULATOR_VARIABLE
from bigbird_ja.process.errors import STATUS_OF_REASON
from testkit import ROOT
from testkit.fakes.tpu import FakeTpu
from testkit.runs import SETTINGS, SmallRun
from testkit.zygote import Zygote

# Commands that are done with TensorFlow imported once, by forks of one process.
HEAVY = ("check-data", "pretrain", "evaluate", "fill-mask", "export")
TINY = (
    "--set=model.num_layers=1", "--set=model.hidden_size=64", "--set=model.num_attention_heads=1",
    "--set=model.intermediate_size=128", "--set=tokenize.vocab_size=512",
    "--set=make_data.seq_length=128", "--set=make_data.max_predictions_per_seq=20",
    "--set=training.global_batch_size=8",
)  # fmt: skip
# What each command is given so that it ends well (where no other test of ours does that), and so
# that it refuses.
GOOD: dict[str, list[str]] = {
    "config": ["base-4096"],
    "sample": ["--output=OUT/x.jsonl", "--documents=3"],
    "tokenize": ["--input=CORPUS", "--output_prefix=OUT/x", "--vocab_size=1200"],
    "make-data": ["--input=CORPUS", "--tokenizer=TOKENIZER", "--output_dir=OUT/d",
                  "--seq_length=256", "--num_workers=2"],
    "check-data": ["--data_dir=DATA"],
    "plan": ["--config=tiny-cpu", "--plot=OUT/x.png"],
    "pretrain": ["--data_dir=DATA", "--model_dir=OUT/m", "--num_train_steps=2", *SETTINGS],
    "evaluate": ["--model_dir=MODEL", "--data_dir=DATA", "--max_batches=1"],
    "fill-mask": ["--model_dir=MODEL", "--text=日本の[MASK]です。"],
    "report": ["--model_dir=MODEL", "--output=OUT/r.html"],
    "export": ["--model_dir=MODEL", "--output_dir=OUT/e", "--format=saved_model"],
    "launch": ["--config=base-4096", "--dry_run"],
    "status": ["--bucket=OUT/bucket", "--project=p"],
    "down": ["--project=p", "--yes"],
}  # fmt: skip
BAD: dict[str, list[str]] = {
    "demo": ["--work_dir=MODEL"],
    "config": ["no-such-preset"],
    "sample": ["--output=OUT/x.exe"],
    "tokenize": ["--input=OUT/none.txt", "--output_prefix=OUT/x"],
    "make-data": ["--input=CORPUS", "--tokenizer=CORPUS", "--output_dir=OUT/d"],
    "check-data": ["--data_dir=MODEL"],
    "plan": ["--config=OUT/none.yaml"],
    "preflight": ["--chip=v99"],
    "pretrain": ["--data_dir=MODEL", "--model_dir=OUT/m"],
    "evaluate": ["--model_dir=DATA", "--data_dir=DATA"],
    "fill-mask": ["--model_dir=DATA", "--text=[MASK]"],
    "report": ["--model_dir=OUT/none"],
    "export": ["--model_dir=DATA", "--output_dir=OUT/e"],
    "launch": ["--config=OUT/none.yaml", "--dry_run"],
    "status": [],
    "down": [],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeTpu]:
    with FakeTpu(str(tmp_path_factory.mktemp("vms"))) as server:
        yield server


def filled(words: list[str], run: SmallRun, out: Path) -> list[str]:
    places = {
        "OUT": str(out), "CORPUS": run.corpus, "TOKENIZER": run.tokenizer, "DATA": run.data_dir,
        "MODEL": run.model_dir,
    }  # fmt: skip
    for name, value in places.items():
        words = [word.replace(f"={name}", f"={value}") for word in words]
    return words


def run_process(arguments: list[str], service: FakeTpu) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "bigbird_ja", *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, EMULATOR_VARIABLE: service.address},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def check(status: int, out: str, err: str) -> dict[str, Any]:
    assert out.count("\n") == 1 and out.endswith("}\n"), (out, err)
    result = json.loads(out)
    assert STATUS_OF_REASON[result["reason"]] == status, err
    return result


def run_command(arguments: list[str], zygote: Zygote, service: FakeTpu) -> tuple[int, str, str]:
    """Status, output and error of a command; what imports TensorFlow is started by the zygote."""
    if arguments[0] not in HEAVY:
        return run_process(arguments, service)
    ended = zygote.run(*arguments)
    return ended.status, ended.out, ended.err


def test_every_command_is_listed() -> None:
    assert set(BAD) == set(main.COMMANDS)
    assert set(GOOD) == set(main.COMMANDS) - {"demo", "preflight"}  # test_demo and test_preflight


@pytest.mark.parametrize("command", GOOD)
def test_results_are_all_that_there_is(
    command: str, small_run: SmallRun, zygote: Zygote, tmp_path: Path, service: FakeTpu
) -> None:
    model = shutil.copytree(small_run.model_dir, tmp_path / "model")  # evaluate writes there
    run = dataclasses.replace(small_run, model_dir=str(model))
    arguments = [command, *filled(GOOD[command], run, tmp_path), "--json"]
    (tmp_path / "bucket").mkdir()
    status, out, err = run_command(arguments, zygote, service)
    assert status == 0, err
    assert check(status, out, err)["reason"] == "finished"


@pytest.mark.parametrize("command", BAD)
def test_a_refusal_too(
    command: str, small_run: SmallRun, zygote: Zygote, tmp_path: Path, service: FakeTpu
) -> None:
    arguments = [command, *filled(BAD[command], small_run, tmp_path), "--json"]
    status, out, err = run_command(arguments, zygote, service)
    assert status == 2, err
    assert "bigbird-ja: " in err and check(status, out, err)["error"] in err


@pytest.mark.parametrize("words", [["nonsense", "--json"], ["--json"], ["sample", "--json=maybe"]])
def test_what_is_no_command_at_all(words: list[str], service: FakeTpu) -> None:
    status, out, _ = run_process(words, service)
    assert status == 2
    if words[-1] == "--json":
        assert json.loads(out)["reason"] == "bad_input"


@pytest.mark.parametrize("what", ["work", "secret", "odd_results"])
def test_libraries_that_print_do_not_get_there(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testkit.any_command", what, "--json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    check(done.returncode, done.stdout, done.stderr)
    if what == "work":
        assert "a table" in done.stderr and "a line of a C library" in done.stderr
    if what == "odd_results":
        result = json.loads(done.stdout)
        assert (
            result["nan"] is None and result["array"] == [1.0, None] and result["name"] == "\udcff"
        )
        assert result["scalar"] == 1.5


def test_without_json_the_text_is_on_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testkit.any_command", "work", "--nojson"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert "a table" in done.stdout and "{" not in done.stdout
