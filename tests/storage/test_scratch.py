"""Scratch folders go with their block, or with the next one of their kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from bigbird_ja.process import identity
from bigbird_ja.storage.scratch import scratch_directory


def test_what_a_killed_process_left_goes_with_the_next(tmp_path):
    killed = (
        "import os, signal, sys\n"
        "from bigbird_ja.storage.scratch import scratch_directory\n"
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
    def left_by(name: str, machine: str) -> None:
        (tmp_path / name).mkdir()
        owner = {**identity.this_process().as_dict(), "machine": machine}
        (tmp_path / name / "owner.json").write_text(json.dumps(owner))

    left_by("bigbird-ja-1", "another-boot pid:[1]")
    with scratch_directory(str(tmp_path)):  # a folder that machines may share: who knows
        assert "bigbird-ja-1" in os.listdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_directory():  # this machine's own: it was started anew since
        assert "bigbird-ja-1" not in os.listdir(tmp_path)
    left_by("x-1", "another-boot pid:[1]")
    with scratch_directory(str(tmp_path), "x-", is_ours_alone=True):
        assert "x-1" not in os.listdir(tmp_path)
    assert os.listdir(tmp_path) == []
