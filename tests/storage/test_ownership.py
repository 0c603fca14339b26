"""Only files that an ownership manifest lists are replaced or removed."""

import contextlib
import shutil
import threading

import msgspec
import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import outputs, ownership
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.ownership import FILES, MANIFEST_NAME, FileVersion, Owned
from testkit import killing


def _content(base):
    """Return the content of every file except the manifest, by path."""
    names = storage.list_tree(base)
    return {name: storage.read_bytes(f"{base}/{name}") for name in names if name != MANIFEST_NAME}


def test_a_manifest_keeps_its_id_and_its_kind(base):
    assert Owned.load(base) is None
    first = Owned.create(base, FILES)
    first.write("report.html", b"page")
    # A folder of the kind `FILES` can become the folder of a run.
    as_run = Owned.create(base, "run")
    assert (as_run.id, as_run.kind, list(as_run.files)) == (first.id, "run", ["report.html"])
    assert Owned.create(base, FILES).kind == "run"
    with pytest.raises(BadInput, match=r"the output of another command of bigbird-ja \(run\)"):
        Owned.create(base, "export")


def test_the_list_has_the_same_bytes_in_whatever_order_files_came(tmp_path):
    """Write the same manifest in whatever order Ray's actors finish the shards."""
    names, contents = ["a", "b", "c"], set()
    for order in (names, names[::-1]):
        (tmp_path / "run").mkdir()
        owned = Owned.create(str(tmp_path / "run"), "run", "0" * 16)
        for name in order:
            owned.note({name: None})
        contents.add((tmp_path / "run" / MANIFEST_NAME).read_bytes())
        shutil.rmtree(tmp_path / "run")
    assert len(contents) == 1


def test_a_copy_has_the_id_and_another_place(tmp_path):
    """Keep the id of a copied folder, but change its `place_id`.

    A copied run is therefore another run at Weights & Biases.
    """
    (tmp_path / "run-1").mkdir()
    first = Owned.create(f"{tmp_path}/run-1", "run")
    (tmp_path / "run-2").mkdir()
    storage.write_bytes(
        f"{tmp_path}/run-2/{MANIFEST_NAME}", storage.read_bytes(f"{first.path}/{MANIFEST_NAME}")
    )
    (tmp_path / "link").symlink_to(tmp_path / "run-1")
    copy, same = (Owned.load(f"{tmp_path}/{name}") for name in ("run-2", "link"))
    assert copy.id == first.id and copy.place_id != first.place_id == same.place_id


def test_unlisted_files_are_never_touched(base):
    owned = Owned.create(base, "export")
    refused = pytest.raises(BadInput, match=r"README\.md was not created by bigbird-ja")
    storage.write_bytes(f"{base}/README.md", b"the user's")
    with refused:
        owned.write("README.md", b"ours")
    with refused, owned.writing("README.md") as file:
        file.write(b"ours")
    with refused:
        owned.note({"new": None, "README.md": None})
    assert owned.remove(["README.md"]) == [] and owned.set_aside(["README.md"]) == ""
    assert _content(base) == {"README.md": b"the user's"} and list(owned.files) == []


def test_a_replaced_file_is_kept_under_another_name(base):
    owned = Owned.create(base, "run")
    owned.write("a", b"ours")
    owned.write("a", b"ours")  # The same content needs no copy.
    storage.write_bytes(f"{base}/a", b"ours, edited")
    storage.write_bytes(f"{base}/a.replaced-2", b"the user's")
    for content in (b"newer", b"newest"):
        owned.write("a", content)
    assert _content(base) == {
        "a": b"newest",
        "a.replaced-1": b"ours, edited",
        "a.replaced-2": b"the user's",
        "a.replaced-3": b"newer",
    }


def test_a_folder_is_set_aside_file_by_file_with_its_manifest(base):
    folder = f"{base}/export"
    storage.make_directory(f"{folder}/sub")
    owned = Owned.create(folder, "export")
    for name in ("sub/a", "export.json", "gone"):
        owned.write(name, name.encode())
    storage.delete(f"{folder}/gone")
    storage.write_bytes(f"{folder}/sub/mine", b"the user's")
    assert owned.set_aside(["export.json", "sub/a", "gone"]) == f"{folder}.replaced-1"
    assert _content(folder) == {"sub/mine": b"the user's"} and list(owned.files) == ["gone"]
    assert _content(f"{folder}.replaced-1") == {"export.json": b"export.json", "sub/a": b"sub/a"}
    moved = Owned.load(f"{folder}.replaced-1")
    assert (moved.id, moved.kind, set(moved.files)) == (
        owned.id,
        "export",
        {"sub/a", "export.json"},
    )
    owned.write("sub/a", b"new")
    assert owned.set_aside(["sub/a"]) == f"{folder}.replaced-2"


