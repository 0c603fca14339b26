"""The notebooks of the free TPUs: their commands parse, and three sessions make one run."""

import ast
import itertools
import json
import os
import re
import shlex
import shutil
import string
import sys
from pathlib import Path

import pytest
import yaml

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.model_dir import log as run_log
from testkit import ROOT, killing

NAMES = ("kaggle-v5e-8", "colab-v5e-1")
STEPS = 24


def read(name):
    return json.loads(Path(ROOT, "notebooks", f"{name}.ipynb").read_text(encoding="utf-8"))


def cells(name, kind):
    return ["".join(c["source"]) for c in read(name)["cells"] if c["cell_type"] == kind]


def parameters(name):
    """Return the values of the cell that users change."""
    (cell,) = [c for c in read(name)["cells"] if c["metadata"].get("tags") == ["parameters"]]
    values = {}
    exec("".join(cell["source"]), values)
    del values["__builtins__"]
    return values


def shell_lines(name):
    lines = [line.strip() for cell in cells(name, "code") for line in cell.splitlines()]
    return [line[1:] for line in lines if line.startswith("!")]


def commands(name, run):
    """Words of each command of ours, with the notebook's own values in their places, and in that
    of its settings the file `run`."""
    places = {"RUN": run, "DATA": "d", "MODEL": "m", "TEMP": "t", "TOKENIZER": "t.model"}
    made = {"START": "--init_from encoder", "SIZES": "--init_from encoder", "MINUTES": 510}
    values = {**parameters(name), **places, **made}
    lines = [line for line in shell_lines(name) if line.startswith("bigbird-ja")]
    ours = [line.partition(" > ")[0] for line in lines]
    return [shlex.split(string.Formatter().vformat(line, (), values))[1:] for line in ours]


@pytest.mark.parametrize("name", NAMES)
def test_commands_parse_and_train_on_the_runtime_that_is_there(name, tmp_path, capsys):
    run, results = tmp_path / "settings.yaml", {}
    for words in commands(name, str(run)):
        if words[0] == "config":
            assert cli.run_command_line(words) == 0
            run.write_text(capsys.readouterr().out, encoding="utf-8")
        else:
            args = command_flags.parse(cli.load_command(words[0]), words[0], words[1:])
            if "config" in args:
                resolve(args, config_name="".join(args.config or ""))  # `plan` takes a list
            results[words[0]] = args
    assert set(results) >= {"doctor", "tokenize", "make-data", "plan", "pretrain", "export"}
    args = results["pretrain"]
    assert args.engine == "pjrt" and args.use_tpu and args.max_train_minutes == 510
    training = resolve(args)[0].training
    chips = int(name.rpartition("-")[2])
    assert training.global_batch_size % (chips * training.gradient_accumulation_steps) == 0


