"""Models and data sets that are named by their Hub repositories, with a fake Hub."""

import sys

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.text.corpus import open_corpus
from testkit import command_line
from testkit.fakes import hub

pytest.importorskip("huggingface_hub", reason="needs the huggingface extra")


_FETCH = "import sys; from bigbird_ja.huggingface import hub; a = sys.argv;"
_FETCH += " path = hub.fetch_model('me/model', '--x', len(a) > 1);"
_FETCH += " print(*hub.parse_cached_path(path), path)"


def _fetch(there, folder, *weights):
    ended = command_line.run(sys.executable, "-c", _FETCH, *weights, env=there.environ(folder))
    assert ended.status == 0, ended.stderr
    sha = there.sha("me/model")
    assert ended.stdout.startswith(f"me/model {sha} ") and ended.stdout.endswith(f"/{sha}\n")
    return {line.rpartition("/")[2] for line in there.asked if line.startswith("GET /me/")}


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_weights_of_a_name_are_fetched_in_one_format(tmp_path, weights):
    with hub.serving() as there:
        names = {"config.json", weights, "onnx/model.onnx", "pytorch_model.bin", "tf_model.h5"}
        there.repos["me/model"] = {name: name.encode() for name in names}
        assert _fetch(there, tmp_path, weights) == {"config.json", weights}


def test_a_tokenizer_is_fetched_without_weights_and_offline_the_command_is_named(tmp_path):
    with hub.serving() as there:
        there.repos["me/model"] = {"spiece.model": b"a model", "model.safetensors": b"large"}
        assert _fetch(there, tmp_path) == {"spiece.model"}
        env = there.environ(tmp_path / "empty")
    ended = command_line.run(sys.executable, "-c", _FETCH, env=env)
    assert "`hf download me/model --local-dir model`" in ended.stderr
    assert "the Hub cannot provide it ([Errno 111] Connection refused)." in ended.stderr


def test_a_data_set_of_a_name_is_streamed_at_its_commit(tmp_path):
    pytest.importorskip("datasets", reason="hf: needs it")
    code = "import sys; from bigbird_ja.text.corpus import open_corpus as o; c = o(sys.argv[1:],"
    code += " text_fields=['本文']); print(c.sources, list(c.texts()))"
    with hub.serving() as there:
        there.repos["me/texts"] = {"train.jsonl": '{"本文": "一"}\n{"本文": null}\n'.encode()}
        sha, env = there.sha("me/texts"), there.environ(tmp_path)
        ended = command_line.run(sys.executable, "-c", code, "hf:me/texts", env=env)
        assert ended.stdout == f"['hf:me/texts@{sha}:train'] ['一', '']\n", ended.stderr
        ended = command_line.run(sys.executable, "-c", code, "hf:me/texts:test", env=env)
        assert "Bad split: test" in ended.stderr.splitlines()[-1]


def test_a_data_set_without_its_library_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"datasets is missing .* `hf download me/x --repo-type"):
        open_corpus(["hf:me/x"])


def test_trim_fetches_the_encoder_of_a_name(tmp_path):
    corpus = tmp_path / "a.txt"
    corpus.write_text("text")
    with hub.serving() as there:
        there.repos["me/model"] = {"config.json": b'{"model_type": "bert"}'}
        flags = (f"--input={corpus}", "--encoder=me/model", f"--output_dir={tmp_path}/out")
        ended = command_line.run_cli("trim", *flags, env=there.environ(tmp_path / "cache"))
    assert ended.status == 2 and "fetching it from the Hub" in ended.stderr
    assert "config.json" in {line.rpartition("/")[2] for line in there.asked}
