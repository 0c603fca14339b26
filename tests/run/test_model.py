"""MODEL_DIR's parts belong together, or they are refused: config, tokenizer, data set."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.data import manifest
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import model
from bigbird_ja.run.checkpoints import read_variables, write_variables
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.values import config_to_yaml
from bigbird_ja.text import tokenizer
from testkit.runs import SETTINGS, SmallRun


@pytest.fixture
def copy(small_run: SmallRun, tmp_path: Path) -> SmallRun:
    """The small run, to be changed."""
    shutil.copytree(small_run.model_dir, tmp_path / "model")
    return SmallRun(
        small_run.data_dir, str(tmp_path / "model"), small_run.tokenizer, small_run.corpus
    )


@pytest.fixture(scope="module")
def other_tokenizer(small_run: SmallRun) -> bytes:
    """As many pieces with the same special ids, but others: two of them have changed places."""
    path = f"{small_run.model_dir}/tokenizer.model"
    data = Path(path).read_bytes()
    fields = [
        bytes([0x0A, len(piece.encode())]) + piece.encode()  # field 1, by its length
        for piece in tokenizer.load(path).pieces[20:]
        if len(piece.encode()) == 3
    ]
    one, two = [field for field in fields if data.count(field) == 1][:2]
    return re.sub(
        re.escape(one) + b"|" + re.escape(two), lambda match: two if match[0] == one else one, data
    )


def _commands(run: SmallRun, out: Path) -> dict[str, list[str]]:
    return {
        "fill-mask": ["fill-mask", f"--model_dir={run.model_dir}", "--text=日本の[MASK]。"],
        "export": ["export", f"--model_dir={run.model_dir}", f"--output_dir={out}"],
        "evaluate": ["evaluate", f"--model_dir={run.model_dir}", f"--data_dir={run.data_dir}"],
        "pretrain": ["pretrain", f"--model_dir={run.model_dir}", f"--data_dir={run.data_dir}",
                     "--num_train_steps=8"],
        "init_from": ["pretrain", f"--init_from={run.model_dir}", f"--data_dir={run.data_dir}",
                      "--num_train_steps=8", f"--model_dir={out}", *SETTINGS],
    }  # fmt: skip


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _run(command: list[str], capsys: pytest.CaptureFixture) -> tuple[int, str]:
    """The status of a command in this process, and what it wrote for people."""
    capsys.readouterr()
    return main.run_command_line(command), capsys.readouterr().err


def _refused(
    command: str, run: SmallRun, out: Path, capsys: pytest.CaptureFixture, words: str
) -> None:
    """A command ends with status 2 and one line that holds the words, and writes nothing."""
    before = _files(out.parent)
    status, err = _run(_commands(run, out)[command], capsys)
    assert status == 2 and words in err and "Traceback" not in err, err
    assert _files(out.parent) == before


@pytest.mark.parametrize("command", ["fill-mask", "export", "evaluate", "pretrain"])
def test_a_tokenizer_that_the_run_was_not_trained_with_is_refused(
    command: str, copy: SmallRun, other_tokenizer: bytes, tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    Path(copy.model_dir, "tokenizer.model").write_bytes(other_tokenizer)
    words = "tokenizer.model is not the tokenizer that the run was trained with"
    _refused(command, copy, tmp_path / "out", capsys, words)


@pytest.mark.parametrize("command", ["fill-mask", "export", "evaluate", "pretrain", "init_from"])
def test_a_config_that_was_edited_is_refused(
    command: str, copy: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = Path(copy.model_dir, "config.yaml")
    text = path.read_text()
    assert "hidden_act: gelu_new" in text
    path.write_text(text.replace("hidden_act: gelu_new", "hidden_act: relu"))
    words = "config.yaml is not the config that checkpoint 6 was trained with"
    _refused(command, copy, tmp_path / "out", capsys, words)


def test_what_a_run_may_change_is_no_edit(copy: SmallRun) -> None:
    path = Path(copy.model_dir, "config.yaml")
    config = read_config(str(path))
    config.training.num_train_steps = 99
    path.write_text(config_to_yaml(config))
    assert model.load_parameters(copy.model_dir)[0].training.num_train_steps == 99


def test_a_tokenizer_with_more_pieces_than_the_model_is_refused(copy: SmallRun) -> None:
    config, _, meta = model.load_parameters(copy.model_dir)
    pieces = model.load_tokenizer(copy.model_dir, config, meta).vocab_size
    config.model.vocab_size = pieces - 1
    with pytest.raises(BadInput, match=f"has {pieces:,} pieces"):
        model.load_tokenizer(copy.model_dir, config, meta)


@pytest.fixture(scope="module")
def other_data(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory, run_cli) -> str:
    """The same text and tokenizer, dealt by another seed."""
    directory = tmp_path_factory.mktemp("other") / "data"
    ended = run_cli(
        "make-data", f"--input={small_run.corpus}", f"--tokenizer={small_run.tokenizer}",
        f"--output_dir={directory}", "--seq_length=256", "--max_predictions_per_seq=40",
        "--eval_fraction=0.1", "--num_shards=4", "--seed=77",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    return str(directory)


def test_export_puts_no_other_data_set_into_the_card(
    small_run: SmallRun, other_data: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    command = ["export", f"--model_dir={small_run.model_dir}", f"--output_dir={out}"]
    status, err = _run([*command, f"--data_dir={other_data}"], capsys)
    assert status == 2, err
    assert "is not the data set that" in err and "leave --data_dir out" in err
    assert not out.exists()


def test_evaluation_on_other_data_is_reported_and_needs_the_same_tokenizer(
    copy: SmallRun, other_data: str, other_tokenizer: bytes, tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    evaluate = ["evaluate", f"--model_dir={copy.model_dir}", f"--data_dir={other_data}"]
    status, err = _run([*evaluate, "--max_batches=1"], capsys)
    assert status == 0 and "is not the data set that" in err, err
    # The same data set, as if that tokenizer had made it.
    data = tmp_path / "data"
    shutil.copytree(other_data, data)
    (data / "tokenizer.model").write_bytes(other_tokenizer)
    sha256 = hashlib.sha256(other_tokenizer).hexdigest()
    changed = dataclasses.replace(manifest.load(str(data)), tokenizer_sha256=sha256)
    (data / "manifest.json").write_text(manifest.to_json(changed))
    status, err = _run([*evaluate[:2], f"--data_dir={data}"], capsys)
    assert status == 2 and "was made with another tokenizer" in err, err


def test_no_config_is_bad_input(copy: SmallRun) -> None:
    Path(copy.model_dir, "config.yaml").unlink()
    with pytest.raises(BadInput, match=r"config\.yaml: missing: restore it"):
        model.load_parameters(copy.model_dir)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "missing"), (np.zeros(3, np.float32), "3"), (np.nan, "NaN or infinite")],
)
@pytest.mark.parametrize("command", ["evaluate", "export", "pretrain"])
def test_wrong_variables_under_a_right_sidecar_are_refused(
    command: str, value: object, words: str, copy: SmallRun, tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    name, prefix = (
        "bert/encoder/layer_0/intermediate/dense/kernel",
        f"{copy.model_dir}/model.ckpt-6",
    )
    values = read_variables(prefix)
    old = values.pop(name)
    if value is not None:
        values[name] = old * value if value is np.nan else value
    write_variables(prefix, values)
    path = Path(f"{prefix}.json")
    meta = json.loads(path.read_text())
    for file, stored in meta["files"].items():
        stored["crc32c"], stored["bytes"] = storage.crc32c_of_file(f"{copy.model_dir}/{file}")
    path.write_text(json.dumps(meta))
    status, err = _run(_commands(copy, tmp_path / "out")[command], capsys)
    (line,) = [line for line in err.splitlines() if line.startswith("bigbird-ja: ")]
    assert status == 2 and name in line and words in line and not (tmp_path / "out").exists()


def test_a_newer_checkpoint_without_its_sidecar_is_named(
    copy: SmallRun, capsys: pytest.CaptureFixture
) -> None:
    Path(copy.model_dir, "model.ckpt-6.json").unlink()
    assert model.load_parameters(copy.model_dir)[2].step == 4
    err = capsys.readouterr().err
    assert "checkpoint 6 is not used" in err and "taken is 4" in err
