"""`make-data` with Ray, tested with threads in place of Ray and with a local cluster of Ray."""

import dataclasses
import functools
import json
import multiprocessing.pool
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from bigbird_ja.data import blocks, build, ray_runner
from bigbird_ja.errors import StorageError
from testkit import ROOT
from tests.data import making

FLAGS = "--seq_length=128 --num_shards=16 --num_workers=1 --masking=static --dupe_factor=20 --json"


@pytest.fixture
def ray_stand_in(monkeypatch):
    """Replace Ray's pool by a pool of threads, since Ray takes a minute to start."""
    ray, pools = types.ModuleType("ray"), types.ModuleType("ray.util.multiprocessing")
    ray.init = ray.shutdown = lambda **_: None
    ray.cluster_resources, ray.nodes = lambda: {"CPU": 2.0}, lambda: [{}]
    ray.exceptions = types.SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    pools.Pool = lambda *given, ray_remote_args: multiprocessing.pool.ThreadPool(*given)
    modules = {"ray": ray, "ray.util": types.ModuleType("ray.util"), pools.__name__: pools}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray


def test_ray_makes_the_same_bytes_as_one_machine(
    made, tmp_path, sample_corpus, tokenizer_path, ray_stand_in, monkeypatch
):
    with making.small_blocks():
        there = making.request(sample_corpus, tokenizer_path, str(tmp_path / "there"))
        pack = functools.partial(ray_runner.pack_blocks, num_workers=None)
        build.make_data(dataclasses.replace(there, pack=pack))
    assert making.tree(made[1]) == making.tree(tmp_path / "there")

    def lost(block):
        raise ray_stand_in.exceptions.RayError("an actor died")

    monkeypatch.setattr(blocks, "pack_to_bytes", lost)
    lost = making.request(sample_corpus, tokenizer_path, str(tmp_path / "lost"))
    with pytest.raises(StorageError, match=r"an actor died\): rerun the same command"):
        build.make_data(dataclasses.replace(lost, pack=pack))


@pytest.fixture
def make_data(sample_corpus, tokenizer_path, tmp_path):
    """Return a function that starts `make-data` for an output folder with given flags."""
    pytest.importorskip("ray", reason="needs the ray extra")
    program = [sys.executable, "-m", "bigbird_ja", "make-data", *FLAGS.split()]
    program += [f"--input={sample_corpus}", f"--tokenizer={tokenizer_path}"]
    # Ray's default timeouts of 30 seconds are too short for a busy machine.
    timeouts = ("RAY_raylet_start_wait_time_s", "RAY_worker_register_timeout_seconds")
    env = {**os.environ, **dict.fromkeys(timeouts, "200")}

    def start(folder, *flags):
        words = [*program, f"--output_dir={tmp_path / folder}", *flags]
        with open(tmp_path / "out", "w") as out, open(tmp_path / "shown", "w") as shown:
            return subprocess.Popen(words, cwd=ROOT, env=env, stdout=out, stderr=shown)

    return start


def actors(process):
    """Return the process ids of Ray's actors that `process` has started."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    session = os.getsid(process.pid)
    found = [line.split()[0] for line in listed.stdout.splitlines() if "ray::PoolActor" in line]
    return [int(pid) for pid in found if os.getsid(int(pid)) == session]


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_the_bytes_stay_the_same(make_data, tmp_path):
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
