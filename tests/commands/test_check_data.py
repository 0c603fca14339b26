"""`check-data` on good data and on damaged data."""

import functools
import shutil
from pathlib import Path

import pytest

from bigbird_ja.data import build
from tests.data import making


@pytest.fixture(scope="module", params=["dynamic", "static"])
def data(request, tmp_path_factory, sample_corpus, tokenizer_path):
    directory = str(tmp_path_factory.mktemp(request.param) / "data")
    changes = {"masking": request.param} | ({"dupe_factor": 2} if request.param == "static" else {})
    build.make_data(making.request(sample_corpus, tokenizer_path, directory, **changes))
    return Path(directory)


@pytest.fixture
def copy(data, tmp_path):
    return shutil.copytree(data, tmp_path / "data")


@pytest.fixture
def check_data(run):
    return functools.partial(run, "check-data", "--json")


def test_a_whole_data_set_has_no_problems(data, check_data):
    ended = check_data(f"--data_dir={data}", "--examples=2")
    assert ended.status == 0 and ended.json["problems"] == []
    assert ended.json["documents"] == 60 and ended.json["density"] > 0.97
    for text in ("density", "documents per sequence", "tokens per epoch", "length of documents"):
        assert text in ended.stderr
    assert "[MASK](" in ended.stderr
    assert "|" in ended.stderr.split("masked examples")[1] or "static" in ended.stderr


def test_problems_are_status_2_and_listed_in_json(copy, check_data):
    shard = next(copy.glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    ended = check_data(f"--data_dir={copy}")
    assert ended.status == 2 and ended.json["reason"] == "bad_input"
    assert any(shard.name in problem for problem in ended.json["problems"])
    assert ended.json["sequences"] > 0
    assert shard.name in ended.stderr.strip().splitlines()[-1]
