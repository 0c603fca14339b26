"""Files that this program wrote are known by size and checksum; all others stay."""

import os
import threading

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import outputs, ownership
from bigbird_ja.storage.ownership import FILES, MARK, Made, Owned


def _content(base):
    """Every file but the mark."""
    names = storage.list_tree(base)
    return {name: storage.read_bytes(f"{base}/{name}") for name in names if name != MARK}


def test_a_mark_keeps_its_id_and_its_kind(base):
    assert Owned.load(base) is None
    first = Owned.create(base, FILES)
    first.write("report.html", b"page")
    as_run = Owned.create(base, "run")  # of nothing but single files of ours
    assert (as_run.id, as_run.kind, list(as_run.files)) == (first.id, "run", ["report.html"])
    assert Owned.create(base, FILES).kind == "run"
    with pytest.raises(BadInput, match=r"what another command of bigbird-ja made \(run\)"):
        Owned.create(base, "export")
    loaded = Owned.load(base)
    assert loaded is not None and loaded.kind == "run" and loaded.is_unchanged("report.html")


def test_a_copy_has_the_id_and_another_place(tmp_path):
    """Weights & Biases keeps a run by it: a copy that trains on is another."""
    (tmp_path / "run-1").mkdir()
    first = Owned.create(f"{tmp_path}/run-1", "run")
    (tmp_path / "run-2").mkdir()
    storage.write_bytes(f"{tmp_path}/run-2/{MARK}", storage.read_bytes(f"{first.path}/{MARK}"))
    (tmp_path / "link").symlink_to(tmp_path / "run-1")
    copy, same = (Owned.load(f"{tmp_path}/{name}") for name in ("run-2", "link"))
    assert copy.id == first.id and copy.place_id != first.place_id == same.place_id


def test_only_what_we_wrote_is_replaced(base):
    owned = Owned.create(base, "export")
    refused = pytest.raises(BadInput, match=r"README\.md: not what this program wrote, or changed")
    storage.write_bytes(f"{base}/README.md", b"the user's")
    with refused:
        owned.write("README.md", b"ours")
    assert _content(base) == {"README.md": b"the user's"}
    storage.delete(f"{base}/README.md")
    owned.write("README.md", b"ours")
    owned.write("README.md", b"ours, newer")
    storage.write_bytes(f"{base}/README.md", b"ours, edited")
    assert not owned.is_unchanged("README.md")
    with refused, owned.writing("README.md") as file:
        file.write(b"third")
    with refused:
        owned.note({"new": None, "README.md": None})
    assert _content(base) == {"README.md": b"ours, edited"} and list(owned.files) == ["README.md"]


def test_what_a_record_states_leaves_the_mark_and_is_ours_while_the_record_is(base):
    owned = Owned.create(base, "run")
    shard = Made.of(b"shard")
    owned.note({"shard": shard})
    storage.write_bytes(f"{base}/shard", b"shard")
    owned.write("manifest.json", b"{}")
    owned.note({}, recorded=["shard"])
    assert owned.is_unchanged("shard"), "this process still knows it"
    loaded = Owned.load(base)
    assert loaded is not None and list(loaded.files) == ["manifest.json"]
    assert not loaded.is_unchanged("shard")
    storage.write_bytes(f"{base}/manifest.json", b"[]")  # edited: it proves nothing any more
    loaded.trust("manifest.json", {"shard": shard})
    assert not loaded.is_unchanged("shard")
    storage.write_bytes(f"{base}/manifest.json", b"{}")
    loaded.trust("manifest.json", {"shard": shard})
    assert loaded.is_unchanged("shard")
    loaded.note({}, unrecorded=["shard", "unknown"])
    assert loaded.remove(["manifest.json"]) == []
    killed_here = Owned.load(base)
    assert killed_here is not None and killed_here.remove(["shard"]) == []
    assert _content(base) == {}


def test_a_kill_between_the_list_and_the_file_leaves_both_versions_ours(base):
    owned = Owned.create(base, "run")
    owned.write("a", b"first")
    for content in (b"second", b"third", b"fourth"):  # killed three times before the file came
        owned.note({"a": Made.of(content)})
        owned = Owned.create(base, "run")
        assert owned.is_unchanged("a")
    storage.write_bytes(f"{base}/a", b"fourth")
    assert owned.is_unchanged("a")
    owned.write("a", b"fifth")
    storage.write_bytes(f"{base}/a", b"third")  # a version of long ago is the user's by now
    assert not owned.is_unchanged("a")


def test_what_was_changed_is_not_removed(base):
    owned = Owned.create(base, "data set")
    for name in ("a", "b", "c", "d"):
        owned.write(name, name.encode())
    storage.write_bytes(f"{base}/b", b"B")  # of the same size
    storage.delete(f"{base}/c")
    storage.write_bytes(f"{base}/unlisted", b"")
    assert owned.remove(["a", "b", "c", "unlisted"]) == ["b", "unlisted"]
    assert _content(base) == {"b": b"B", "d": b"d", "unlisted": b""}
    assert sorted(owned.files) == ["b", "d"]
    owned.forget(["d"])
    assert not owned.is_unchanged("d") and owned.remove(["d"]) == ["d"]


