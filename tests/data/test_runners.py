"""`make-data --runner ray` on a local cluster: a worker that is killed is replaced by Ray."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bigbird_ja.data import work
from bigbird_ja.storage.lease import holder_of
from testkit import ROOT
from tests.data import making

pytest.importorskip("ray", reason="needs the ray extra")
pytestmark = pytest.mark.nightly
FLAGS = "--seq_length=128 --num_shards=16 --num_workers=1 --masking=static --dupe_factor=20 --json"


@pytest.fixture
def make_data(sample_corpus, tokenizer_path, tmp_path):
    """`make_data(folder, "--flag", ...)`: the command, started; a part is one process."""
    program = [sys.executable, "-m", "bigbird_ja", "make-data", *FLAGS.split()]
    program += [f"--input={sample_corpus}", f"--tokenizer={tokenizer_path}"]
    # Ray gives up after half a minute, which a busy machine needs.
    patience = ("RAY_raylet_start_wait_time_s", "RAY_worker_register_timeout_seconds")
    env = {**os.environ, **dict.fromkeys(patience, "200")}

    def start(folder, *flags):
        words = [*program, f"--output_dir={tmp_path / folder}", *flags]
        with open(tmp_path / "out", "w") as out, open(tmp_path / "shown", "w") as shown:
            return subprocess.Popen(words, cwd=ROOT, env=env, stdout=out, stderr=shown)

    return start


def test_with_a_worker_killed_on_the_way_the_bytes_are_those_of_one_machine(make_data, tmp_path):
    process = make_data("data", "--runner=ray")
    folder = tmp_path / "data" / work.NAME
    while process.poll() is None and not list(folder.glob("ready/*.tfrecord")):
        time.sleep(0.01)
    lease = next(folder.glob("part-*.lock"))
    os.kill(holder_of(str(lease)).pid, signal.SIGKILL)
    status, shown = process.wait(), (tmp_path / "shown").read_text()
    assert status == 0, shown
    assert f"{os.cpu_count()} parts of 1 processes on 1 machines" in shown
    assert json.loads((tmp_path / "out").read_text())["shards"] > 16
    assert make_data("whole").wait() == 0
    assert making.tree(tmp_path / "data") == making.tree(tmp_path / "whole")


def test_what_a_part_refuses_is_one_line(make_data, tmp_path):
    (tmp_path / "data" / work.NAME).mkdir(parents=True)
    (tmp_path / "data" / work.NAME / "mine.txt").write_text("mine")
    status, shown = make_data("data", "--runner=ray").wait(), (tmp_path / "shown").read_text()
    assert status == 2 and "Traceback" not in shown, shown
    error = json.loads((tmp_path / "out").read_text())["error"]
    assert "holds files and no settings.json of make-data" in error
