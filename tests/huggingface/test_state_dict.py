"""Weights of every format and type are read, and malicious files are refused."""

import json
import os
import pickle
import zipfile
from hashlib import sha256

import numpy as np
import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import state_dict
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data
from tests.huggingface.folders import adopted, made

torch = pytest.importorskip("torch", reason="the folders are made with PyTorch")
pytestmark = pytest.mark.both


def test_weights_in_several_files(tmp_path):
    theirs = made("modernbert", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    state, checksums = state_dict.read(str(tmp_path))
    for name, value in theirs.named_parameters():
        np.testing.assert_array_equal(state[name], value.detach())
    files = {path.name: path.read_bytes() for path in tmp_path.glob("model-*.safetensors")}
    assert checksums == {name: sha256(data).hexdigest() for name, data in files.items()}
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    more = content["weight_map"] | {"head.more": "../other.safetensors"}
    index.write_text(json.dumps({"weight_map": more}))
    with pytest.raises(BadInput, match=r"'\.\./other\.safetensors' is not a file in the"):
        state_dict.read(str(tmp_path))
    index.write_text(json.dumps(content))
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(BadInput, match=r"model-00002-of-.*missing"):
        state_dict.read(str(tmp_path))


def test_another_architecture_and_surplus_tensors(tmp_path):
    made("modernbert", tmp_path)
    config = replace_settings(adopted(tmp_path), {"model.num_layers": 2})
    with pytest.raises(BadInput, match=r"tensors of its encoder.* have no place"):
        load_initial(str(tmp_path), *with_data(config))
    config = replace_settings(config, {"model.architecture": "bigbird"})
    with pytest.raises(BadInput, match="a modernbert model becomes a modernbert"):
        load_initial(str(tmp_path), *with_data(config))


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_is_read_in_both_formats(form, dtype, tmp_path):
    theirs = made("bert", tmp_path).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    if form == "pytorch_model.bin":
        os.remove(tmp_path / "model.safetensors")
        torch.save(theirs.state_dict(), tmp_path / form)
    state, _ = state_dict.read(str(tmp_path))
    for name, value in theirs.named_parameters():
        np.testing.assert_array_equal(state[name].astype(np.float32), value.detach().float())


class _Bad:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_pickle_is_never_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": _Bad()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"not a PyTorch state dict \(it contains other objects"):
        state_dict.read(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Bad()}))
    with pytest.raises(BadInput, match="not a PyTorch state dict"):
        state_dict.read(str(tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["compressed", "a list", "cut", "no tensors"])
def test_hostile_state_dict_is_refused(kind, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    value = "text" if kind == "no tensors" else torch.zeros(1000)
    torch.save([1] if kind == "a list" else {"x": value}, path)
    # Compressed entries are refused, since a megabyte could expand to a gigabyte of zeros.
    if kind == "compressed":
        with zipfile.ZipFile(path) as plain, zipfile.ZipFile(tmp_path / "to", "w", 8) as packed:
            for entry in plain.infolist():
                packed.writestr(entry.filename, plain.read(entry))
        (tmp_path / "to").rename(path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"pytorch_model\.bin is not a PyTorch state dict"):
        state_dict.read(str(tmp_path))
