"""Nothing that `make-data` did not make is removed or replaced, and what it made is kept."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, shards, verify, work
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import BadInput, StorageError
from testkit import synthetic
from tests.data import making


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A few documents."""
    texts = [f"吾輩は猫である。名前はまだ{i}無い。" * (5 + i % 7) for i in range(60)]
    return making.write_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl", texts)


@pytest.fixture
def request_of(corpus, tokenizer_path):
    """`request_of(output, **changes)`."""
    return lambda output, **changes: making.request(corpus, tokenizer_path, str(output), **changes)


def tree(directory: Path) -> dict[str, bytes]:
    """Relative name to content of every file."""
    return {
        str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()
    }


def stopped(monkeypatch, request, place=shards, name="write_shard", after=1, error=Killed):
    """Runs a request until a function has been called `after` times."""
    whole, calls = getattr(place, name), []

    def counting(*arguments, **more):
        calls.append(arguments)
        if len(calls) > after:
            raise error
        return whole(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, counting)
        with pytest.raises(error):
            build.make_data(request)


def test_a_work_dir_keeps_all_that_was_in_it(tmp_path, request_of, tokenizer_path):
    mine = tmp_path / "work"
    (mine / "sub").mkdir(parents=True)
    (mine / "thesis.txt").write_text("years")
    (mine / "sub" / "blocks.json").write_text("{}")
    before = tree(mine)
    output = tmp_path / "data"
    for changes in ({}, {}, {"overwrite": True, "seed": 3}):
        build.make_data(request_of(output, work_dir=str(mine), **changes))
        assert tree(mine) == before
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    request = making.request(str(bad), tokenizer_path, str(tmp_path / "other"), work_dir=str(mine))
    with pytest.raises(BadInput, match="51"):
        build.make_data(request)
    assert tree(mine) == before and sorted(os.listdir(mine)) == ["sub", "thesis.txt"]
    assert not (tmp_path / "other").exists()


def test_two_outputs_share_a_work_dir(tmp_path, request_of, monkeypatch):
    shared = str(tmp_path / "work")
    first = request_of(tmp_path / "a", work_dir=shared)
    stopped(monkeypatch, first)
    build.make_data(request_of(tmp_path / "b", work_dir=shared, seed=2))
    build.make_data(first)
    build.make_data(request_of(tmp_path / "c"))
    assert making.digests(str(tmp_path / "a")) == making.digests(str(tmp_path / "c"))
    assert os.listdir(shared) == []


@pytest.mark.parametrize("what", ["folder", "link", "file"])
def test_a_folder_of_the_users_in_the_place_of_ours_is_refused(tmp_path, request_of, what):
    place, elsewhere = tmp_path / "data" / work.NAME, tmp_path / "elsewhere"
    (elsewhere / "blocks").mkdir(parents=True)
    (elsewhere / "blocks" / "a.block").write_text("mine")
    place.parent.mkdir()
    if what == "folder":
        shutil.copytree(elsewhere, place)
    elif what == "link":
        place.symlink_to(elsewhere)
    else:
        place.write_text("mine")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="move it away"):
            build.make_data(request_of(tmp_path / "data", overwrite=overwrite))
    assert tree(tmp_path) == before


def test_what_the_user_put_into_our_folder_stays(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output))
    (output / work.NAME / "notes.txt").write_text("mine")
    build.make_data(request_of(output))
    assert tree(output / work.NAME) == {"notes.txt": b"mine"}


def test_foreign_files_are_refused_on_a_bucket_too(bucket, request_of, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    foreign = f"{bucket}/data/train-00000-of-00002.tfrecord"
    storage.write_bytes(foreign, b"not ours")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="which no make-data made"):
            build.make_data(request_of(f"{bucket}/data", overwrite=overwrite))
    assert storage.list_tree(f"{bucket}/data") == [storage.base_name(foreign)]
    assert storage.read_bytes(foreign) == b"not ours"


def test_a_tokenizer_of_another_make_is_not_replaced(tmp_path, request_of, tokenizer_path):
    output = tmp_path / "data"
    output.mkdir()
    (output / "tokenizer.model").write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"holds tokenizer\.model"):
        build.make_data(request_of(output))
    assert tree(output) == {"tokenizer.model": b"mine"}
    shutil.copy(tokenizer_path, output / "tokenizer.model")
    build.make_data(request_of(output))


def test_only_shards_of_ours_are_removed_at_the_end(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"
    build.make_data(request_of(output, num_shards=4))
    replacing = request_of(output, num_shards=2, overwrite=True)
    stopped(monkeypatch, replacing)
    (output / "mine.tfrecord").write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"mine\.tfrecord"):
        build.make_data(replacing)
    assert (output / "mine.tfrecord").read_bytes() == b"mine"


@pytest.mark.parametrize("place,name", [(shards, "write_shard"), (blocks, "make_rows")])
def test_the_old_data_set_is_whole_until_the_new_one_is(
    tmp_path, request_of, monkeypatch, place, name
):
    output = tmp_path / "data"
    old, _ = build.make_data(request_of(output, num_shards=4))
    replacing = request_of(output, num_shards=2, seed=5, overwrite=True)
    stopped(monkeypatch, replacing, place, name)
    assert verify.fast_check(str(output)) == old
    assert build.make_data(request_of(output, num_shards=4)) == (old, True)
    new, was_there = build.make_data(replacing)
    assert not was_there and len(new.train_shards) == 2 and verify.fast_check(str(output)) == new
    assert not (output / work.NAME).exists()


