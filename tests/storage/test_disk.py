"""Files on disk are complete or absent, and errors name their cause."""

import os
import subprocess
import sys
import time

import pytest

from bigbird_ja import storage
from bigbird_ja.storage.disk import create_scratch_directory
from testkit import ROOT, command_line


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


def test_files_of_a_killed_writer_are_not_listed_and_removed_a_day_later(tmp_path):
    path = str(tmp_path / "a")
    program = (
        "import os, signal, sys\n"
        "from bigbird_ja import storage\n"
        "with storage.writing(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(storage.TEMPORARY_PREFIX)
    assert storage.list_files(str(tmp_path)) == [] and storage.list_tree(str(tmp_path)) == []
    assert storage.glob(str(tmp_path / "*")) == []
    (tmp_path / ".tmp-notes~20261125").write_text("the user's")
    for hours in (0, -9):  # The machine that wrote the file may have a wrong clock.
        now = time.time() + hours * 3600
        os.utime(tmp_path / left, (now, now))
        assert storage.clean_temporary(str(tmp_path), "[ab]") == [], "the file may still be written"
    for name in os.listdir(tmp_path):
        os.utime(tmp_path / name, (0, 0))
    assert storage.clean_temporary(str(tmp_path), "[ab]") == [left]
    assert os.listdir(tmp_path) == [".tmp-notes~20261125"]


def test_a_scratch_folder_is_removed_with_its_process(tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "from bigbird_ja.process import signals\n"
        "from bigbird_ja.storage.disk import create_scratch_directory\n"
        "with create_scratch_directory(sys.argv[1]) as scratch:\n"
        "    open(scratch + '/model', 'w').write('a copy of a model')\n"
        "    sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == 3
    assert os.listdir(tmp_path) == []
    with (
        create_scratch_directory(str(tmp_path)) as one,
        create_scratch_directory(str(tmp_path)) as two,
    ):
        assert storage.list_files(one) == storage.list_files(two) == [] and one != two
        assert os.stat(one).st_mode & 0o77 == 0


FULL_DISK = {
    "sample": "--output={out}/new/x.jsonl --documents=40",
    "tokenize": "--input={corpus} --output_prefix={out}/new/x --vocab_size=1200",
    "make-data": "--input={corpus} --tokenizer={tokenizer} --output_dir={out}/new/data"
    " --seq_length=256 --num_workers=1",
}


@pytest.mark.parametrize("command", FULL_DISK)
def test_a_full_disk_ends_with_status_74(sample_corpus, tokenizer_path, tmp_path, command):
    given = {"corpus": sample_corpus, "tokenizer": tokenizer_path}
    words = FULL_DISK[command].format(out=tmp_path, **given)
    line = f"ulimit -f 8; exec {sys.executable} -m bigbird_ja {command} {words} --json"
    ended = command_line.run("bash", "-c", line)
    assert ended.status == 74, ended.stderr
    assert ended.json["reason"] == "io_error" and "{{" not in ended.json["error"]
    assert f"disk full ({tmp_path}/new/" in ended.json["error"]
    # For a rerun, `make-data` keeps finished work, and `tokenize` the record of the model.
    kept = command in ("make-data", "tokenize")
    assert os.listdir(tmp_path) == (["new"] if kept else [])
