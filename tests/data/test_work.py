"""Interrupted work is resumed with the same bytes; nothing that `make-data` did not make goes."""

from __future__ import annotations

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


# --- interrupted work is resumed ---


@pytest.mark.parametrize(
    ("place", "survives"), [("disk", 0), ("disk", 5), ("bucket", 3), ("bucket", 8)]
)
def test_stopped_after_any_file_it_continues_with_the_same_bytes(
    tmp_path, bucket, request_of, monkeypatch, place, survives
):
    output = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    monkeypatch.setattr(blocks, "_BLOCK_CHARACTERS", 3000)
    monkeypatch.setattr(blocks, "_CHARACTERS_PER_POSITION", 1)
    request = request_of(output)
    written: list[str] = []

    def noted(function, argument):
        def write(*arguments):
            if len(written) == survives:
                raise Killed
            written.append(str(arguments[argument]))
            return function(*arguments)

        return write

    monkeypatch.setattr(blocks, "write_block", noted(blocks.write_block, 0))
    monkeypatch.setattr(shards, "write_shard", noted(shards.write_shard, 3))
    with pytest.raises(Killed):
        build.make_data(request)
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)
    before, survives = list(written), 1_000
    resumed, _ = build.make_data(request)
    assert len([path for path in written[len(before) :] if path in before]) <= 1  # was not noted
    whole, _ = build.make_data(request_of(tmp_path / "whole"))
    assert resumed.fingerprint == whole.fingerprint and verify.fast_check(output) == resumed
    assert not any(name.startswith(work.NAME) for name in storage.list_tree(output))


def test_sigkill_at_random_instants_then_the_same_bytes(
    tmp_path, sample_corpus, tokenizer_path, run_cli
):
    flags = [
        f"--input={sample_corpus}=1.5", f"--tokenizer={tokenizer_path}", "--seq_length=128",
        "--max_predictions_per_seq=20", "--num_shards=16", "--num_workers=2",
        "--masking=static", "--dupe_factor=10",
    ]  # fmt: skip
    whole, output = str(tmp_path / "whole"), str(tmp_path / "killed")
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
    ("place", "after", "overwrite_again"),
    [("disk", 0, True), ("disk", 2, False), ("bucket", 1, True)],
)
def test_a_kill_while_shards_are_moved_into_place(
    tmp_path, bucket, request_of, monkeypatch, place, after, overwrite_again
):
    output = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    build.make_data(request_of(output, num_shards=4))
    replacing = request_of(output, num_shards=2, seed=5, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "run_all", lambda tasks, *_: [task() for task in tasks])
        stopped(patch, replacing, storage, "rename", after)
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)
    new, _ = build.make_data(dataclasses.replace(replacing, overwrite=overwrite_again))
    assert verify.fast_check(output) == new
    whole, _ = build.make_data(request_of(tmp_path / "whole", num_shards=2, seed=5))
    assert whole.fingerprint == new.fingerprint
    names = {shard.name for shard in new.train_shards + new.eval_shards}
    assert set(storage.list_tree(output)) == names | {"manifest.json", "tokenizer.model", MARK}


def test_unfinished_work_of_other_settings_or_another_version_is_refused(
    tmp_path, request_of, monkeypatch
):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output))
    with pytest.raises(BadInput, match="unfinished work of other settings: --seed"):
        build.make_data(request_of(output, seed=2))
    settings = output / work.NAME / "settings.json"
    text = settings.read_text()
    settings.write_text(json.dumps(json.loads(text)["spec"]))
    with pytest.raises(BadInput, match=r"settings.json: written by an unreleased version"):
        build.make_data(request_of(output))
    settings.write_text(text)
    build.make_data(request_of(output, seed=2, overwrite=True))


def test_a_block_that_was_damaged_is_packed_again(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output))
    path = next((output / work.NAME / "blocks").glob("train-*"))
    path.write_bytes(path.read_bytes()[:-1])
    made, _ = build.make_data(request_of(output))
    assert build.make_data(request_of(tmp_path / "whole"))[0].fingerprint == made.fingerprint


def test_a_failing_disk_is_reported(tmp_path, request_of, monkeypatch):
    monkeypatch.setattr(blocks, "read_block", lambda *_, **__: None)
    with pytest.raises(StorageError, match="does not keep"):
        build.make_data(request_of(tmp_path / "data"))


@pytest.mark.parametrize("refused", ["shard", "place", "manifest"])
def test_a_bucket_that_refuses_at_the_end_costs_no_finished_work(
    bucket, fake_gcs, request_of, tmp_path, monkeypatch, refused
):
    build.make_data(request_of(f"{bucket}/first"))
    uploads = sum("/upload/" in line["request"] for line in fake_gcs.log(clear=True))
    if refused == "place":
        fake_gcs.fault("rewriteTo", "status", code=400, times=-1)
    else:
        passing = {"shard": 6, "manifest": uploads - 1}[refused]
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


# --- one process at a time ---


