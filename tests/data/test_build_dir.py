"""`make-data` resumes interrupted work to the same bytes, and keeps files that it did not write."""

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, build_dir, check, shards
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import files
from bigbird_ja.storage.disk import TEMPORARY_PREFIX
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.storage.ownership import MANIFEST_NAME, Owned
from tests.data import making

# The function that writes a block, and the function that writes a shard.
WRITING = ((storage, "write_bytes"), (shards, "write_shard"))


class Killed(BaseException):
    """Exception in place of SIGKILL. No code of the package catches it."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write a corpus of 60 short documents, and return its path."""
    texts = [f"吾輩は猫である。名前はまだ{i}無い。" * (5 + i % 7) for i in range(60)]
    return making.write_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl", texts)


@pytest.fixture
def request_of(corpus, tokenizer_path, tmp_path, monkeypatch):
    """Return a function that makes a `make-data` request for an output and changed settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda output, **changes: making.request(corpus, tokenizer_path, str(output), **changes)


@pytest.fixture
def output(request, tmp_path):
    """Return a path for a data set. With the parameter "bucket" it is on gs://, else on disk."""
    if getattr(request, "param", "disk") == "bucket":
        return f"{request.getfixturevalue('bucket')}/data"
    return str(tmp_path / "data")


def make(request):
    """Build the data set of a request, and return its manifest."""
    return build.make_data(request)[0]


def make_until(after, request, *functions):
    """Build a data set, and raise `Killed` after `after` calls of the given functions.

    Returns:
        A list of the paths that were passed to each call.
    """
    calls = []

    def counted(function):
        def call(*arguments):
            if len(calls) == after:
                raise Killed
            calls.append([each for each in arguments if isinstance(each, str)])
            return function(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for place, name in functions:
            patch.setattr(place, name, counted(getattr(place, name)))
        build.make_data(request)
    return calls


def assert_unfinished(output):
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)


# --- interrupted work is resumed ---


@pytest.mark.parametrize(
    ("output", "survive"),
    [("disk", 0), ("disk", 5), ("bucket", 3), ("bucket", 8)],
    indirect=["output"],
)
def test_make_data_resumes_after_any_file_with_the_same_bytes(
    tmp_path, output, request_of, monkeypatch, survive
):
    monkeypatch.setattr(blocks, "_BLOCK_CHARACTERS", 3000)
    monkeypatch.setattr(blocks, "_CHARACTERS_PER_POSITION", 1)
    before = make_until(survive, request_of(output), *WRITING)
    assert_unfinished(output)
    # A kill may leave an incomplete temporary file.
    if not storage.is_remote(output):
        name = f"{TEMPORARY_PREFIX}train-00000-of-00002.tfrecord~0123abcd"
        Path(output, name).write_bytes(b"")
    assert (tmp_path / "cache/bigbird-ja").exists() == storage.is_remote(output)
    after = make_until(1_000, request_of(output), *WRITING)
    # A kill can leave one finished file that is not recorded yet. This file is written again.
    assert len([path for path in after if path in before]) <= 1
    whole = make(request_of(tmp_path / "whole"))
    assert check.check_files(output).fingerprint == whole.fingerprint
    assert not any(name.startswith(build_dir.NAME) for name in storage.list_files(output))
    assert not os.path.exists(f"{output}/{build_dir.NAME}")


@pytest.mark.parametrize(
    ("output", "function", "after", "overwrite_again"),
    [
        ("disk", (blocks, "make_rows"), 1, True),
        ("disk", (shards, "write_shard"), 1, True),
        ("disk", (files, "rename"), 1, False),
        ("bucket", (files, "rename"), 1, True),
    ],
    indirect=["output"],
)
def test_a_kill_during_a_replacement_loses_no_data_set(
    tmp_path, output, request_of, monkeypatch, function, after, overwrite_again
):
    """Keep the old data set until the new text is packed, and then rename the old data set aside.

    Each case consists of the place of the output (disk or bucket), a function, the number of calls
    of this function before the kill, and whether a rerun needs --overwrite again.
    """
    monkeypatch.setattr(files, "run_all", lambda tasks, *_: [task() for task in tasks])
    old = make(request_of(output, num_shards=4))
    storage.write_bytes(f"{output}/notes.txt", b"mine")
    replacing = request_of(output, num_shards=2, seed=5, overwrite=True)
    make_until(after, replacing, function)
    if function[0] in (shards, files):
        assert_unfinished(output)
    else:
        assert build.make_data(request_of(output, num_shards=4)) == (old, True)
    new = make(dataclasses.replace(replacing, overwrite=overwrite_again))
    assert check.check_files(output) == new
    assert make(request_of(tmp_path / "whole", num_shards=2, seed=5)).fingerprint == new.fingerprint
    names = {shard.name for shard in new.train_shards + new.eval_shards}
    whole = {"manifest.json", "tokenizer.model", MANIFEST_NAME}
    assert set(storage.list_tree(output)) == names | whole | {"notes.txt"}
    assert storage.read_bytes(f"{output}/notes.txt") == b"mine"
    assert whole <= set(storage.list_tree(f"{output}.replaced-1"))
    assert manifest_lib.load(f"{output}.replaced-1") == old
    moved = [
        name
        for number in (1, 2, 3)
        for name in storage.list_tree(f"{output}.replaced-{number}")
        if name.endswith(".tfrecord")
    ]
    assert sorted(moved) == sorted(shard.name for shard in old.every_shard), "none is deleted"