def test_what_is_changed_between_the_look_and_the_removal_stays(base, monkeypatch):
    owned, look = Owned.create(base, "data set"), Owned._current
    owned.write("a", b"ours")

    def look_too_early(self, name):
        found = look(self, name)
        storage.write_bytes(f"{base}/{name}", b"theirs")
        return found

    monkeypatch.setattr(Owned, "_current", look_too_early)
    assert owned.remove(["a"]) == ["a"]
    assert _content(base) == {"a": b"theirs"}


def test_a_log_is_ours_whatever_it_holds(base):
    owned = Owned.create(base, "run")
    owned.note({"heartbeat.json": None, "events.jsonl": None})
    storage.write_bytes(f"{base}/heartbeat.json", b"ours")
    assert owned.is_unchanged("heartbeat.json") and not owned.is_unchanged("events.jsonl")
    owned.write("heartbeat.json", b"the last one")  # from now on it is one version
    loaded = Owned.load(base)
    assert loaded is not None and loaded.is_unchanged("heartbeat.json")
    assert owned.remove(["heartbeat.json"]) == []


def test_a_mark_is_changed_by_many_and_loses_nothing(base):
    owned = [Owned.create(base, FILES) for _ in range(4)]

    def write(number):
        for file in range(3):
            owned[number].write(f"{number}-{file}", b"%d" % file)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = Owned.load(base)
    assert loaded is not None and len(loaded.files) == 12
    assert all(map(loaded.is_unchanged, loaded.files))


def test_a_mark_that_others_removed_or_made_anew_stops_the_writer(base):
    owned = Owned.create(base, "run")
    storage.delete(f"{base}/{MARK}")
    with pytest.raises(StorageError, match=r"\.bigbird-ja\.json: removed or made anew"):
        owned.write("a", b"")
    Owned.create(base, "run")
    with pytest.raises(StorageError, match="removed or made anew"):
        owned.write("a", b"")
    assert _content(base) == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"a"', '"thesis"'),
        lambda text: text.replace('"run"', '"export"'),
        lambda text: "[]",
        lambda text: text.replace("0.1.0", "9.0"),
        lambda text: text + " " * (65 << 20),
    ],
    ids=["cut", "other name", "other kind", "no object", "later version", "huge"],
)
def test_a_damaged_or_edited_mark_is_refused(damage, tmp_path):
    owned = Owned.create(str(tmp_path), "run")
    owned.write("a", b"ours")
    (tmp_path / MARK).write_text(damage((tmp_path / MARK).read_text()))
    with pytest.raises(BadInput, match=r"\.bigbird-ja\.json: (?!.*\n)"):
        Owned.load(str(tmp_path))


def test_names_do_not_lead_outside_the_folder(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    folder = tmp_path / "run"
    folder.mkdir()
    owned = Owned.create(str(folder), "run")
    with pytest.raises(BadInput):
        owned.note({"../thesis": Made.of(b"years of work")})
    forged = ownership._Mark(owned.id, "run", {"../thesis": None}, "0.1.0")
    (folder / MARK).write_bytes(forged.encoded())
    with pytest.raises(BadInput, match="not a file name inside its directory"):
        Owned.load(str(folder))
    # A link under the name of a file of ours is the user's.
    (folder / MARK).unlink()
    (folder / "a").symlink_to(tmp_path / "nothing")
    with pytest.raises(BadInput, match="not what this program wrote"):
        Owned.create(str(folder), "run").write("a", b"ours")
    assert os.readlink(folder / "a") == str(tmp_path / "nothing")


def test_a_foreign_folder_is_refused(base):
    def check(kind="run"):
        return outputs.check_folder(base, "--model_dir", kind, "name an empty folder")

    assert check() is None and outputs.check_folder(f"{base}/new", "", "run", "") is None
    Owned.create(base, FILES).write("report.html", b"ours")
    assert check() is None
    storage.make_directory(f"{base}/deep/er")
    storage.write_bytes(f"{base}/deep/er/letter.txt", b"")
    words = "files that this program did not make, such as deep: name an empty"
    with pytest.raises(BadInput, match=f"^--model_dir {base}: holds {words}"):
        check()
    Owned.create(base, "run")
    owned = check()
    assert owned is not None and owned.kind == "run"
    with pytest.raises(BadInput, match=r"^--model_dir .*: holds .* made \(run\)"):
        check("export")


def test_a_single_file_of_ours_that_was_changed_is_not_ours(base):
    Owned.create(base, FILES).write("report.html", b"ours")
    storage.write_bytes(f"{base}/report.html", b"ours, annotated")
    with pytest.raises(BadInput, match=r"^--model_dir .*: holds files .*, such as report\.html: "):
        outputs.check_folder(base, "--model_dir", "run", "name an empty folder")


def test_nothing_is_downloaded_to_compare_it(bucket, fake_gcs):
    owned = Owned.create(bucket, "run")
    owned.write("model.ckpt-1.index", bytes(1000))
    fake_gcs.log(clear=True)
    assert owned.is_unchanged("model.ckpt-1.index")
    assert len(fake_gcs.log()) == 1