@pytest.mark.parametrize("kill", range(8))
def test_a_move_that_was_killed_is_completed_by_the_next(base, monkeypatch, kill):
    """Kill the move before each request or rename that changes a file."""
    folder = f"{base}/export"
    storage.make_directory(folder)
    owned = Owned.create(folder, "export")
    names = ["a", "b", "c", "d"]
    for name in names:
        owned.write(name, name.encode())

    with monkeypatch.context() as patch:
        calls = killing.interrupt_storage(patch, kill)
        with contextlib.suppress(KeyboardInterrupt):
            owned.set_aside(names)
    assert kill < 7 or len(calls) == 7, "no kill comes later"
    again = Owned.load(folder)
    assert again.set_aside(names) in (f"{folder}.replaced-1", "")
    assert _content(f"{folder}.replaced-1") == {name: name.encode() for name in names}
    moved = Owned.load(f"{folder}.replaced-1")
    assert set(moved.files) == set(names) and not moved.moving_to
    assert _content(folder) == {} and not again.files and not again.moving_to
    assert not storage.exists(f"{folder}.replaced-2")


def test_only_listed_files_are_removed(base):
    owned = Owned.create(base, "run")
    for name in ("a", "b", "c"):
        owned.write(name, name.encode())
    storage.delete(f"{base}/b")
    storage.write_bytes(f"{base}/unlisted", b"")
    assert owned.remove(["a", "b", "unlisted"]) == ["a", "b"]
    assert _content(base) == {"c": b"c", "unlisted": b""} and list(owned.files) == ["c"]
    owned.forget(["c"])
    assert owned.remove(["c"]) == [] and storage.exists(f"{base}/c")


def test_the_version_that_was_listed_last_is_stated(base):
    owned = Owned.create(base, "run")
    versions = [FileVersion.from_bytes(content) for content in (b"first", b"second")]
    for made in versions:
        owned.note({"a": made, "log": None})
        owned = Owned.load(base)
    assert [owned.has_version("a", made) for made in versions] == [False, True]
    assert not owned.has_version("log", versions[0]) and not owned.has_version("b", versions[0])


def test_concurrent_changes_of_a_manifest_lose_nothing(base):
    owned = [Owned.create(base, FILES) for _ in range(4)]

    def write(number):
        for file in range(3):
            owned[number].write(f"{number}-{file}", b"%d" % file)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Owned.load(base).files) == set(_content(base)) and len(_content(base)) == 12


def test_a_manifest_that_another_process_removed_stops_the_writer(base):
    owned = Owned.create(base, "run")
    storage.delete(f"{base}/{MANIFEST_NAME}")
    with pytest.raises(StorageError, match=r"\.bigbird-ja\.json was removed or replaced by"):
        owned.write("a", b"")
    Owned.create(base, "run")
    with pytest.raises(StorageError, match="removed or replaced by"):
        owned.write("a", b"")
    assert _content(base) == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(FORMAT_VERSION, "9.0"),
        lambda text: text + " " * (65 << 20),
    ],
    ids=["cut", "later version", "huge"],
)
def test_a_damaged_or_edited_manifest_is_refused(damage, tmp_path):
    owned = Owned.create(str(tmp_path), "run")
    owned.write("a", b"ours")
    (tmp_path / MANIFEST_NAME).write_text(damage((tmp_path / MANIFEST_NAME).read_text()))
    with pytest.raises(BadInput, match=r"\.bigbird-ja\.json (?!.*\n)"):
        Owned.load(str(tmp_path))


def test_names_cannot_leave_the_folder(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    folder = tmp_path / "run"
    folder.mkdir()
    owned = Owned.create(str(folder), "run")
    with pytest.raises(BadInput):
        owned.note({"../thesis": None})
    forged = ownership._Manifest(owned.id, "run", {"../thesis": None}, FORMAT_VERSION)
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(forged))
    with pytest.raises(BadInput, match="not a relative path inside its directory"):
        Owned.load(str(folder))
    # A link with the name of an owned file belongs to the user.
    (folder / MANIFEST_NAME).unlink()
    (folder / "a").symlink_to(tmp_path / "nothing")
    with pytest.raises(BadInput, match="not created by bigbird-ja"):
        Owned.create(str(folder), "run").write("a", b"ours")
    assert (folder / "a").is_symlink()


def test_a_foreign_folder_is_refused(base):
    def check(kind="run"):
        return outputs.check_folder(base, "--model_dir", kind, "name an empty folder")

    assert check() is None and outputs.check_folder(f"{base}/new", "", "run", "") is None
    for content in (b"ours", b"newer"):
        Owned.create(base, FILES).write("report.html", content)
    assert check() is None and storage.exists(f"{base}/report.html.replaced-1")
    storage.make_directory(f"{base}/deep/er")
    storage.write_bytes(f"{base}/deep/er/letter.txt", b"")
    words = "files that were not created by bigbird-ja, such as deep: name an empty"
    with pytest.raises(BadInput, match=f"^--model_dir {base} contains {words}"):
        check()
    Owned.create(base, "run")
    owned = check()
    assert owned is not None and owned.kind == "run"
    with pytest.raises(BadInput, match=r"^--model_dir .* contains .* of bigbird-ja \(run\)"):
        check("export")
