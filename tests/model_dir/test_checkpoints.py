"""Checkpoints on disk and on a bucket: saving, damage, kills during a save, retention."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.model_dir.checkpoints import SUFFIXES, CheckpointStore, Meta, select_removed
from bigbird_ja.model_dir.variables import write_variables
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.ownership import MANIFEST_NAME, FileVersion, Owned


class Killed(BaseException):
    """Raised in place of a SIGKILL between two files."""


class Run:
    """MODEL_DIR with its checkpoint store. `reports` contains the messages of the store."""

    def __init__(self, place, scratch):
        self.place, self.scratch = place, scratch
        self.reports = []

        def report(event, step, text):
            self.reports.append((event, step, text))

        owned = Owned.create(place, "run")
        self.store = CheckpointStore(place, str(scratch), report, owned=owned)

    def save(self, step, keep_last=3, keep_every=0):
        prefix = str(self.scratch / f"model.ckpt-{step}")
        values = {"a/b": np.full([5], step, np.float32), "global_step": np.int64(step)}
        write_variables(prefix, values)
        meta = Meta(step, "config", "data", 1.5, 100, 0, 0.0, step, 4)
        return self.store.publish(prefix, meta, keep_last, keep_every)

    def latest_good(self):
        found = self.store.find_latest_good(storage.list_files(self.place))
        self.store.repair()
        return found

    def latest(self):
        """Return the step of the newest intact checkpoint."""
        return self.latest_good().meta.step

    def names(self, start=""):
        return [n for n in storage.list_files(self.place) if n.startswith(start)]

    def read(self, name):
        return storage.read_bytes(storage.join(self.place, name))

    def overwrite(self, name, data):
        storage.write_bytes(storage.join(self.place, name), data)

    def delete(self, name):
        storage.delete(storage.join(self.place, name))

    def flip(self, name):
        data = bytearray(self.read(name))
        data[len(data) // 2] ^= 1
        self.overwrite(name, bytes(data))

    def edit(self, name, old, new):
        text = self.read(name).decode()
        assert old in text
        self.overwrite(name, text.replace(old, new, 1).encode())


@pytest.fixture
def run(base, tmp_path):
    (tmp_path / "scratch").mkdir()
    return Run(base, tmp_path / "scratch")


DATA, INDEX, SIDECAR = (f"model.ckpt-20{end}" for end in (*SUFFIXES, ".json"))
FILES = '"files": {'
OUTSIDE = FILES + '"../passwd": {"bytes": 1, "crc32c": "AAAAAA=="},'


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        (Run.flip, [DATA], r"the checksum of .*-20\.data-00000-of-00001 differs"),
        (Run.overwrite, [INDEX, b"x"], r"-20\.index has 1 bytes instead of \d+"),
        (Run.delete, [DATA], r"-20\.data-00000-of-00001 is missing"),
        # One digit of the metadata is changed, and the file is still valid JSON.
        (Run.edit, [SIDECAR, '"next_batch": 20', '"next_batch": 21'], ".*bigbird-ja.json states"),
        (Run.delete, [SIDECAR], r"its metadata \(.json\) is missing"),
    ],
)
def test_damaged_checkpoint_is_named_and_set_aside(run, change, how, words):
    run.save(10)
    run.save(20)
    change(run, *how)
    there = [name for name in (DATA, INDEX, SIDECAR) if name in run.names()]
    assert run.latest() == 10 and run.store.list_steps() == [10]
    ((event, step, text),) = run.reports
    assert (event, step) == ("set_aside", 20)
    start = r"checkpoint 20 is damaged and was set aside as damaged-model\.ckpt-20\.\*: .*"
    assert re.match(start + words, text)
    assert {f"damaged-{name}" for name in there} <= set(run.names())
    # The file `checkpoint`, which other programs read, lists the remaining checkpoints.
    state = run.read("checkpoint")
    assert b"ckpt-10" in state and b"ckpt-20" not in state
    assert run.latest() == 10 and len(run.reports) == 1


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        (Run.edit, [SIDECAR, FILES, OUTSIDE], r"-20\.json is damaged: it lists \.\./passwd, model"),
        (Run.edit, [SIDECAR, '"step": 20', '"step": 10'], "is damaged: it states step 10, not 20"),
        (Run.edit, [SIDECAR, '"time": 0.0', '"time": "x"'], r"json: damaged.*time"),
        (Run.edit, [SIDECAR, f',\n "format_version": "{FORMAT_VERSION}"', ""], "has format None"),
        (Run.edit, [SIDECAR, f'_version": "{FORMAT_VERSION}"', '_version": "9.0.0"'], "9.0.0"),
        (
            Run.edit,
            [SIDECAR, f'_version": "{FORMAT_VERSION}"', '_version": "0.1.0"'],
            "create it again",
        ),
    ],
)
def test_damaged_or_other_metadata_is_refused(run, change, how, words):
    run.save(20)
    change(run, *how)
    with pytest.raises(BadInput, match=words):
        CheckpointStore(run.place, str(run.scratch)).fetch(20)


def test_a_failed_save_leaves_nothing_of_itself(run, monkeypatch):
    run.save(10)
    before = sorted(run.names())
    write = storage.write_bytes

    def fail(path, data):
        if path.endswith("20.json"):
            raise StorageError("full")
        return write(path, data)

    monkeypatch.setattr(storage, "write_bytes", fail)
    with pytest.raises(StorageError, match="full"):
        run.save(20)
    assert sorted(run.names()) == before


def test_saving_removes_all_but_the_last_and_one_per_window(run):
    for step in (5, 10, 20, 25, 45, 50):
        run.save(step, keep_last=1, keep_every=20)
    assert run.store.list_steps() == [20, 45, 50]


@pytest.mark.parametrize("left", ["model.ckpt-", "checkpoint", "damaged-"])
def test_a_run_without_a_good_checkpoint_is_not_a_new_run(run, left):
    run.save(10)
    run.flip("model.ckpt-10.index")
    if left == "damaged-":  # An earlier start has renamed the checkpoint.
        for name in run.names("model.ckpt-"):
            storage.rename(f"{run.place}/{name}", f"{run.place}/damaged-{name}")
    for name in run.names():
        if not name.startswith((left, MANIFEST_NAME)):
            run.delete(name)
    words = r"contains no undamaged checkpoint \((.*)\): .*another `model_dir`"
    before = sorted(run.names())
    with pytest.raises(StorageError, match=words) as caught:
        run.latest_good()
    assert ("the checksum of" in str(caught.value)) == (left == "model.ckpt-")
    assert sorted(run.names()) == before


@pytest.mark.parametrize("number", range(1, 6))
def test_a_kill_between_any_two_files_leaves_the_one_before(run, number, monkeypatch):
    for step in (10, 20):
        run.save(step, keep_last=2)
    changes = 0

    def killed_after(call):
        def changed(*arguments):
            nonlocal changes
            # A killed process does not clean up.
            if changes >= number:
                raise Killed
            result = call(*arguments)
            changes += 1
            if changes >= number:
                raise Killed
            return result

        return changed

    # The changes are: data, index, metadata, `checkpoint`, and removals of the oldest checkpoint.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(storage, "take", killed_after(storage.take))
        patch.setattr(storage, "write_bytes", killed_after(storage.write_bytes))
        patch.setattr(Owned, "remove", killed_after(Owned.remove))
        run.save(30, keep_last=2)
    after = Run(run.place, run.scratch)
    assert after.latest() == (20 if number < 3 else 30)
    after.save(40, keep_last=2)
    assert after.latest() == 40
    assert len(after.store.list_steps()) == 2 and len(after.names("model.ckpt-")) == 6


def test_clean_up_after_a_kill_leaves_files_of_the_user(run):
    theirs, ours = (f"model.ckpt-{step}.data-00000-of-00001" for step in (5, 6))
    Owned.create(run.place, "run").note({ours: FileVersion.from_bytes(b"x")})
    for name in (theirs, ours):
        run.overwrite(name, b"x")
    after = Run(run.place, run.scratch)
    assert after.latest_good() is None
    assert [report[:2] for report in after.reports] == [("cleaned", 6)]
    assert [n for n in run.names() if n != MANIFEST_NAME] == [theirs]


def test_old_checkpoints_are_removed_by_the_manifest(run):
    for step in (10, 20, 30):
        run.save(step, keep_last=2)
    owned = Owned.load(run.place)
    assert set(owned.files) == set(run.names("model.ckpt-")) and len(owned.files) == 6
    # The manifest does not contain files that the user has restored.
    owned.forget(run.names("model.ckpt-30"))
    after = Run(run.place, run.scratch)
    after.save(40, keep_last=1)
    assert after.names("model.ckpt-20") == [] and len(after.names("model.ckpt-30")) == 3


@given(
    st.lists(st.integers(1, 500), unique=True, min_size=1).map(sorted),
    st.integers(1, 6),
    st.sampled_from([0, 50, 100]),
)
def test_retention_keeps_the_last_and_one_per_window(steps, keep_last, every):
    kept = []
    firsts = {}
    for step in steps:  # Each save adds one checkpoint.
        kept = [*kept, step]
        kept = [old for old in kept if old not in select_removed(kept, keep_last, every)]
        if every and step // every:
            firsts.setdefault(step // every, step)
    assert set(kept) == {*firsts.values(), *steps[-keep_last:]}
