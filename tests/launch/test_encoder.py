"""A run that starts from another model: found or uploaded, and continued on the machine."""

import json
import os
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.launch import encoder
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.storage import content
from bigbird_ja.train.warm_start import load_initial
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

pytestmark = pytest.mark.timeout(900)


def write(folder, *names):
    for name in names:
        (folder / name).write_text(name)
    return str(folder)


def test_what_a_run_reads_of_each_kind_of_model_is_uploaded(tmp_path, small_run):
    used = ["config.json", "tokenizer.json", "model.safetensors", "README.md"]
    folder = write(tmp_path, *used)
    write(tmp_path, "pytorch_model.bin", "bert.index", "bert.data-00000-of-00001")
    found = encoder.find(folder, "gs://b/x")
    assert {*found.files} == {*used}
    assert found.path == found.folder and found.folder.startswith("gs://b/x/encoders/")
    for end in ("", ".index"):  # a TensorFlow checkpoint
        found = encoder.find(f"{folder}/bert{end}", "gs://b")
        assert {*found.files} == {"bert.index", "bert.data-00000-of-00001"}
        assert found.path == f"{found.folder}/bert"
    found = encoder.find(small_run.model_dir, str(tmp_path / "bucket"))
    found.upload()
    assert "model.ckpt-6.json" in found.files and "model.ckpt-4.json" not in found.files


def test_what_no_machine_could_start_from_is_refused(tmp_path):
    with pytest.raises(BadInput, match="neither a Hugging Face folder with its weights, nor a"):
        encoder.find(write(tmp_path, "config.json"), "gs://b")
    with pytest.raises(BadInput, match=r"no PyTorch to read pytorch_model\.bin: save the model as"):
        encoder.find(write(tmp_path, "pytorch_model.bin"), "gs://b")


def test_a_model_on_a_bucket_is_used_where_it_is(bucket):
    source = f"{bucket}/encoder"
    storage.write_text(f"{source}/model.safetensors", "weights")
    found = encoder.find(source, bucket)
    assert found.path == source
    found.upload()
    assert storage.list_tree(bucket) == ["encoder/model.safetensors"]
    with pytest.raises(BadInput, match="neither"):
        encoder.find(f"{bucket}/none", bucket)


@pytest.fixture(scope="module")
def exported(small_run, run_cli, tmp_path_factory):
    """The small run's model as a Hugging Face folder, with the tokenizer of its data set."""
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    folder = tmp_path_factory.mktemp("exported") / "an encoder"
    ended = run_cli("export", f"--model_dir={small_run.model_dir}", f"--output_dir={folder}")
    assert ended.status == 0, ended.stderr
    return folder


@pytest.fixture
def bare_python(tmp_path):
    """PYTHONPATH of a machine without the packages that only the user's own machine has."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("transformers", "tokenizers", "safetensors", "torch"):
        (folder / f"{name}.py").write_text("raise ImportError('not on a rented machine')\n")
    return str(folder)


def test_an_encoder_is_continued_on_a_rented_machine(tmp_path, small_run, exported, bare_python):
    root = str(tmp_path)
    environ = {**os.environ, "PYTHONPATH": bare_python, "TF_CPP_MIN_LOG_LEVEL": "3"}
    flags = [f"--init_from={exported}", "--mode=train_and_eval", f"--vm_python={sys.executable}"]
    flags += [f"--data_dir={small_run.data_dir}", "--set=training.global_batch_size=4"]
    with FakeTpu(f"{root}/vms", environ, keep_disk=True) as fake:
        status, result = support.run(support.command(root, *flags, steps=3), fake)
        assert (status, result["global_step"]) == (0, 3), result
        uploaded = {
            path: path.stat().st_mtime_ns for path in Path(root).glob("bucket/encoders/*/*")
        }
        other = [*support.command(root, *flags, steps=3), "--name=run-2", "--num_train_steps=2"]
        assert support.run(other, fake)[0] == 0
        assert {p: p.stat().st_mtime_ns for p in Path(root).glob("bucket/encoders/*/*")} == uploaded
        changed = [
            flag for flag in support.command(root, *flags, steps=3) if "init_from" not in flag
        ]
        status, refused = support.run(changed, fake)
        assert status == 2 and "was launched with --init_from" in refused["error"]
    (folder,) = Path(root).glob("bucket/encoders/*")
    started = next(event for event in support.events_of(root) if event["event"] == "started")
    assert started["init_from"]["source"] == str(folder), "weights came from the uploaded folder"
    evaluations = Path(result["model_dir"], "eval.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [0, 3]


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
    found = encoder.find(str(exported), f"{root}/bucket")
    found.upload()
    Path(found.path, "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"config\.json has changed since it was uploaded"):
        content.verify(found.path)
    config, data = read_config(f"{small_run.model_dir}/config.yaml")
    with pytest.raises(BadInput, match=r"config\.json has changed since it was uploaded"):
        load_initial(found.path, config, data)


def test_a_local_model_is_uploaded_before_renting_and_named_to_the_trainer(tmp_path, fake_tpu):
    root, folder = str(tmp_path), tmp_path / "encoder"
    folder.mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": 3000, "intermediate_size": 96}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    (folder / "model.safetensors").write_text("weights")
    flags = [f"--init_from={folder}", "--mode=train_and_eval"]
    status, result = support.run(support.command(root, *flags), fake_tpu)
    assert (status, result["global_step"]) == (0, 100), result
    (uploaded,) = Path(root).glob("bucket/encoders/*")
    content.verify(str(uploaded))
    # What the machine was given; its log may not be on the bucket yet when the run has ended.
    script = Path(fake_tpu.work_dir, "vm-0/startup-script").read_text("utf-8")
    assert f"--init_from={uploaded} --mode=train_and_eval" in script
    config, _ = read_config(f"{root}/bucket/run-1/supervisor/config.yaml")
    assert (config.model.vocab_size, config.model.intermediate_size) == (3000, 96)
    status, refused = support.run(support.command(root), fake_tpu)
    assert status == 2 and "was launched with --init_from" in refused["error"]
