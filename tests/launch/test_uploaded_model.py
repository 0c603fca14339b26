"""Launched runs with the initial weights of a model that is uploaded or already on the bucket."""

import json
import os
import sys
from pathlib import Path

import pytest

from bigbird_ja import cli, storage
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import uploaded_model
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.train.warm_start import load_initial
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

pytestmark = pytest.mark.timeout(900)


def write(folder, *names):
    for name in names:
        (folder / name).write_text(name)
    return str(folder)


def test_the_files_that_a_run_reads_of_each_kind_of_model_are_uploaded(tmp_path, small_run):
    used = ["config.json", "tokenizer.json", "model.safetensors", "README.md"]
    folder = write(tmp_path, *used)
    write(tmp_path, "pytorch_model.bin", "bert.index", "bert.data-00000-of-00001")
    found = uploaded_model.find(folder, "gs://b/x")
    assert {*found.files} == {*used}
    assert found.path == found.folder and found.folder.startswith("gs://b/x/encoders/")
    for end in ("", ".index"):  # Both paths name the same TensorFlow checkpoint.
        found = uploaded_model.find(f"{folder}/bert{end}", "gs://b")
        assert {*found.files} == {"bert.index", "bert.data-00000-of-00001"}
        assert found.path == f"{found.folder}/bert"
    found = uploaded_model.find(small_run.model_dir, str(tmp_path / "bucket"))
    found.upload()
    assert "model.ckpt-6.json" in found.files and "model.ckpt-4.json" not in found.files


def test_a_model_from_which_no_machine_could_start_is_refused(tmp_path):
    with pytest.raises(BadInput, match="neither a Hugging Face folder with weights, nor a"):
        uploaded_model.find(write(tmp_path, "config.json"), "gs://b")
    with pytest.raises(BadInput, match=r"a rented machine cannot read: save the model as"):
        uploaded_model.find(write(tmp_path, "pytorch_model.bin"), "gs://b")


def test_a_model_on_a_bucket_is_used_where_it_is(bucket):
    source = f"{bucket}/encoder"
    storage.write_text(f"{source}/model.safetensors", "weights")
    found = uploaded_model.find(source, bucket)
    assert found.path == source
    found.upload()
    assert storage.list_tree(bucket) == ["encoder/model.safetensors"]
    with pytest.raises(BadInput, match="neither"):
        uploaded_model.find(f"{bucket}/none", bucket)


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    """Export the small run's model as a Hugging Face folder, with the tokenizer of its data set."""
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    folder = tmp_path_factory.mktemp("exported") / "an encoder"
    words = ["export", f"--model_dir={small_run.model_dir}", f"--output_dir={folder}"]
    assert cli.run_command_line(words) == 0
    return folder


def test_an_encoder_is_continued_on_a_rented_machine(tmp_path, small_run, exported):
    """Continue to train an uploaded encoder without transformers and torch.

    A rented machine lacks these packages.
    """
    root, bare = str(tmp_path), tmp_path / "bare"
    bare.mkdir()
    for name in ("transformers", "tokenizers", "safetensors", "torch"):
        (bare / f"{name}.py").write_text("raise ImportError('not on a rented machine')\n")
    environ = {**os.environ, "PYTHONPATH": str(bare), "TF_CPP_MIN_LOG_LEVEL": "3"}
    flags = [f"--init_from={exported}", "--mode=train_and_eval", f"--vm_python={sys.executable}"]
    flags += [f"--data_dir={small_run.data_dir}", "--set=training.global_batch_size=8"]
    command = support.command(root, *flags, steps=3)
    with FakeTpu(f"{root}/vms", environ, keep_disk=True) as fake:
        status, result = support.run(command, fake)
        assert (status, result["global_step"]) == (0, 3), result
        changed = [flag for flag in command if "init_from" not in flag]
        status, refused = support.run(changed, fake)
        assert status == 2 and "was launched with" in refused["error"]
    (folder,) = Path(root).glob("bucket/encoders/*")
    started = next(event for event in support.events_of(root) if event["event"] == "started")
    assert started["init_from"]["source"] == str(folder), "weights came from the uploaded folder"
    evaluations = Path(result["model_dir"], "eval.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [0, 3]
    script = Path(fake.work_dir, "vm-0/startup-script").read_text("utf-8")
    assert f"--init_from={folder} --mode=train_and_eval" in script


def test_a_foreign_or_damaged_model_is_refused_before_anything_is_created(
    tmp_path, small_run, exported, fake_tpu
):
    root, foreign = str(tmp_path), tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "gpt2"}')
    (foreign / "model.safetensors").touch()
    for source, words in ((foreign, "a gpt2 model"), (tmp_path / "none", "no such folder")):
        flags = [f"--data_dir={small_run.data_dir}", f"--init_from={source}"]
        status, result = support.run(support.command(root, *flags), fake_tpu)
        assert status == 2 and words in result["error"]
    assert fake_tpu.requests == [] and not (tmp_path / "bucket").exists()
    found = uploaded_model.find(str(exported), f"{root}/bucket")
    found.upload()
    stamps = {path: path.stat().st_mtime_ns for path in Path(found.path).iterdir()}
    uploaded_model.find(str(exported), f"{root}/bucket").upload()
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}, "uploaded once"
    Path(found.path, "config.json").write_text("{}")
    config, data = read_config(f"{small_run.model_dir}/config.yaml")
    with pytest.raises(BadInput, match=r"config\.json has changed since it was uploaded"):
        load_initial(found.path, config, data)
