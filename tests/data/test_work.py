"""Interrupted work is resumed with the same bytes; nothing that `make-data` did not make goes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, shards, verify, work
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.storage.ownership import MARK, Owned
from testkit import ROOT
from tests.data import making

WRITING = ((blocks, "write_block"), (shards, "write_shard"))


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A few documents."""
    texts = [f"吾輩は猫である。名前はまだ{i}無い。" * (5 + i % 7) for i in range(60)]
    return making.write_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl", texts)


@pytest.fixture
def request_of(corpus, tokenizer_path, tmp_path, monkeypatch):
    """`request_of(output, **changes)`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda output, **changes: making.request(corpus, tokenizer_path, str(output), **changes)


@pytest.fixture
def output(request, tmp_path):
    """A place for a data set: on disk, or by the parameter "bucket" on gs://."""
    if getattr(request, "param", "disk") == "bucket":
        return f"{request.getfixturevalue('bucket')}/data"
    return str(tmp_path / "data")


def make(request):
    """The data set of a request."""
    return build.make_data(request)[0]


def make_until(after, request, *functions):
    """Makes a data set until the functions have been called `after` times; the paths they got."""
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


def tree(directory):
    """Relative name to content of every file."""
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def assert_unfinished(output):
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)


# --- interrupted work is resumed ---


@pytest.mark.parametrize(
    ("output", "survive"),
    [("disk", 0), ("disk", 5), ("bucket", 3), ("bucket", 8)],
    indirect=["output"],
)
def test_stopped_after_any_file_it_continues_with_the_same_bytes(
    tmp_path, output, request_of, monkeypatch, survive
):
    monkeypatch.setattr(blocks, "_BLOCK_CHARACTERS", 3000)
    monkeypatch.setattr(blocks, "_CHARACTERS_PER_POSITION", 1)
    before = make_until(survive, request_of(output), *WRITING)
    assert_unfinished(output)
    after = make_until(1_000, request_of(output), *WRITING)
    assert len([path for path in after if path in before]) <= 1  # was not noted
    whole = make(request_of(tmp_path / "whole"))
    assert verify.fast_check(output).fingerprint == whole.fingerprint
    assert not any(name.startswith(work.NAME) for name in storage.list_tree(output))


def test_sigkill_at_random_instants_then_the_same_bytes(
    tmp_path, output, sample_corpus, tokenizer_path, run_cli
):
    flags = [
        f"--input={sample_corpus}=1.5", f"--tokenizer={tokenizer_path}", "--seq_length=128",
        "--max_predictions_per_seq=20", "--num_shards=16", "--num_workers=2",
        "--masking=static", "--dupe_factor=10",
    ]  # fmt: skip
    whole = str(tmp_path / "whole")
    assert run_cli("make-data", *flags, f"--output_dir={whole}").status == 0
    command = [sys.executable, "-m", "bigbird_ja", "make-data", *flags, f"--output_dir={output}"]
    rng = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        while process.poll() is None and not os.path.exists(os.path.join(output, work.NAME)):
            time.sleep(0.05)
        time.sleep(float(rng.uniform(0, 1.0)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if os.path.exists(os.path.join(output, "manifest.json")):
            break
    assert run_cli("make-data", *flags, f"--output_dir={output}").status == 0
    assert making.digests(output) == making.digests(whole)
    assert not os.path.exists(os.path.join(output, work.NAME))


@pytest.mark.parametrize(
    ("output", "function", "after", "overwrite_again"),
    [
        ("disk", (blocks, "make_rows"), 1, True),
        ("disk", (shards, "write_shard"), 1, True),
        ("disk", (storage, "rename"), 0, True),
        ("disk", (storage, "rename"), 2, False),
        ("bucket", (storage, "rename"), 1, True),
    ],
    indirect=["output"],
)
def test_a_kill_while_a_data_set_is_replaced(
    tmp_path, output, request_of, monkeypatch, function, after, overwrite_again
):
    """The old one is whole until all shards of the new one are there to be moved into place."""
    monkeypatch.setattr(storage, "run_all", lambda tasks, *_: [task() for task in tasks])
    old = make(request_of(output, num_shards=4))
    replacing = request_of(output, num_shards=2, seed=5, overwrite=True)
    make_until(after, replacing, function)
    if function[0] is storage:
        assert_unfinished(output)
    else:
        assert build.make_data(request_of(output, num_shards=4)) == (old, True)
    new = make(dataclasses.replace(replacing, overwrite=overwrite_again))
    assert verify.fast_check(output) == new
    assert make(request_of(tmp_path / "whole", num_shards=2, seed=5)).fingerprint == new.fingerprint
    names = {shard.name for shard in new.train_shards + new.eval_shards}
    assert set(storage.list_tree(output)) == names | {"manifest.json", "tokenizer.model", MARK}


def test_unfinished_work_of_other_settings_or_another_version_is_refused(output, request_of):
    make_until(1, request_of(output), *WRITING)
    with pytest.raises(BadInput, match="unfinished work of other settings: --seed"):
        make(request_of(output, seed=2))
    settings = Path(output, work.NAME, "settings.json")
    text = settings.read_text()
    settings.write_text(json.dumps(json.loads(text)["spec"]))
    with pytest.raises(BadInput, match=r"settings.json: written by an unreleased version"):
        make(request_of(output))
    settings.write_text(text)
    make(request_of(output, seed=2, overwrite=True))


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:3], lambda data: data[:-5] + b"xxxxx"],
    ids=["cut", "nearly empty", "changed"],
)
def test_a_block_that_was_damaged_is_packed_again(tmp_path, output, request_of, damage):
    make_until(1, request_of(output), (shards, "write_shard"))
    path = next(Path(output, work.NAME, "blocks").glob("train-*"))
    path.write_bytes(damage(path.read_bytes()))
    made = make(request_of(output))
    assert make(request_of(tmp_path / "whole")).fingerprint == made.fingerprint


