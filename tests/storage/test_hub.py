"""Names on the Hub as `--tokenizer` and `--init_from`, against a stand-in of its HTTP."""

import json
import sys

import pytest

from testkit import command_line
from testkit.fakes import hub

pytest.importorskip("huggingface_hub", reason="needs the huggingface extra")


def test_a_tokenizer_by_its_name(tmp_path, tokenizer_path, sample_corpus, run_cli):
    out = tmp_path / "data"
    flags = (f"--input={sample_corpus}", "--tokenizer=me/model", f"--output_dir={out}")
    make = ("make-data", *flags, "--seq_length=256")
    with hub.serving() as there:
        with open(tokenizer_path, "rb") as model:
            files = {"spiece.model": model.read(), "model.safetensors": b"large"}
        there.repos["me/model"] = files
        env = there.environ(tmp_path)
        made = run_cli(*make, env=env)
        assert made.status == 0, made.stderr
        commit = there.sha("me/model")
        assert not any("safetensors" in line for line in there.asked)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["statistics"]["tokenizer_source"] == f"me/model@{commit}"
    gone = run_cli(*make, env={**env, "HF_HOME": f"{tmp_path}/empty"})
    assert gone.status == 2 and "`hf download me/model --local-dir model`" in gone.stderr
    assert "not fetched ([Errno 111] Connection refused):" in gone.stderr  # not the cache's advice


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_weights_by_name_come_in_one_format(tmp_path, weights):
    code = "from bigbird_ja.storage import hub; print(hub.fetched('me/model', 'x', True))"
    with hub.serving() as there:
        names = {"config.json", weights, "onnx/model.onnx", "pytorch_model.bin", "tf_model.h5"}
        there.repos["me/model"] = {name: name.encode() for name in names}
        ended = command_line.run(sys.executable, "-c", code, env=there.environ(tmp_path))
        assert ended.status == 0, ended.stderr
        fetched = {line.rpartition("/")[2] for line in there.asked if line.startswith("GET /me/")}
        assert fetched == {"config.json", weights}
        assert ended.stdout.strip().endswith(f"snapshots/{there.sha('me/model')}")