def test_two_at_once_and_the_second_is_refused(tmp_path):
    with (
        work.exclusive(str(tmp_path)),
        pytest.raises(BadInput, match="is making data"),
        work.exclusive(str(tmp_path)),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_no_manifest_is_written_after_the_lease_was_lost(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"

    def robbed():
        path = output / work.LOCK_NAME
        taken = {**json.loads(path.read_text()), "host": "elsewhere", "id": "x"}
        path.write_text(json.dumps(taken))

    after_writing(monkeypatch, robbed)
    with pytest.raises(LeaseLost, match="on host elsewhere has taken over"):
        build.make_data(request_of(output))
    assert not (output / "manifest.json").exists() and (output / work.LOCK_NAME).exists()


# --- only what make-data made is replaced or removed ---


def after_writing(monkeypatch, act):
    """Calls `act` when all shards are written and none is in place."""
    whole = build._write_shards

    def then_act(*arguments):
        made = whole(*arguments)
        act()
        return made

    monkeypatch.setattr(build, "_write_shards", then_act)


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


def test_files_that_the_user_put_into_our_folder_stay(tmp_path, request_of, monkeypatch):
    output = tmp_path / "data"
    stopped(monkeypatch, request_of(output))
    mine = {"notes.txt": b"mine", "blocks/mine.block": b"mine"}
    for name, content in mine.items():
        (output / work.NAME / name).write_bytes(content)
    build.make_data(request_of(output))
    assert tree(output / work.NAME) == mine


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("disk", "train-00000-of-00002.tfrecord"),
        ("bucket", "notes/mine.txt"),
        ("disk", "notes.txt"),
        ("disk", "tokenizer.model"),
        ("disk", "manifest.json"),
    ],
)
def test_a_folder_that_others_made_is_refused(bucket, request_of, tmp_path, place, name):
    output = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    storage.make_directory(output)
    storage.write_bytes(f"{output}/{name}", b"{}")
    for overwrite in (True, False):
        with pytest.raises(BadInput, match=f"{name.partition('/')[0]}|records of another program"):
            build.make_data(request_of(output, overwrite=overwrite))
    assert storage.list_tree(output) == [name] and storage.read_bytes(f"{output}/{name}") == b"{}"


def test_what_another_command_made_is_refused(tmp_path, request_of):
    Owned.create(str(tmp_path), "run")
    with pytest.raises(BadInput, match=r"what another command of bigbird-ja made \(run\)"):
        build.make_data(request_of(tmp_path))


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_foreign_files_that_come_during_the_run_are_kept(
    tmp_path, bucket, request_of, monkeypatch, place
):
    output = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    request = request_of(output, num_shards=2)
    names = ("train-00001-of-00002.tfrecord", "tokenizer.model", "manifest.json")

    def come():
        for name in names:
            storage.write_bytes(f"{output}/{name}", b"mine")

    after_writing(monkeypatch, come)
    manifest, _ = build.make_data(request)
    assert verify.fast_check(output) == manifest
    for name in names:
        assert storage.read_bytes(f"{output}/{name}.yours-1") == b"mine"


def test_a_shard_in_a_data_set_that_is_replaced_is_kept_where_it_was_changed(tmp_path, request_of):
    output = tmp_path / "data"
    request = request_of(output, num_shards=4)
    made, _ = build.make_data(request)
    changed, lost = (output / shard.name for shard in made.train_shards[:2])
    mine = changed.read_bytes()[::-1]
    changed.write_bytes(mine)
    lost.unlink()
    with pytest.raises(BadInput, match=r"is missing"):
        build.make_data(request)
    edited = (output / "manifest.json").read_text().replace('"seed": 12345', '"seed": 1')
    (output / "manifest.json").write_text(edited)
    with pytest.raises(BadInput, match="changed after it was written"):
        build.make_data(request)
    new, _ = build.make_data(request_of(output, num_shards=2, overwrite=True))
    assert verify.fast_check(str(output)) == new
    assert (output / f"{changed.name}.yours-1").read_bytes() == mine
    assert (output / "manifest.json.yours-1").read_text() == edited
    again, _ = build.make_data(dataclasses.replace(request, overwrite=True))
    assert again == made and len(list(output.glob("*.yours-*"))) == 2


def test_an_edited_mark_removes_nothing(tmp_path, request_of):
    output = tmp_path / "data"
    build.make_data(request_of(output, num_shards=4))
    (output / "mine.txt").write_text("mine")
    text = (output / MARK).read_text()
    (output / MARK).write_text(text.replace("tokenizer.model", "mine.txt"))
    before = tree(output)
    with pytest.raises(BadInput, match="edited or damaged"):
        build.make_data(request_of(output, num_shards=2, overwrite=True))
    assert tree(output) == before


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
    (output / "mine.tfrecord").write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"mine\.tfrecord"):
        build.make_data(replacing)
    (output / "mine.tfrecord").unlink()
    new, was_there = build.make_data(replacing)
    assert not was_there and len(new.train_shards) == 2 and verify.fast_check(str(output)) == new
    assert not (output / work.NAME).exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_bad_text_leaves_what_was_there(tmp_path, request_of, tokenizer_path, is_new):
    output = tmp_path / "data"
    if not is_new:
        build.make_data(request_of(output))
    before = tree(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    with pytest.raises(BadInput, match="51"):
        build.make_data(making.request(str(bad), tokenizer_path, str(output), overwrite=True))
    bad.unlink()
    assert tree(tmp_path) == before and output.exists() != is_new


def test_an_output_that_overlaps_with_the_input_is_refused(tmp_path, corpus, tokenizer_path):
    inside = tmp_path / "data"
    inside.mkdir()
    shutil.copy(corpus, inside / "c.jsonl")
    with pytest.raises(BadInput, match=r"--output_dir.* overlaps with --input"):
        build.make_data(making.request(str(inside / "c.jsonl"), tokenizer_path, str(inside)))
    assert os.listdir(inside) == ["c.jsonl"]
