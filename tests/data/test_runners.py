"""`make-data --runner ray` on a local cluster: an actor that is killed is replaced by Ray."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from testkit import ROOT
from tests.data import making

pytest.importorskip("ray", reason="needs the ray extra")
pytestmark = pytest.mark.nightly
FLAGS = "--seq_length=128 --num_shards=16 --num_workers=1 --masking=static --dupe_factor=20 --json"


@pytest.fixture
def make_data(sample_corpus, tokenizer_path, tmp_path):
    """`make_data(folder, "--flag", ...)`: the command, started, with one actor."""
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


def actors(process):
    """The ids of Ray's processes that pack."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    session = os.getsid(process.pid)
    found = [line.split()[0] for line in listed.stdout.splitlines() if "ray::PoolActor" in line]
    return [int(pid) for pid in found if os.getsid(int(pid)) == session]


def test_with_an_actor_killed_on_the_way_the_bytes_are_those_of_one_machine(make_data, tmp_path):
    process = make_data("data", "--runner=ray")
    while process.poll() is None and not (killed := actors(process)):
        time.sleep(0.01)
    os.kill(killed[0], signal.SIGKILL)
    status, shown = process.wait(), (tmp_path / "shown").read_text()
    assert status == 0, shown
    assert "Ray: 1 processes on 1 machines" in shown
    assert json.loads((tmp_path / "out").read_text())["shards"] > 16
    assert make_data("whole").wait() == 0
    assert making.tree(tmp_path / "data") == making.tree(tmp_path / "whole")


def test_what_an_actor_refuses_is_one_line(make_data, tmp_path):
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["\ud800"])
    status = make_data("data", "--runner=ray", f"--input={corpus}").wait()
    shown = (tmp_path / "shown").read_text()
    assert status == 2 and "Traceback" not in shown, shown
