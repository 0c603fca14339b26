"""`manifest.json` is read back as it was written; anything else is refused in one line."""

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
    # Stated only where it is so: earlier versions' manifests lack it.
    assert "strip_markers" not in manifest_lib.to_json(made)
    stripped = dataclasses.replace(made, strip_markers=True)
    data = manifest_lib.to_json(stripped).encode()
    assert manifest_lib.from_json(data, "here") == stripped
    assert stripped.fingerprint != made.fingerprint


def test_a_manifest_with_counts_by_corpus_of_an_earlier_version_is_read(tmp_path):
    manifest = synthetic.write(tmp_path)
    before = dataclasses.replace(manifest, corpora=({"name": "/p/x.jsonl", "weight": 2.0},))
    assert manifest_lib.from_json(manifest_lib.to_json(before).encode(), "m") == before
    moved = dataclasses.replace(manifest, corpora=({"name": "/q/x.jsonl", "weight": 2.0},))
    assert before.fingerprint == moved.fingerprint != manifest.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_length": 65}, "changed after it was written"),
        ({"unknown": 1}, "changed after it was written"),
        ({"format_version": "99"}, f"has format '99', this version reads {FORMAT_VERSION}"),
        ({"train": None}, "required field `train`"),
        ({"train_shards": [{"name": "../x", "records": 1, "bytes": 1, "sha256": ""}]}, r"\.\./x"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path, change, message):
    synthetic.write(tmp_path)
    path = tmp_path / "manifest.json"
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    with pytest.raises(BadInput, match=message):
        manifest_lib.load(str(tmp_path))
