"""`tfds:wiki40b/ja` through TFDS's own builder, offline; and its public copy, on loopback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles, tfds_source
from bigbird_ja.text.corpus import open_corpus
from testkit import ROOT, tfds_stand_in
from testkit.fakes.gcs_process import FakeGcs

DOCUMENTS = list(articles.documents(40, 1, 500))
SIZES = {"train": 36, "validation": 2, "test": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("tfds"))
    tfds_stand_in.write(directory, DOCUMENTS, SIZES, shard_size=7)
    return directory


def test_splits_come_in_order_with_fingerprints_of_their_own(prepared: str) -> None:
    splits = {
        "tfds:wiki40b/ja": DOCUMENTS[:36],
        "tfds:wiki40b/ja:train": DOCUMENTS[:36],
        "tfds:wiki40b/ja:validation": DOCUMENTS[36:38],
        "tfds:wiki40b/ja:train[10:13]+test": DOCUMENTS[10:13] + DOCUMENTS[38:],
        "tfds:wiki40b/ja:1.3.0:test": DOCUMENTS[38:],
    }
    fingerprints = set()
    for source, texts in splits.items():
        corpus = open_corpus([source], prepared)
        assert list(corpus.texts()) == texts, source
        fingerprints.add(corpus.fingerprint)
    assert len(fingerprints) == len(splits) - 1
    assert open_corpus(["tfds:wiki40b/ja"], prepared).sources == ["tfds:wiki40b/ja:1.3.0:train"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:wiki40b/ja:dev", "no split 'dev': there are .*train"),
        ("tfds:wiki40b/ja:train[", "no split"),
        ("tfds:wiki40b/xx", "not prepared in .*gsutil -m cp -r"),
        ("tfds:wiki40b/ja:2.0.0", "not prepared in"),
        ("tfds:", "write it as tfds:wiki40b/ja"),
    ],
)
def test_what_is_refused(prepared: str, source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_corpus([source], prepared)


def test_missing_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow_datasets as tfds

    with pytest.raises(BadInput, match=r"--tfds_data_dir: no directory .*none"):
        open_corpus(["tfds:wiki40b/ja"], f"{tmp_path}/none")
    with pytest.raises(BadInput, match="not prepared in"):
        open_corpus(["tfds:wiki40b/ja"], str(tmp_path))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds_source, "_PUBLIC_URL", "http://127.0.0.1:1/datasets")
    with pytest.raises(BadInput, match=r"cannot be reached .*--tfds_data_dir=DIR"):
        open_corpus(["tfds:wiki40b/ja"])


_READ = """
from bigbird_ja.text import corpus
read = corpus.open_corpus(["tfds:wiki40b/ja"])
print(read.sources, sum(1 for _ in read.texts()))
"""


@pytest.mark.nightly
def test_the_public_copy_is_read_where_it_answers(
    prepared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeGcs() as fake:
        fake.create_bucket("tfds-data")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake.env["STORAGE_EMULATOR_HOST"])
        for path in Path(prepared).rglob("*.*"):
            if path.is_file():
                relative = path.relative_to(prepared)
                storage.upload(str(path), f"gs://tfds-data/datasets/{relative}")
        env = fake.environ(
            SSL_CERT_FILE=fake.env["CURL_CA_BUNDLE"], TFDS_DATA_DIR=str(tmp_path / "none")
        )
        done = subprocess.run(
            [sys.executable, "-c", _READ], env=env, cwd=ROOT,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.stdout.strip() == "['tfds:wiki40b/ja:1.3.0:train'] 36", done.stderr