def test_a_failing_disk_is_reported(output, request_of, monkeypatch):
    monkeypatch.setattr(blocks, "read_block", lambda *_, **__: None)
    with pytest.raises(StorageError, match="does not keep"):
        make(request_of(output))


@pytest.mark.parametrize("refused", ["shard", "place", "manifest"])
def test_a_bucket_that_refuses_at_the_end_costs_no_finished_work(
    bucket, fake_gcs, request_of, tmp_path, monkeypatch, refused
):
    make(request_of(f"{bucket}/first"))
    uploads = sum("/upload/" in line["request"] for line in fake_gcs.log(clear=True))
    if refused == "place":
        fake_gcs.fault("rewriteTo", "status", code=400, times=-1)
    else:
        passing = {"shard": 6, "manifest": uploads - 1}[refused]
        fake_gcs.fault("/upload/", "status", code=400, times=-1, skip=passing)
    request = request_of(f"{bucket}/data")
    with pytest.raises(BadInput, match="refuses the request"):
        make(request)
    fake_gcs.clear()
    assert_unfinished(f"{bucket}/data")
    monkeypatch.setattr(blocks, "make_rows", None)  # not needed any more
    if refused != "shard":
        monkeypatch.setattr(shards, "write_shard", None)
    assert make(request) == verify.fast_check(f"{bucket}/data")
    assert tree(tmp_path / "cache") == {}


# --- one process at a time ---


def test_two_at_once_and_the_second_is_refused(output, request_of):
    os.mkdir(output)
    with work.exclusive(output), pytest.raises(BadInput, match="is making data"):
        make(request_of(output))
    assert os.listdir(output) == []


def after_writing(monkeypatch, act):
    """Calls `act` when all shards are written and none is in place."""
    whole = build._write_shards

    def then_act(*arguments):
        made = whole(*arguments)
        act()
        return made

    monkeypatch.setattr(build, "_write_shards", then_act)


def test_no_manifest_is_written_after_the_lease_was_lost(output, request_of, monkeypatch):
    lock = Path(output, work.LOCK_NAME)

    def robbed():
        taken = {**json.loads(lock.read_text()), "host": "elsewhere", "id": "x"}
        lock.write_text(json.dumps(taken))

    after_writing(monkeypatch, robbed)
    with pytest.raises(LeaseLost, match="on host elsewhere has taken over"):
        make(request_of(output))
    assert_unfinished(output)
    assert lock.exists()


# --- only what make-data made is replaced or removed ---


