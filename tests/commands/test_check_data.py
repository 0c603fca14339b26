from __future__ import annotations

import json
import shutil

import pytest

from bigbird_ja.cli import main
from bigbird_ja.data import build
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


def test_no_data_is_bad_input(tmp_path, capsys):
    assert run(capsys, f"--data_dir={tmp_path}")[0] == 2
    assert run(capsys)[0] == 2
