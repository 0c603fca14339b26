"""A config, tokenizer or data set that does not match the run is refused."""

import dataclasses
import hashlib
import itertools
import shutil
from pathlib import Path

import pytest

from bigbird_ja.data import manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import model
from bigbird_ja.storage.decode import FORMAT_VERSION
from testkit.runs import SETTINGS
from tests.data import making


@pytest.fixture
def copy(small_run, tmp_path):
    """Return a copy of the small run, which a test may change."""
    shutil.copytree(small_run.model_dir, tmp_path / "model")
    return dataclasses.replace(small_run, model_dir=str(tmp_path / "model"))


@pytest.fixture(scope="module")
def other_tokenizer(small_run):
    """Return the run's tokenizer model with an additional field, which readers ignore."""
    return Path(small_run.model_dir, "tokenizer.model").read_bytes() + b"\xf8\x3f\x01"


def _command(name, run, out):
    model, data = f"--model_dir={run.model_dir}", f"--data_dir={run.data_dir}"
    more = ["--num_train_steps=8"] if name == "pretrain" else []
    if name == "init_from":
        name, model = "pretrain", f"--model_dir={out}"
        more = [f"--init_from={run.model_dir}", "--num_train_steps=8", *SETTINGS]
    return [name, model, data, *more]


PARTS = {
    "tokenizer.model": "tokenizer.model is not the tokenizer that the run was trained with",
    "config.yaml": "config.yaml is not the config that checkpoint 6 was trained with",
}
USES = itertools.product(["evaluate", "pretrain"], PARTS)


@pytest.mark.parametrize(("command", "name"), [*USES, ("init_from", "config.yaml")])
def test_another_tokenizer_or_config_than_the_run_was_trained_with_is_refused(
    command, name, copy, other_tokenizer, tmp_path, run
):
    path = Path(copy.model_dir, name)
    config = path.read_bytes().replace(b"hidden_act: gelu_new", b"hidden_act: relu")
    path.write_bytes(config if name == "config.yaml" else other_tokenizer)
    before = making.tree(tmp_path)
    ended = run(*_command(command, copy, tmp_path / "out"))
    assert ended.status == 2 and PARTS[name] in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert making.tree(tmp_path) == before


def _other_data(run, folder, **changes):
    """Copy the run's data set to a folder, and change fields of its manifest.

    Returns:
        The path of the folder.
    """
    shutil.copytree(run.data_dir, folder)
    changed = dataclasses.replace(manifest.load(str(folder)), **changes)  # type: ignore[arg-type]
    (folder / "manifest.json").write_text(manifest.to_json(changed))
    return str(folder)


def test_evaluation_on_other_data_is_reported_and_needs_the_same_tokenizer(
    copy, other_tokenizer, tmp_path, run
):
    evaluate = ["evaluate", f"--model_dir={copy.model_dir}", "--max_batches=1"]
    data = _other_data(copy, tmp_path / "data", seed=77)
    ended = run(*evaluate, f"--data_dir={data}")
    assert ended.status == 0 and "is not the data set that" in ended.stderr, ended.stderr
    sha256 = hashlib.sha256(other_tokenizer).hexdigest()
    data = _other_data(copy, tmp_path / "foreign", tokenizer_sha256=sha256)
    Path(data, "tokenizer.model").write_bytes(other_tokenizer)
    ended = run(*evaluate, f"--data_dir={data}")
    assert ended.status == 2 and "was made with another tokenizer" in ended.stderr, ended.stderr


def test_missing_config_or_one_of_another_version_is_refused(copy):
    path = Path(copy.model_dir, "config.yaml")
    path.write_text(path.read_text().replace(f": {FORMAT_VERSION}\n", ": 0.0.9\n"))
    with pytest.raises(BadInput, match=r"config\.yaml.*0\.0\.9"):
        model.load_parameters(copy.model_dir)
    path.unlink()
    with pytest.raises(BadInput, match=r"config\.yaml is missing: restore the file"):
        model.load_parameters(copy.model_dir)