def test_unfinished_work_of_other_settings_or_another_version_is_refused(output, request_of):
    make_until(1, request_of(output), *WRITING)
    with pytest.raises(BadInput, match=r"unfinished work of other settings \(`seed` 12345 there"):
        make(request_of(output, seed=2))
    settings = Path(output, build_dir.NAME, "settings.json")
    text = settings.read_text()
    settings.write_text(json.dumps(json.loads(text)["spec"]))
    with pytest.raises(BadInput, match=r"settings.json has format None"):
        make(request_of(output))
    settings.write_text(text)
    make(request_of(output, seed=2, overwrite=True))


@pytest.mark.parametrize(
    ("written", "place", "damage"),
    [
        (1, "blocks", lambda data: data[:-1]),
        (1, "blocks", lambda data: data[:3]),
        (1, "blocks", lambda data: data[: len(data) // 2] + bytes(-(-len(data) // 2))),
        (2, "..", lambda data: data[::-1]),
    ],
)
def test_a_damaged_block_or_shard_is_made_again(
    tmp_path, output, request_of, written, place, damage
):
    make_until(written, request_of(output), (shards, "write_shard"))
    path = next(Path(output, build_dir.NAME, place).glob("train-*"))
    path.write_bytes(damage(path.read_bytes()))
    make(request_of(output))
    make(request_of(tmp_path / "whole"))
    assert making.tree(output) == making.tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("requests", "skip", "code"),
    [("POST .*upload", 4, 401), ("POST .*upload", 12, 403), ("GET .*c.jsonl", 0, 403)],
)
def test_a_refusal_of_the_bucket_in_mid_run_is_74_and_keeps_the_work(
    bucket, fake_gcs, corpus, tokenizer_path, tmp_path, monkeypatch, requests, skip, code
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    storage.upload(corpus, f"{bucket}/c.jsonl")
    request = making.request(f"{bucket}/c.jsonl", tokenizer_path, f"{bucket}/data")
    fake_gcs.fault(requests, "status", code=code, skip=skip, times=-1)
    with pytest.raises(
        StorageError, match=r"access failed during the run .*: rerun the same command"
    ):
        make(request)
    fake_gcs.clear()
    assert_unfinished(f"{bucket}/data")
    assert storage.exists(f"{bucket}/data/{build_dir.NAME}/settings.json")
    assert make(request) == check.check_files(f"{bucket}/data")


# --- one process at a time ---


def test_no_manifest_is_written_after_the_lease_was_lost(output, request_of, monkeypatch):
    lock = Path(output, build_dir.LOCK_NAME)
    write_shards = build._write_shards

    def write_and_lose_the_lease(*arguments):
        made = write_shards(*arguments)
        lock.unlink()
        lock.write_text("another's")
        return made

    monkeypatch.setattr(build, "_write_shards", write_and_lose_the_lease)
    with pytest.raises(LeaseLost, match="another process has taken over"):
        make(request_of(output))
    assert_unfinished(output)
    assert lock.exists()


# --- only files that make-data wrote are replaced or removed ---


@pytest.mark.parametrize(
    ("put", "what"), [(shutil.copytree, "mine"), (shutil.copy, "mine/blocks/a.block")]
)
def test_foreign_files_in_the_work_folder_are_refused(tmp_path, output, request_of, put, what):
    (tmp_path / "mine/blocks").mkdir(parents=True)
    (tmp_path / "mine/blocks/a.block").write_text("mine")
    os.mkdir(output)
    put(tmp_path / what, Path(output, build_dir.NAME))
    before = making.tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="move it away"):
            make(request_of(output, overwrite=overwrite))
    assert making.tree(tmp_path) == before


def test_files_of_the_user_in_the_work_folder_are_kept(output, request_of):
    make_until(1, request_of(output), *WRITING)
    mine = {"notes.txt": b"mine", "blocks/mine.block": b"mine"}
    for name, content in mine.items():
        Path(output, build_dir.NAME, name).write_bytes(content)
    make(request_of(output))
    assert making.tree(Path(output, build_dir.NAME)) == mine


@pytest.mark.parametrize(
    ("output", "marked", "name", "message"),
    [
        ("disk", False, "train-00000-of-00002.tfrecord", "such as train-00000"),
        ("disk", False, "manifest.json", "manifest.json"),
        ("bucket", False, "notes/mine.txt", "notes"),
        ("disk", True, "train-00000-of-00002.tfrecord", "which make-data did not write"),
        ("bucket", True, "tokenizer.model", "which make-data did not write"),
    ],
    indirect=["output"],
)
def test_foreign_files_in_the_output_are_refused(output, request_of, marked, name, message):
    storage.make_directory(output)
    if marked:
        Owned.create(output, build_dir.KIND)
    storage.write_bytes(f"{output}/{name}", b"{}")
    for overwrite in (True, False):
        with pytest.raises(BadInput, match=message):
            make(request_of(output, overwrite=overwrite))
    assert storage.list_tree(output) == [*[MANIFEST_NAME] * marked, name]
    assert storage.read_bytes(f"{output}/{name}") == b"{}"


def test_a_finished_data_set_without_a_shard_is_refused(output, request_of):
    made = make(request_of(output))
    storage.delete(f"{output}/{made.train_shards[0].name}")
    with pytest.raises(BadInput, match="is missing"):
        make(request_of(output))


def test_bad_text_changes_nothing(tmp_path, output, request_of, tokenizer_path):
    make(request_of(output))
    before = making.tree(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    with pytest.raises(BadInput, match="51"):
        make(making.request(str(bad), tokenizer_path, output, overwrite=True))
    bad.unlink()
    assert making.tree(tmp_path) == before