@pytest.mark.parametrize("what", ["folder", "link", "file"])
def test_a_folder_of_the_users_in_the_place_of_ours_is_refused(tmp_path, output, request_of, what):
    place, elsewhere = Path(output, work.NAME), tmp_path / "elsewhere"
    (elsewhere / "blocks").mkdir(parents=True)
    (elsewhere / "blocks" / "a.block").write_text("mine")
    os.mkdir(output)
    if what == "folder":
        shutil.copytree(elsewhere, place)
    elif what == "link":
        place.symlink_to(elsewhere)
    else:
        place.write_text("mine")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="move it away"):
            make(request_of(output, overwrite=overwrite))
    assert tree(tmp_path) == before


def test_files_that_the_user_put_into_our_folder_stay(output, request_of):
    make_until(1, request_of(output), *WRITING)
    mine = {"notes.txt": b"mine", "blocks/mine.block": b"mine"}
    for name, content in mine.items():
        Path(output, work.NAME, name).write_bytes(content)
    make(request_of(output))
    assert tree(Path(output, work.NAME)) == mine


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("disk", "train-00000-of-00002.tfrecord"),
        ("disk", "manifest.json"),
        ("bucket", "notes/mine.txt"),
    ],
    indirect=["output"],
)
def test_a_folder_that_others_made_is_refused(output, request_of, name):
    storage.make_directory(output)
    storage.write_bytes(f"{output}/{name}", b"{}")
    for overwrite in (True, False):
        with pytest.raises(BadInput, match=f"{name.partition('/')[0]}|records of another program"):
            make(request_of(output, overwrite=overwrite))
    assert storage.list_tree(output) == [name] and storage.read_bytes(f"{output}/{name}") == b"{}"


@pytest.mark.parametrize("name", ["train-00000-of-00002.tfrecord", "tokenizer.model"])
def test_a_file_that_the_mark_does_not_list_is_refused(output, request_of, name):
    os.mkdir(output)
    Owned.create(output, work.KIND)
    Path(output, name).write_bytes(b"mine")
    with pytest.raises(BadInput, match=f"{name}, and nothing shows that make-data made it"):
        make(request_of(output, overwrite=True))
    assert tree(output).keys() == {name, MARK} and tree(output)[name] == b"mine"


@pytest.mark.parametrize("output", ["disk", "bucket"], indirect=True)
def test_foreign_files_that_come_during_the_run_are_kept(output, request_of, monkeypatch):
    names = ("train-00001-of-00002.tfrecord", "tokenizer.model", "manifest.json")

    def come():
        for name in names:
            storage.write_bytes(f"{output}/{name}", b"mine")

    after_writing(monkeypatch, come)
    assert make(request_of(output, num_shards=2)) == verify.fast_check(output)
    for name in names:
        assert storage.read_bytes(f"{output}/{name}.yours-1") == b"mine"


def test_a_shard_in_a_data_set_that_is_replaced_is_kept_where_it_was_changed(output, request_of):
    request = request_of(output, num_shards=4)
    made = make(request)
    changed, lost = (Path(output, shard.name) for shard in made.train_shards[:2])
    mine = changed.read_bytes()[::-1]
    changed.write_bytes(mine)
    lost.unlink()
    with pytest.raises(BadInput, match=r"is missing"):
        make(request)
    manifest = Path(output, "manifest.json")
    edited = manifest.read_text().replace('"seed": 12345', '"seed": 1')
    manifest.write_text(edited)
    assert make(request_of(output, num_shards=2, overwrite=True)) == verify.fast_check(output)
    kept = {name: data for name, data in tree(output).items() if "yours" in name}
    assert kept == {
        f"{changed.name}.yours-1": mine,
        "manifest.json.yours-1": edited.encode(),
    }
    assert make(dataclasses.replace(request, overwrite=True)) == made


@pytest.mark.parametrize("is_new", [True, False])
def test_bad_text_leaves_what_was_there(tmp_path, output, request_of, tokenizer_path, is_new):
    if not is_new:
        make(request_of(output))
    before = tree(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    with pytest.raises(BadInput, match="51"):
        make(making.request(str(bad), tokenizer_path, output, overwrite=True))
    bad.unlink()
    assert tree(tmp_path) == before and os.path.exists(output) != is_new


def test_an_output_that_overlaps_with_the_input_is_refused(output, corpus, tokenizer_path):
    os.mkdir(output)
    inside = shutil.copy(corpus, output)
    with pytest.raises(BadInput, match=r"--output_dir.* overlaps with --input"):
        make(making.request(inside, tokenizer_path, output))
    assert os.listdir(output) == [os.path.basename(inside)]
