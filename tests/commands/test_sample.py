"""`sample` writes every format, and replaces no file that it did not create."""

import functools
import gzip
import json

import pytest

from bigbird_ja import storage
from bigbird_ja.storage.ownership import MANIFEST_NAME
from bigbird_ja.text import articles
from bigbird_ja.text.corpus import open_corpus


@pytest.fixture
def sample(run):
    return functools.partial(run, "sample")


def documents(path):
    return [text.strip() for text in open_corpus([str(path)]).texts()]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.txt"])
def test_every_form_reads_back_as_the_same_corpus(tmp_path, sample, name):
    path = tmp_path / "new" / name
    sample = functools.partial(sample, f"--output={path}", "--seed=9", "--documents=12")
    assert sample().status == 0
    content = path.read_bytes()
    assert documents(path) == [text.strip() for text in articles.generate(12, 9)]
    again = sample()
    assert again.status == 0 and "finished already" in again.stderr
    for other in ("--documents=4", "--documents=16", "--seed=7"):
        refused = sample(other)
        assert refused.status == 2 and "--overwrite" in refused.stderr
    assert path.read_bytes() == content
    assert {p.name for p in path.parent.iterdir()} == {name, MANIFEST_NAME}
    assert sample("--documents=6", "--overwrite").status == 0
    assert len(documents(path)) == 6
    kept = path.with_name(f"{name}.replaced-1")
    assert kept.read_bytes() == content
    kept.rename(path.with_name(f"mine-{name}"))
    refused = sample(f"--output={path.parent}/mine-{name}", "--overwrite")
    assert refused.status == 2 and "not created by bigbird-ja" in refused.stderr


def test_sample_reports_counts_and_numbers_its_lines(tmp_path, sample):
    path = tmp_path / "a.jsonl.gz"
    result = sample(f"--output={path}", "--documents=30", "--mean_length=800", "--json").json
    assert result["documents"] == 30 and result["seconds"] > 0
    assert result["bytes"] > 2 * result["characters"] > 0
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [line["id"] for line in lines] == [f"sample-{i:06d}" for i in range(30)]


def test_it_writes_to_a_bucket(bucket, sample):
    sample = functools.partial(sample, f"--output={bucket}/a.jsonl.gz")
    assert sample("--documents=5").status == 0
    assert sample("--documents=5").status == 0
    assert sample("--documents=6").status == 2
    assert set(storage.list_files(bucket)) == {"a.jsonl.gz", MANIFEST_NAME}
    assert len(documents(f"{bucket}/a.jsonl.gz")) == 5