@pytest.mark.parametrize("name", NAMES)
def test_it_replaces_no_package_stops_where_a_command_fails_and_dates_its_limits(name):
    (install,) = [line for line in shell_lines(name) if "pip install" in line]
    assert "--constraint {TEMP}/there.txt" in install
    assert not re.search(r"jax|libtpu|upgrade|2\.15", install)
    notebook = read(name)
    assert "kaggle" not in notebook["metadata"], "would pin an image without TPU (kaggle-cli#1197)"
    for cell in cells(name, "code"):
        ast.parse(re.sub(r"(?m)^(\s*)!.*", r"\1pass", cell))
        for line, after in itertools.pairwise([*cell.splitlines(), ""]):
            assert not line.strip().startswith("!") or "_exit_code" in after, line
    assert not any(c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code")
    assert re.search(r"[Aa]s of 20\d\d-\d\d.*https://", cells(name, "markdown")[0], re.S)


def test_a_run_that_was_copied_without_its_mark_stops_before_training(tmp_path):
    check = cells(NAMES[0], "code")[3].partition("# Saves and stops")[0]
    exec(check, {"os": os, "MODEL": f"{tmp_path}/none"})
    (tmp_path / "model.ckpt-5.index").touch()
    with pytest.raises(RuntimeError, match=r"without its \.bigbird-ja\.json"):
        exec(check, {"os": os, "MODEL": str(tmp_path)})
    (tmp_path / ".bigbird-ja.json").touch()
    exec(check, {"os": os, "MODEL": str(tmp_path)})


def test_the_notebooks_train_and_evaluate_alike():
    first, second = (cells(name, "code")[3:5] for name in NAMES)
    assert first == second


CONFIG = {
    **killing.CONFIG,
    "tokenize": {"vocab_size": 1200},
    "make_data": {
        **{"seq_length": 128, "max_predictions_per_seq": 20, "mask_unit": "subword"},
        **{"eval_fraction": 0.05, "num_shards": 2},
    },
    "training": {**killing.CONFIG["training"], "num_train_steps": STEPS, "global_batch_size": 8},
}


@pytest.fixture
def session(tmp_path, sample_corpus, monkeypatch):
    """`session("kaggle-v5e-8", 5, ROOT="x")`: executes a notebook's real cells on a CPU, with the
    parameters replaced and pip left out, until its time is over at a step; what they printed."""
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the dev extra")
    pytest.importorskip("ipykernel", reason="needs the dev extra")
    config, programs = tmp_path / "small.yaml", tmp_path / "bin"
    config.write_text(yaml.safe_dump(CONFIG))
    programs.mkdir()
    scripts = {
        "bigbird-ja": f'exec {sys.executable} -m testkit.clocked "$@"',
        "pip": f'echo pip "$@" >> {tmp_path}/pip.log; echo numpy==0',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    replaced = {"CONFIG": str(config), "INPUT": sample_corpus}
    replaced |= {"SETTINGS": "", "DEVICE": "--nouse_tpu"}

    def execute(name, ends_at=STEPS + 1, **places):
        monkeypatch.setenv("ENDS_AT_STEP", str(ends_at))
        notebook = nbformat.reads(json.dumps(read(name)), as_version=4)
        (cell,) = [c for c in notebook.cells if c.metadata.get("tags") == ["parameters"]]
        for key, value in {**replaced, **places}.items():
            line = f"{key} = {value!r}"
            pattern = rf"(?m)^((?:\w+ = )*?){key} = .*?$"
            cell.source, count = re.subn(pattern, lambda m, x=line: m[1] + x, cell.source)
            assert count == 1, key
        nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
        streams = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
        return "".join(o.get("text", "") for o in streams)

    return execute


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_session_on_colab_trains_and_exports_a_model(session, tmp_path):
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "bigbird_ja-0.2.0.dev0-py3-none-any.whl").touch()
    printed = session("colab-v5e-1", WHEELS=str(tmp_path / "drive"))  # ROOT is the same
    assert f"finished: {tmp_path}/drive/huggingface" in printed and "日本の首都は【" in printed
    assert (tmp_path / "drive/huggingface/model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_sessions_on_kaggle_make_one_run(session, zygote, tmp_path):
    inputs = tmp_path / "input"
    wheel = inputs / "a-wheel" / "bigbird_ja-0.2.0.dev0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    outputs = [tmp_path / place / "bigbird-ja" for place in ("first", "second", "third")]
    for number, (output, ends_at) in enumerate(zip(outputs, (5, 9, STEPS + 1), strict=True)):
        printed = session("kaggle-v5e-8", ends_at, ROOT=str(output), EARLIER=str(inputs))
        assert (f"goes on from {inputs}" in printed) == (number > 0), printed
        assert ("make-data" in printed) == (number == 0), "what lies among the inputs is not remade"
        # As a person hands the last output on, in the place of the one before; inputs are copies.
        shutil.rmtree(inputs / "output", ignore_errors=True)
        shutil.copytree(output, inputs / "output" / "bigbird-ja")
        assert printed.rstrip().endswith("run it again") == (number < 2), printed
        assert (output / "huggingface/model.safetensors").exists() == (number == 2)
    assert "日本の首都は【" in printed and f"finished: {outputs[2]}/huggingface" in printed
    installed = (tmp_path / "pip.log").read_text().splitlines()
    assert installed[1].endswith(str(wheel)) and "--constraint" in installed[1]
    events = run_log.read_events(str(outputs[2] / "model"))
    resumed = [event["global_step"] for event in events if event["event"] == "resumed"]
    assert len(resumed) == 2 and 5 <= resumed[0] < resumed[1] < STEPS
    model = str(tmp_path / "undisturbed")
    flags = ["--config", str(tmp_path / "small.yaml"), "--data_dir", str(outputs[0] / "data")]
    flags += ["--model_dir", model, "--engine", "pjrt", "--json"]
    whole = zygote.run("pretrain", *flags)
    assert whole.status == 0, whole.err
    assert killing.digest(str(outputs[2] / "model")) == killing.digest(model)
