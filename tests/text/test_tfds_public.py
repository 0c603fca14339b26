"""`tfds:wiki40b/ja` without a directory: the public copy, played by the bucket on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.text import sample, sample_tfds
from testkit import ROOT
from testkit.fakes.gcs_process import FakeGcs

_READ = """
from bigbird_ja.text import corpus
read = corpus.open_corpus(["tfds:wiki40b/ja"])
print(read.sources, sum(1 for _ in read.documents()))
"""


@pytest.mark.nightly
def test_the_public_copy_is_read_where_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path / "prepared")
    sample_tfds.write_tfds(directory, sample.documents(60, 1, 600), 60, "a test")
    with FakeGcs(("tfds-data",)) as fake:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake.env["STORAGE_EMULATOR_HOST"])
        for parent, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(parent, name)
                relative = os.path.relpath(path, directory)
                storage.upload(path, f"gs://tfds-data/datasets/{relative}")
        env = fake.environ(
            SSL_CERT_FILE=fake.env["CURL_CA_BUNDLE"], TFDS_DATA_DIR=str(tmp_path / "none")
        )
        done = subprocess.run(
            [sys.executable, "-c", _READ], env=env, cwd=ROOT, capture_output=True, text=True,
            timeout=240,
        )  # fmt: skip
    assert done.stdout.strip() == "['tfds:wiki40b/ja:1.3.0:train'] 54", done.stderr