def test_new_text_that_is_bad_leaves_the_old_data_set(tmp_path, request_of, tokenizer_path):
    output = tmp_path / "data"
    old, _ = build.make_data(request_of(output))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    with pytest.raises(BadInput, match="51"):
        build.make_data(making.request(str(bad), tokenizer_path, str(output), overwrite=True))
    assert verify.fast_check(str(output)) == old


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("overwrite_again", [True, False])
def test_a_kill_while_shards_take_their_places(
    tmp_path, bucket, request_of, monkeypatch, place, after, overwrite_again
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    build.make_data(request_of(output, num_shards=4))
    replacing = request_of(output, num_shards=2, seed=5, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr("bigbird_ja.storage.storage.run_all", lambda tasks, *_: [t() for t in tasks])
        stopped(patch, replacing, storage, "rename", after)
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)
    again = dataclasses.replace(replacing, overwrite=overwrite_again)
    new, _ = build.make_data(again)
    assert verify.fast_check(output) == new
    whole, _ = build.make_data(request_of(tmp_path / "whole", num_shards=2, seed=5))
    assert whole.fingerprint == new.fingerprint
    named = {shard.name for shard in new.train_shards + new.eval_shards}
    assert set(storage.list_tree(output)) == named | {"manifest.json", "tokenizer.model"}


@pytest.mark.parametrize("kind", ["adopted", "foreign", "broken"])
def test_overwrite_replaces_only_what_make_data_made(tmp_path, request_of, kind):
    output = tmp_path / "data"
    made = synthetic.write(output, (4, 4))
    by = "" if kind == "foreign" else "bigbird-ja 0.1.0"
    made = dataclasses.replace(made, created_by=by, adopted=kind == "adopted")
    manifest_lib.save(made, str(output))
    if kind == "broken":
        (output / "manifest.json").write_text('{"version": ')
    before = tree(output)
    with pytest.raises(BadInput, match="nothing is replaced that make-data did not make"):
        build.make_data(request_of(output, overwrite=True))
    assert tree(output) == before


def test_a_data_set_that_was_edited_or_lost_a_shard_can_be_replaced(tmp_path, request_of):
    output = tmp_path / "data"
    made, _ = build.make_data(request_of(output))
    path = output / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 12345', '"seed": 1'))
    (output / made.train_shards[0].name).unlink()
    with pytest.raises(BadInput, match="changed after it was written"):
        build.make_data(request_of(output))
    assert build.make_data(request_of(output, overwrite=True))[0] == made


@pytest.mark.parametrize("refused", ["shard", "place", "tokenizer", "manifest"])
def test_a_bucket_that_refuses_at_the_end_costs_no_finished_work(
    bucket, fake_gcs, request_of, tmp_path, monkeypatch, refused
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.make_data(request_of(f"{bucket}/first"))
    uploads = sum("/upload/" in line["request"] for line in fake_gcs.log(clear=True))
    if refused == "place":
        fake_gcs.fault("rewriteTo", "status", code=400, times=-1)
    else:
        passing = {"shard": 6, "tokenizer": uploads - 2, "manifest": uploads - 1}[refused]
        fake_gcs.fault("/upload/", "status", code=400, times=-1, skip=passing)
    request = request_of(f"{bucket}/data")
    with pytest.raises(BadInput, match="refuses the request"):
        build.make_data(request)
    fake_gcs.clear()
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(f"{bucket}/data")
    monkeypatch.setattr(blocks, "make_rows", None)  # not needed any more
    if refused != "shard":
        monkeypatch.setattr(shards, "write_shard", None)
    manifest, _ = build.make_data(request)
    assert verify.fast_check(f"{bucket}/data") == manifest
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_block_that_was_damaged_is_packed_again(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output))
    path = next((output / work.NAME / "blocks").glob("train-*"))
    path.write_bytes(path.read_bytes()[:-1])
    made, _ = build.make_data(request_of(output))
    assert build.make_data(request_of(tmp_path / "whole"))[0].fingerprint == made.fingerprint


def test_work_of_earlier_versions_put_its_shards_in_their_places_at_once(
    tmp_path, request_of, monkeypatch
):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output), after=3)
    folder = output / work.NAME
    for path in (folder / "ready").iterdir():
        shutil.move(path, output / path.name)
    (folder / "ready").rmdir()
    (folder / "owned.json").unlink()
    unnoted = "train-00003-of-00004.tfrecord"  # a kill between a shard and its note
    (output / unnoted).write_bytes(b"in flight")
    made, _ = build.make_data(request_of(output))
    assert verify.fast_check(str(output)) == made
    assert build.make_data(request_of(tmp_path / "whole"))[0].fingerprint == made.fingerprint


def test_places_that_overlap_are_refused(tmp_path, corpus, tokenizer_path):
    inside = tmp_path / "data"
    inside.mkdir()
    shutil.copy(corpus, inside / "c.jsonl")
    with pytest.raises(BadInput, match=r"--output_dir.* overlaps with --input"):
        build.make_data(making.request(str(inside / "c.jsonl"), tokenizer_path, str(inside)))
    for place in (inside, inside / "work"):
        request = making.request(corpus, tokenizer_path, str(inside), work_dir=str(place))
        with pytest.raises(BadInput, match=r"--work_dir.* overlaps with --output_dir"):
            build.make_data(request)
    with pytest.raises(BadInput, match="not on this machine"):
        build.make_data(making.request(corpus, tokenizer_path, "x", work_dir="gs://b/work"))
    assert os.listdir(inside) == ["c.jsonl"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, request_of):
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "data" / work.LOCK_NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput, match="not a lock file of ours"):
        build.make_data(request_of(tmp_path / "data"))
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_failing_disk_is_said(tmp_path, request_of, monkeypatch):
    monkeypatch.setattr(blocks, "read_block", lambda *_, **__: None)
    with pytest.raises(StorageError, match="does not keep"):
        build.make_data(request_of(tmp_path / "data"))
