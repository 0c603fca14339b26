"""Checkpoints on disk and on a bucket: saving, damage, what is left of a kill, retention."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.run.checkpoints import (
    SUFFIXES,
    CheckpointStore,
    Damaged,
    Meta,
    parameters_of,
    read_variables,
    to_remove,
    write_variables,
)
from bigbird_ja.run.model import read_checkpoint
from bigbird_ja.storage.ownership import MARK, Made, Owned


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "bucket":
        return f"{request.getfixturevalue('bucket')}/run"
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run")


class Killed(BaseException):
    """Stands for SIGKILL between two files."""


def make(place: str, tmp_path: Path) -> tuple[CheckpointStore, list[tuple[str, int, str]]]:
    """The store, and what it reports."""
    reports: list[tuple[str, int, str]] = []
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)

    def report(event: str, step: int, text: str) -> None:
        reports.append((event, step, text))

    store = CheckpointStore(place, str(scratch), report, owned=Owned.create(place, "run"))
    return store, reports


def save(
    store: CheckpointStore, tmp_path: Path, step: int, keep_last: int = 3, keep_every: int = 0
) -> Meta:
    prefix = str(tmp_path / "scratch" / f"model.ckpt-{step}")
    write_variables(prefix, {"a/b": np.full([5], step, np.float32), "global_step": np.int64(step)})
    meta = Meta(step, "config", "data", 1.5, 100, 0, 0.0, step, 4)
    return store.publish(prefix, meta, keep_last, keep_every)


def flip(place: str, name: str) -> None:
    path = storage.join(place, name)
    data = bytearray(storage.read_bytes(path))
    data[len(data) // 2] ^= 1
    storage.write_bytes(path, bytes(data))


def test_what_is_saved_is_read_back(place: str, tmp_path: Path) -> None:
    store, reports = make(place, tmp_path)
    assert store.latest_good() is None
    save(store, tmp_path, 10)
    saved = save(store, tmp_path, 20)
    newest = store.latest_good()
    assert newest is not None and newest.meta == saved and store.steps() == [10, 20]
    values = read_variables(newest.prefix)
    assert values["global_step"] == 20 and (values["a/b"] == 20).all()
    state = storage.read_text(storage.join(place, "checkpoint")).splitlines()
    assert state[0] == 'model_checkpoint_path: "model.ckpt-20"' and len(state) == 3
    assert not reports


def _change_sidecar(place: str, old: str, new: str) -> None:
    path = storage.join(place, "model.ckpt-20.json")
    text = storage.read_text(path)
    assert old in text
    storage.write_bytes(path, text.replace(old, new).encode())


DATA, INDEX, SIDECAR = (f"model.ckpt-20{end}" for end in (*SUFFIXES, ".json"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: flip(place, INDEX), r"-20\.index: its checksum is not"),
        (lambda place: flip(place, DATA), r"-20\.data-00000-of-00001: its checksum is not"),
        (
            lambda place: storage.write_bytes(storage.join(place, INDEX), b"x"),
            r"-20\.index: 1 bytes instead of \d+",
        ),
        (
            lambda place: storage.delete(storage.join(place, DATA)),
            r"-20\.data-00000-of-00001: missing",
        ),
        (
            lambda place: _change_sidecar(place, INDEX, "../passwd"),
            r"-20\.json: damaged: does not list model\.ckpt-20\.index",
        ),
        (lambda place: _change_sidecar(place, '"step": 20', '"step": 10'), "is of step 10"),
        (
            lambda place: storage.write_bytes(storage.join(place, SIDECAR), b"{"),
            r"-20\.json: damaged",
        ),
        (
            lambda place: storage.write_bytes(storage.join(place, SIDECAR), b"{}"),
            r"-20\.json: damaged: step is missing",
        ),
        (
            lambda place: _change_sidecar(place, '"time": 0.0', '"time": "x"'),
            r"json: damaged.*time",
        ),
        (
            lambda place: storage.delete(storage.join(place, SIDECAR)),
            "its sidecar is missing",
        ),
    ],
)
def test_damage_is_found_named_and_set_aside(
    place: str, tmp_path: Path, change: Callable[[str], None], words: str
) -> None:
    store, reports = make(place, tmp_path)
    save(store, tmp_path, 10)
    save(store, tmp_path, 20)
    change(place)
    there = [name for name in (DATA, INDEX, SIDECAR) if name in storage.list_files(place)]
    newest = store.latest_good()
    assert newest is not None and newest.meta.step == 10 and store.steps() == [10]
    ((event, step, text),) = reports
    assert (event, step) == ("set_aside", 20)
    start = r"checkpoint 20 is damaged and was set aside as damaged-model\.ckpt-20\.\*: .*"
    assert re.match(start + words, text)
    assert {f"damaged-{name}" for name in there} <= set(storage.list_files(place))
    # What is read by others lists what is left.
    state = storage.read_text(storage.join(place, "checkpoint"))
    assert "ckpt-10" in state and "ckpt-20" not in state
    assert store.latest_good() is not None and len(reports) == 1


def test_what_cannot_be_fetched_is_named(place: str, tmp_path: Path) -> None:
    store, _ = make(place, tmp_path)
    with pytest.raises(Damaged, match=r"model\.ckpt-99\.json: no such checkpoint"):
        store.fetch(99)
    save(store, tmp_path, 20)
    _change_sidecar(place, '"format_version": "0.1.0"', '"format_version": ""')
    with pytest.raises(BadInput, match=r"model\.ckpt-20\.json.*train again") as caught:
        store.latest_good()
    assert not isinstance(caught.value, Damaged) and store.steps() == [20], "left as it is"


def test_a_failed_save_leaves_nothing_of_itself(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10)
    before = sorted(storage.list_files(place))
    write = storage.write_bytes

    def fail(path: str, data: bytes) -> object:
        if path.endswith("20.json"):
            raise StorageError("full")
        return write(path, data)

    monkeypatch.setattr(storage, "write_bytes", fail)
    with pytest.raises(StorageError, match="full"):
        save(store, tmp_path, 20)
    assert sorted(storage.list_files(place)) == before


def test_saving_removes_all_but_the_last_and_one_per_window(place: str, tmp_path: Path) -> None:
    store, _ = make(place, tmp_path)
    for step in (5, 10, 20, 25, 45, 50):
        save(store, tmp_path, step, keep_last=1, keep_every=20)
    assert store.steps() == [20, 45, 50]


def test_a_kill_while_one_is_set_aside_leaves_no_checkpoint_of_half_its_files(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10)
    save(store, tmp_path, 20)
    flip(place, "model.ckpt-20.index")
    rename, renamed = storage.rename, []

    def once(old: str, new: str) -> None:
        if renamed:
            raise Killed
        renamed.append(new)
        rename(old, new)

    monkeypatch.setattr(storage, "rename", once)
    with pytest.raises(Killed):
        store.latest_good()
    assert store.steps() == [10]


def test_a_state_file_that_is_no_text_is_written_anew(place: str, tmp_path: Path) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10)
    state = storage.join(place, "checkpoint")
    storage.write_bytes(state, b"\xff\xfe")
    assert store.latest_good() is not None
    assert 'all_model_checkpoint_paths: "model.ckpt-10"' in storage.read_text(state)


@pytest.mark.parametrize("lost", ["state", "files", "files set aside"])
def test_what_was_there_once_is_never_taken_for_a_start(
    place: str, tmp_path: Path, lost: str
) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10)
    flip(place, "model.ckpt-10.index")
    if lost == "files":
        for name in storage.list_files(place):
            if name != "checkpoint":
                storage.delete(storage.join(place, name))
    with pytest.raises(
        StorageError, match=r"no good checkpoint is left .*another --model_dir"
    ) as e:
        store.latest_good()
    assert ("its checksum" in str(e.value)) == (lost != "files")
    if lost != "files":
        names = storage.list_files(place)
        gone = "checkpoint" if lost == "state" else "damaged-"
        for name in names:
            if name.startswith(gone):
                storage.delete(storage.join(place, name))
        with pytest.raises(StorageError, match=r"is left \(see damaged-\*\)"):
            store.latest_good()


def test_parameters_are_what_is_no_slot_and_no_step() -> None:
    names = ["global_step", "a/kernel", "a/kernel/adam_m", "a/kernel/adam_v", "adam_m/bias"]
    variables = dict.fromkeys(names, 0)
    assert parameters_of(variables).keys() == {"a/kernel", "adam_m/bias"}


def test_variables_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    prefix = str(tmp_path / "x")
    write_variables(prefix, {"w": np.zeros(1000)})
    data = Path(f"{prefix}.data-00000-of-00001")
    for path, content in ((data, data.read_bytes()[:100]), (Path(f"{prefix}.index"), b"x" * 200)):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"x: not readable as a TensorFlow checkpoint \(."):
            read_variables(prefix)
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, OSError), match="file/x"):
        write_variables(str(tmp_path / "file" / "x"), {"a": np.zeros(1)})


def test_a_kill_between_any_two_files_leaves_the_one_before(place: str, tmp_path: Path) -> None:
    for number in range(1, 5):
        here = storage.join(place, str(number))
        storage.make_directory(here)
        store, _ = make(here, tmp_path)
        for step in (10, 20):
            save(store, tmp_path, step, keep_last=2)
        marks = 0

        def mark(phase: str, stop_at: int = number) -> None:
            nonlocal marks
            marks += 1
            if marks == stop_at:
                raise Killed

        owned = Owned.create(here, "run")
        dying = CheckpointStore(here, str(tmp_path / "scratch"), mark=mark, owned=owned)
        with (
            pytest.raises(Killed),
            # A killed process tidies nothing up on its way out.
            mock.patch.object(Owned, "remove", side_effect=Killed),
        ):
            save(dying, tmp_path, 30, keep_last=2)
        after, _ = make(here, tmp_path)
        newest = after.latest_good()
        assert newest is not None and newest.meta.step == (20 if number < 3 else 30)
        save(after, tmp_path, 40, keep_last=2)
        assert after.latest_good().meta.step == 40  # type: ignore[union-attr]
        assert len(after.steps()) == 2
        assert len([n for n in storage.list_files(here) if "model.ckpt-" in n]) == 6


def test_only_what_we_wrote_is_cleaned_up_after_a_kill(place: str, tmp_path: Path) -> None:
    theirs, ours = (f"model.ckpt-{step}.data-00000-of-00001" for step in (5, 6))
    for name in (theirs, ours):
        storage.write_bytes(storage.join(place, name), b"x")
    Owned.create(place, "run").note({ours: Made.of(b"x")})
    store, reports = make(place, tmp_path)
    assert store.latest_good() is None
    assert [report[:2] for report in reports] == [("cleaned", 6)]
    assert [n for n in storage.list_files(place) if n != MARK] == [theirs]


def test_a_checkpoint_that_was_changed_is_not_removed_with_the_old_ones(
    place: str, tmp_path: Path
) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10, keep_last=1)
    storage.write_bytes(storage.join(place, "model.ckpt-10.json"), b"the user's")
    save(store, tmp_path, 20, keep_last=1)
    assert storage.read_bytes(storage.join(place, "model.ckpt-10.json")) == b"the user's"
    assert storage.exists(storage.join(place, "model.ckpt-10.index"))


def test_a_second_damaged_checkpoint_does_not_replace_the_first(place: str, tmp_path: Path) -> None:
    store, _ = make(place, tmp_path)
    save(store, tmp_path, 10)
    for _ in range(2):
        save(store, tmp_path, 20)
        storage.write_bytes(storage.join(place, "model.ckpt-20.json"), b"{}")
        assert store.latest_good().meta.step == 10  # type: ignore[union-attr]
    names = [n for n in storage.list_files(place) if n.startswith("damaged-")]
    assert len(names) == 6 and "damaged-2-model.ckpt-20.json" in names


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"w": np.full([3], np.nan, np.float32)}, "w holds text, NaN"),
        ({"w": np.array(["text"], object)}, "w holds text"),
        ({"global_step": np.int64(9)}, "global_step is 9 and its sidecar states 10"),
    ],
)
def test_wrong_variables_under_a_right_sidecar_are_refused(
    tmp_path: Path, values: dict, words: str
) -> None:
    store, _ = make(str(tmp_path), tmp_path)
    prefix = str(tmp_path / "scratch" / "model.ckpt-10")
    write_variables(prefix, {"w": np.zeros(3), "global_step": np.int64(10), **values})
    store.publish(prefix, Meta(10, "config", "data", 1.5, 100, 0, 0.0, 10, 4), 3, 0)
    with pytest.raises(Damaged, match=words):
        read_checkpoint(store.fetch(10))


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(
    bucket: str, fake_gcs: object, tmp_path: Path
) -> None:
    store, _ = make(f"{bucket}/run", tmp_path)
    save(store, tmp_path, 10)
    fake_gcs.fault(".*", "status", code=403, times=-1)  # type: ignore[attr-defined]
    with pytest.raises(PermissionError):
        store.latest_good()
    fake_gcs.clear()  # type: ignore[attr-defined]
    fake_gcs.fault(".*", "status", code=503, times=-1)  # type: ignore[attr-defined]
    with pytest.raises(StorageError):
        store.latest_good()


@given(
    st.lists(st.integers(1, 500), unique=True, min_size=1).map(sorted),
    st.integers(1, 6),
    st.sampled_from([0, 50, 100]),
)
def test_retention_keeps_the_last_and_one_per_window(
    steps: list[int], keep_last: int, every: int
) -> None:
    kept: list[int] = []
    for i in range(1, len(steps) + 1):  # as saving goes: one more each time
        kept = [*kept, steps[i - 1]]
        kept = [step for step in kept if step not in to_remove(kept, keep_last, every)]
    assert kept[-keep_last:] == steps[-keep_last:]
    if every:
        windows = {}
        for step in steps:
            windows.setdefault(step // every, step)
        firsts = {step for window, step in windows.items() if window}
        assert set(kept) == firsts | set(steps[-keep_last:])
    else:
        assert len(kept) == min(keep_last, len(steps))
