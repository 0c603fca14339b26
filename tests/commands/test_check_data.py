from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil

import pytest

from bigbird_ja.cli import main
from bigbird_ja.data import build
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.text import model_proto
from bigbird_ja.text import tokenizer as tokenizer_lib
from testkit import synthetic
from tests.data import making


@pytest.fixture(scope="module", params=["dynamic", "static"])
def data(request, tmp_path_factory, sample_corpus, tokenizer_path):
    directory = str(tmp_path_factory.mktemp(request.param) / "data")
    build.make_data(
        making.request(
            sample_corpus, tokenizer_path, directory, masking=request.param, dupe_factor=2
        )
    )
    return directory


def run(capsys, *arguments):
    status = main.run_command_line(["check-data", *arguments, "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured


def test_all_is_well(data, capsys):
    status, result, captured = run(capsys, f"--data_dir={data}", "--examples=2")
    assert status == 0 and result["problems"] == []
    assert result["documents"] == 60 and result["density"] > 0.97
    for text in ("density", "documents per sequence", "tokens per epoch", "length of documents"):
        assert text in captured.err
    assert "[MASK](" in captured.err
    assert ("|" in captured.err.split("masked examples")[1]) or "static" in captured.err


def test_a_problem_is_status_2_with_the_list_in_the_json(tmp_path, data, capsys):
    shutil.copytree(data, tmp_path / "data")
    shard = next((tmp_path / "data").glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    status, result, captured = run(capsys, f"--data_dir={tmp_path / 'data'}")
    assert status == 2 and result["reason"] == "bad_input"
    assert any(shard.name in problem for problem in result["problems"])
    assert result["sequences"] > 0
    assert shard.name in captured.err.strip().splitlines()[-1]


ESCAPES = "\x1b]0;gone\x07\x9b2J"  # a terminal's title, its bell, its screen


def test_no_terminal_obeys_what_a_foreign_data_set_holds(tmp_path, data, capsys):
    shutil.copytree(data, tmp_path / "data")
    manifest = manifest_lib.load(data)
    model = tokenizer_lib.load(f"{data}/tokenizer.model").model_bytes
    pieces = [
        dataclasses.replace(piece, name=ESCAPES * (piece.kind == model_proto.NORMAL) + piece.name)
        for piece in model_proto.pieces(model)
    ]
    foreign = model_proto.with_pieces(model, pieces)
    (tmp_path / "data/tokenizer.model").write_bytes(foreign)
    sha256 = hashlib.sha256(foreign).hexdigest()
    synthetic.save(dataclasses.replace(manifest, tokenizer_sha256=sha256), f"{tmp_path}/data")
    status, _, captured = run(capsys, f"--data_dir={tmp_path}/data")
    assert status == 0 and r"\x1b]0;gone\x07\x9b2J" in captured.err
    assert not set(captured.err + captured.out) & set("\x1b\x07\x9b")
    shard = dataclasses.replace(manifest.train_shards[0], name=f"{ESCAPES}.tfrecord")
    shards = (shard, *manifest.train_shards[1:])
    synthetic.save(dataclasses.replace(manifest, train_shards=shards), f"{tmp_path}/data")
    status, _, captured = run(capsys, f"--data_dir={tmp_path}/data")
    assert status == 2 and r"\x1b]0;gone\x07\x9b2J.tfrecord is missing" in captured.err
    assert not set(captured.err + captured.out) & set("\x1b\x07\x9b")


def test_no_data_is_bad_input(tmp_path, capsys):
    assert run(capsys, f"--data_dir={tmp_path}")[0] == 2
    assert run(capsys)[0] == 2
