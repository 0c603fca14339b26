"""Scratch folders go with their block, or with the next one of their kind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

from bigbird_ja.process import identity
from bigbird_ja.storage.disk import scratch_directory


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
    (tmp_path / f"x-{elsewhere}-x").mkdir()
    (tmp_path / f"x-{elsewhere}-link").symlink_to(thesis)
    with scratch_directory(str(tmp_path), "x-", is_ours_alone=True):
        assert not (tmp_path / f"x-{elsewhere}-x").exists() and thesis.exists()
