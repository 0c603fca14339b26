"""The notebooks of the free TPUs: their commands parse, and two sessions make one run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import string
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigbird_ja.cli import command_flags, main
from bigbird_ja.run import log as run_log
from testkit import ROOT, killing
from testkit.zygote import Zygote

NAMES = ("kaggle-v5e-8", "colab-v5e-1")
STEPS = 24


def read(name: str) -> dict[str, Any]:
    return json.loads(Path(ROOT, "notebooks", f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(name: str, kind: str) -> list[str]:
    return ["".join(c["source"]) for c in read(name)["cells"] if c["cell_type"] == kind]


def parameters(name: str) -> dict[str, Any]:
    """The values of the cell that users change."""
    (cell,) = [c for c in read(name)["cells"] if c["metadata"].get("tags") == ["parameters"]]
    values: dict[str, Any] = {}
    exec("".join(cell["source"]), values)
    del values["__builtins__"]
    return values


def shell_lines(name: str) -> list[str]:
    lines = [line.strip() for cell in cells(name, "code") for line in cell.splitlines()]
    return [line[1:] for line in lines if line.startswith("!")]


def commands(name: str, run: str) -> list[list[str]]:
    """Words of each command of ours, with the notebook's own values in their places, and in that
    of its settings the file `run`."""
    made = {"RUN": run, "DATA": "d", "MODEL": "m", "FIGURES": "f.json", "TEMP": "t", "LOCAL": "l"}
    made |= {"TOKENIZER": "encoder", "START": "--init_from encoder --mode=train_and_eval"}
    values = {**parameters(name), **made}
    lines = [re.sub(r"\{round\(MINUTES, 2\)\}", "510.5", line) for line in shell_lines(name)]
    ours = [line.partition(" > ")[0] for line in lines if line.startswith("bigbird-ja")]
    return [shlex.split(string.Formatter().vformat(line, (), values))[1:] for line in ours]


@pytest.mark.parametrize("name", NAMES)
def test_commands_parse_and_train_on_the_runtime_that_is_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, results = tmp_path / "settings.yaml", {}
    for words in commands(name, str(run)):
        if words[0] == "config":
            assert main.run_command_line(words) == 0
            run.write_text(capsys.readouterr().out, encoding="utf-8")
        elif words != ["--version"]:
            args = command_flags.parse(main.load_command(words[0]), words[0], words[1:])
            if "config" in args:
                command_flags.resolve(args)
            results[words[0]] = args
    assert set(results) >= {"tokenize", "make-data", "preflight", "plan", "pretrain", "export"}
    args = results["pretrain"]
    assert args.engine == "pjrt" and args.use_tpu and args.max_train_minutes == 510.5
    training = command_flags.resolve(args)[0].training
    chips = int(name.rpartition("-")[2])
    assert training.global_batch_size % (chips * training.gradient_accumulation_steps) == 0


@pytest.mark.parametrize("name", NAMES)
def test_it_is_python_that_replaces_no_package_and_dates_its_limits(name: str) -> None:
    installs = [line for line in shell_lines(name) if " pip " in line]
    assert installs and all("--constraint {TEMP}/there.txt" in line for line in installs)
    assert not [line for line in installs if re.search(r"jax|libtpu|upgrade|2\.15", line)]
    notebook = read(name)
    assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert "kaggle" not in notebook["metadata"], "would pin an image without TPU (kaggle-cli#1197)"
    for cell in cells(name, "code"):
        lines = [re.sub(r"^(\s*)!.*", r"\1pass", line) for line in cell.splitlines()]
        ast.parse("\n".join(lines))
    assert not any(c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code")
    texts = cells(name, "markdown")
    assert re.search(r"[Aa]s of 20\d\d-\d\d.*https://", texts[0], re.S) and "概要" in texts[1]
    limits = [line for cell in cells(name, "code") for line in cell.splitlines() if "as of" in line]
    assert [line for line in limits if line.startswith("HOURS_PER_SESSION = ")]


def test_the_notebooks_share_their_cells() -> None:
    """What is the same in both is the same to the letter: six cells."""
    first, second = (set(cells(name, "code")) for name in NAMES)
    assert len(first & second) == 6


CONFIG = {
    **killing.CONFIG,
    "tokenize": {"vocab_size": 1200},
    "make_data": {"seq_length": 128, "max_predictions_per_seq": 20, "mask_unit": "subword",
                  "eval_fraction": 0.05, "num_shards": 2},
    "training": {**killing.CONFIG["training"], "num_train_steps": STEPS, "global_batch_size": 8},
}  # fmt: skip


@pytest.fixture
def session(tmp_path: Path, sample_corpus: str, monkeypatch: pytest.MonkeyPatch):
    """`session("kaggle-v5e-8", 5, ROOT="x")`: executes a notebook's real cells on a CPU, with the
    parameters replaced, until its time is over at a step; what the cells printed."""
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the dev extra")
    pytest.importorskip("ipykernel", reason="needs the dev extra")
    pytest.importorskip("libtpu", reason="preflight needs the TPU compiler")
    config, program = tmp_path / "small.yaml", tmp_path / "bin/bigbird-ja"
    config.write_text(yaml.safe_dump(CONFIG))
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m testkit.clocked "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    replaced = {"CONFIG": str(config), "INPUT": sample_corpus, "SETTINGS": "", "SOURCE": "",
                "DEVICE": "--nouse_tpu"}  # fmt: skip

    def execute(name: str, ends_at: int = STEPS + 1, **places: str) -> str:
        monkeypatch.setenv("ENDS_AT_STEP", str(ends_at))
        notebook = nbformat.reads(json.dumps(read(name)), as_version=4)
        (cell,) = [c for c in notebook.cells if c.metadata.get("tags") == ["parameters"]]
        for key, value in {**replaced, **places}.items():
            line = f"{key} = {value!r}"
            cell.source, count = re.subn(rf"(?m)^{key} = .*$", lambda _, x=line: x, cell.source)
            assert count == 1, key
        nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
        streams = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
        return "".join(o.get("text", "") for o in streams)

    return execute


@pytest.mark.nightly
def test_two_sessions_on_kaggle_make_one_run(session, zygote: Zygote, tmp_path: Path) -> None:
    first, second, saved = (tmp_path / place for place in ("first", "second", "saved"))
    saved.mkdir()
    printed = session("kaggle-v5e-8", 5, ROOT=str(first), SAVED=str(saved))
    ended = json.loads((first / "session.json").read_text())
    assert ended["reason"] == "interrupted" and 0 < ended["global_step"] < STEPS, printed
    assert re.search(r"preflight, one chip.*: about 1 sessions of \d", printed, re.S), printed
    assert "not finished yet: " in printed
    assert not (first / "huggingface").exists()
    # As a person hands an output on: the data set's files as they are, the run as an archive.
    shutil.move(first / "data", saved / "data")
    shutil.make_archive(str(saved / "run"), "tar", first, "model")
    printed = session("kaggle-v5e-8", ROOT=str(second), SAVED=str(saved))
    result = json.loads((second / "session.json").read_text())
    assert (result["reason"], result["global_step"]) == ("finished", STEPS), printed
    events = run_log.read_events(str(second / "model"))
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert resumed["global_step"] == ended["global_step"]
    assert printed.rstrip().endswith("finished") and "[MASK]" in printed
    assert (second / "huggingface/model.safetensors").exists()
    assert not (second / "data").exists(), "what lies among the inputs is not made again"
    model = str(tmp_path / "undisturbed")
    whole = zygote.run(
        "pretrain", "--config", str(tmp_path / "small.yaml"), "--data_dir", str(saved / "data"),
        "--model_dir", model, "--engine", "pjrt", "--json",
    )  # fmt: skip
    assert whole.status == 0, whole.err
    assert killing.digest(str(second / "model")) == killing.digest(model)
