"""`manifest.json` is read as it was written, and a changed file is refused in one line."""

import dataclasses
import json

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.storage.decode import FORMAT_VERSION
from testkit import synthetic


def test_a_manifest_round_trips_and_its_fingerprint_covers_the_content(tmp_path):
    made = synthetic.write(tmp_path)
    assert manifest_lib.load(str(tmp_path)) == made
    same = dataclasses.replace(made, sources=("elsewhere",), created_by="another")
    assert same.fingerprint == made.fingerprint
    shard = dataclasses.replace(made.train_shards[0], sha256="0" * 64)
    other = dataclasses.replace(made, train_shards=(shard, *made.train_shards[1:]))
    assert other.fingerprint != made.fingerprint
    stripped = dataclasses.replace(made, strip_markers=True)
    assert stripped.fingerprint != made.fingerprint
    counted = dataclasses.replace(made.statistics, duplicates=7, unknown_characters="々")
    assert dataclasses.replace(made, statistics=counted).fingerprint == made.fingerprint


OUTSIDE = {"name": "../x", "records": 1, "bytes": 1, "sha256": "", "crc32c": ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_length": 65}, "changed after it was written"),
        ({"unknown": 1}, "changed after it was written"),
        ({"format_version": "99"}, f"has format '99', but this version reads {FORMAT_VERSION}"),
        ({"train": None}, "required field `train`"),
        ({"train_shards": [OUTSIDE]}, r"\.\./x"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path, change, message):
    synthetic.write(tmp_path)
    path = tmp_path / "manifest.json"
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    with pytest.raises(BadInput, match=message):
        manifest_lib.load(str(tmp_path))
