"""Names on the Hub as `--tokenizer` and `--init_from`, against a stand-in of its HTTP."""

import json
import sys

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.corpus import open_corpus
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


def test_a_data_set_by_its_name_is_streamed_at_its_commit(tmp_path):
    pytest.importorskip("datasets", reason="--input hf: needs it")
    code = "import sys; from bigbird_ja.text.corpus import open_corpus as o; c = o(sys.argv[1:],"
    code += " text_field='本文'); print(c.sources, list(c.texts()))"
    with hub.serving() as there:
        there.repos["me/texts"] = {"train.jsonl": '{"本文": "一"}\n{"本文": null}\n'.encode()}
        sha, env = there.sha("me/texts"), there.environ(tmp_path)
        ended = command_line.run(sys.executable, "-c", code, "hf:me/texts", env=env)
        assert ended.stdout == f"['hf:me/texts@{sha}:train'] ['一', '']\n", ended.stderr
        ended = command_line.run(sys.executable, "-c", code, "hf:me/texts:test", env=env)
        assert "Bad split: test" in ended.stderr.splitlines()[-1]


def test_a_data_set_without_its_library_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"no datasets here: .* `hf download me/x --repo-type"):
        open_corpus(["hf:me/x"])
