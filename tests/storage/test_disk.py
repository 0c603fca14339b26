"""Files on disk: whole or not at all, honest errors, nothing left behind."""

import dataclasses
import os
import signal
import subprocess
import sys

from bigbird_ja import storage
from bigbird_ja.process import identity
from bigbird_ja.storage.disk import scratch_directory
from testkit import ROOT


def test_writes_are_whole_and_obey_the_umask(tmp_path):
    path = str(tmp_path / "a.json")
    old = os.umask(0o027)
    try:
        storage.write_bytes(path, b"one")
        storage.create_exclusive(path + ".lock", b"me")
    finally:
        os.umask(old)
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert os.stat(path + ".lock").st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.json.lock"]


def test_a_killed_writer_is_swept_by_the_next_writer_of_that_file(tmp_path):
    path = str(tmp_path / "a")
    program = (
        "import os, signal, sys\n"
        "from bigbird_ja import storage\n"
        "with storage.writing(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False)
    left = os.listdir(tmp_path)
    assert len(left) == 1 and left[0].startswith(storage.TEMPORARY_PREFIX)  # the second swept
    assert storage.list_files(str(tmp_path)) == [] and storage.list_tree(str(tmp_path)) == []
    assert storage.glob(str(tmp_path / "*")) == []
    storage.write_bytes(str(tmp_path / "other"), b"")
    assert len(os.listdir(tmp_path)) == 2  # not its business
    storage.write_bytes(path, b"whole")
    assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_clean_temporary_spares_the_living(tmp_path):
    here = identity.this_process()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    names = {
        "dead": f".tmp-a~{dataclasses.replace(here, pid=child.pid).tag}-00000000",
        "alive": f".tmp-a~{here.tag}-00000000",
        "foreign": f".tmp-a~{dataclasses.replace(here, machine='0' * 12 + '.1').tag}-00000000",
        "old foreign": f".tmp-b~{dataclasses.replace(here, machine='0' * 12 + '.1').tag}-00000000",
    }
    names["the user's"] = ".tmp-notes~of-last-year"
    for name in names.values():
        (tmp_path / name).write_bytes(b"x")
    for name in ("old foreign", "the user's"):
        os.utime(tmp_path / names[name], (0, 0))
    with storage.writing(str(tmp_path / "open")) as file:
        file.write(b"y")
        removed = storage.clean_temporary(str(tmp_path))
    assert sorted(removed) == sorted([names["dead"], names["old foreign"]])
    kept = [names["alive"], names["foreign"], names["the user's"], "open"]
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_create_exclusive_where_links_do_not_exist(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "lock")
    assert storage.create_exclusive(path, b"1") is True
    assert storage.create_exclusive(path, b"2") is False
    assert storage.read_bytes(path) == b"1" and os.listdir(tmp_path) == ["lock"]


def test_what_a_killed_process_left_goes_with_the_next(tmp_path):
    killed = (
        "import os, signal, sys\n"
        "from bigbird_ja.storage.disk import scratch_directory\n"
        "with scratch_directory(sys.argv[1]) as scratch:\n"
        "    open(scratch + '/model', 'w').write('a copy of a model')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", killed, str(tmp_path)])
    assert ended.returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    (tmp_path / "bigbird-ja-of-the-user").mkdir()  # names no owner
    with scratch_directory(str(tmp_path)) as one, scratch_directory(str(tmp_path)) as two:
        assert os.listdir(one) == os.listdir(two) == [] and one != two
        assert os.stat(one).st_mode & 0o77 == 0
        assert left not in os.listdir(tmp_path)
    assert os.listdir(tmp_path) == ["bigbird-ja-of-the-user"]


def test_what_another_boot_or_machine_left(tmp_path, monkeypatch):
    elsewhere = dataclasses.replace(identity.this_process(), machine="0123456789ab.1").tag
    left, thesis = tmp_path / f"bigbird-ja-{elsewhere}-x", tmp_path / "bigbird-ja-thesis-1-2-x"
    left.mkdir()
    thesis.mkdir()
    with scratch_directory(str(tmp_path)):  # machines may share this folder: it may be at work
        assert left.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_directory():  # this machine's temporary folder: it has been booted since
        assert not left.exists() and thesis.exists()
