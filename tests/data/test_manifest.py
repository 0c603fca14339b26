from __future__ import annotations

import dataclasses
import json

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import verify
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import FIXED_BY_DATA
from testkit import synthetic


def test_comes_back_as_it_was_written(tmp_path):
    made = synthetic.write(tmp_path)
    assert manifest_lib.load(str(tmp_path)) == made
    assert manifest_lib.load(str(tmp_path)).fingerprint == made.fingerprint


def test_fixes_every_key_that_a_data_set_fixes(tmp_path):
    fixed = synthetic.write(tmp_path).as_settings()
    assert set(fixed) == set(FIXED_BY_DATA)


def test_the_fingerprint_depends_on_content_not_on_where_it_came_from(tmp_path):
    made = synthetic.write(tmp_path)
    same = dataclasses.replace(made, sources=("elsewhere",), created_by="another")
    assert same.fingerprint == made.fingerprint
    shard = dataclasses.replace(made.train_shards[0], sha256="0" * 64)
    other = dataclasses.replace(made, train_shards=(shard, *made.train_shards[1:]))
    assert other.fingerprint != made.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(seq_length=65),
        lambda v: v.update(version=99),
        lambda v: v.pop("train"),
        lambda v: v.update(unknown=1),
        lambda v: v["train_shards"][0].update(name="../evil"),
        lambda v: v["train_shards"][0].update(records=1),
        lambda v: v["special_ids"].pop("sep"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path, change):
    synthetic.write(tmp_path)
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(BadInput, match=r"manifest\.json|evil"):
        manifest_lib.load(str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"version": 1}', "\xff"])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=r"manifest\.json"):
        manifest_lib.load(str(tmp_path))


def test_no_manifest_says_what_to_run(tmp_path):
    with pytest.raises(BadInput, match="make-data"):
        manifest_lib.load(str(tmp_path))


def test_fast_check_finds_missing_extra_and_truncated_shards(tmp_path):
    made = synthetic.write(tmp_path)
    assert verify.fast_check(str(tmp_path)) == made
    path = tmp_path / made.train_shards[2].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(BadInput, match=f"{path.name} has"):
        verify.fast_check(str(tmp_path))
    path.unlink()
    with pytest.raises(BadInput, match=f"{path.name} is missing"):
        verify.fast_check(str(tmp_path))
    path.write_bytes(whole)
    (tmp_path / "train-00009-of-00010.tfrecord").write_bytes(b"")
    with pytest.raises(BadInput, match=r"train-00009-of-00010.* is not in the manifest"):
        verify.fast_check(str(tmp_path))


def places_in(value, path=()):
    """Every key of a JSON value, lists by their first entry."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield (*path, key)
            yield from places_in(inside, (*path, key))
    elif isinstance(value, list) and value:
        yield (*path, 0)
        yield from places_in(value[0], (*path, 0))


MAY_BE_ANYTHING = {"created_by", "sources"}  # said for people


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize(
    "value", [None, "x", -1, 0, 1.5, 10**30, True, [], {}, [[[]]], "remove"], ids=repr
)
def test_whatever_stands_at_a_key_the_manifest_is_read_or_refused_in_one_line(
    tmp_path, value, recomputed
):
    whole = json.loads(manifest_lib.to_json(synthetic.write(tmp_path)))
    read = []
    for path in [*places_in(whole)]:
        changed = json.loads(json.dumps(whole))
        inside = changed
        for key in path[:-1]:
            inside = inside[key]
        if value != "remove":
            inside[path[-1]] = value
        elif isinstance(inside, dict):
            del inside[path[-1]]
        else:
            inside.clear()
        if recomputed and "fingerprint" in changed:
            changed["fingerprint"] = manifest_lib._digest(changed)
        try:
            found = manifest_lib.from_json(json.dumps(changed).encode(), "manifest.json")
        except BadInput as error:
            assert str(error).count("\n") == 0 and "manifest.json" in str(error)
        else:
            assert manifest_lib.to_json(found)
            read += [path] if changed != whole else []
    if not recomputed:
        assert {path[0] for path in read} <= MAY_BE_ANYTHING, read


def test_a_manifest_nested_too_deeply_is_refused():
    deep = b'{"settings":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    with pytest.raises(BadInput, match="too deeply"):
        manifest_lib.from_json(deep, "manifest.json")
