"""How the processes of a pod agree on steps and end together, over a key-value store in memory."""

import random
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from bigbird_ja.process.errors import BadInput, Diverged, Stalled, StorageError
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.schema import Config, TrainingConfig
from bigbird_ja.train import pod as pod_lib
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.pod import Pod
from bigbird_ja.train.watchdog import Watchdog
from testkit import pods

ENDING = """
import sys, time
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.pod import Pod
exit_process = ProcessExit()
pod = Pod(int(sys.argv[1]), 2, "host", StopRequest(print, print), exit_process)
pod.connect(sys.argv[2], "cpu", 60, lambda: None)
pod.finish()
pod.detach()
time.sleep(2 * (sys.argv[3] == "True"))
"""


class Store:
    """What a pod uses of JAX's client; one for all processes."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            if key in self._values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get_bytes(self, key, timeout):
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]

    def key_value_dir_get(self, folder):
        with self._changed:
            return [item for item in self._values.items() if item[0].startswith(folder)]

    def key_value_delete(self, key):
        self._values.pop(key)

    def shutdown(self):
        pass

    key_value_set_bytes = key_value_set


class Member:
    """One process."""

    def __init__(self, index, count, store):
        self.stop = StopRequest(lambda text: None, lambda text: None, timeout=1e9)
        self.left = []
        self.pod = Pod(index, count, "host", self.stop, ProcessExit(self.left.append))
        self.pod._client = store

    def listen(self):
        thread = threading.Thread(target=self.pod._listen, daemon=True)
        thread.start()
        return thread


def members(count):
    store = Store()
    return [Member(index, count, store) for index in range(count)]


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_process_knows_which_evaluation_was_the_last(monkeypatch):
    """Only the writer sees MODEL_DIR's disk; who does not know evaluates, and waits for nobody."""
    monkeypatch.setattr("bigbird_ja.evaluation.masked_lm.evaluate_model", lambda *_, **__: None)
    evaluations = []
    for member in members(2):
        here = SimpleNamespace(
            config=Config(training=TrainingConfig(eval_every_steps=10, num_train_steps=50)),
            manifest=SimpleNamespace(fingerprint="data"),
            data_dir="",
            pod=member.pod,
            evaluates=True,
            init_from=None,
            deps=Dependencies(),
        )
        evaluations.append(Evaluations(here, threading.Event(), Watchdog(0, print)))
    earlier = {"step": 20, "time": 0.0, "data_fingerprint": "data"}
    for each, known in zip(evaluations, ([earlier], []), strict=True):
        each.begin(known)
        assert not each.is_due(25) and each.is_due(30)
    assert evaluations[1].evaluate(30, None) is None
    assert not evaluations[1].is_due(33) and evaluations[1].is_due(40)


AHEAD = 3


class Engine:
    """Dispatches up to `AHEAD` steps beyond the finished ones; a step ends once all have it."""

    def __init__(self, pod, start):
        self.pod, self.dispatched, self.finished, self.saves = pod, start, start, [start]
        self.is_time = False

    def advance(self, everyone, rng):
        """One turn if it need not wait; whether training has stopped."""
        if self.pod.stops_at(self.finished, False):
            return True
        limit = self.pod.next_limit(self.finished, 10**6, AHEAD)
        self.dispatched = max(self.dispatched, min(limit, self.finished + AHEAD))
        common = min(engine.dispatched for engine in everyone)
        self.finished = rng.randint(self.finished, common)
        if self.pod.saves_at(self.finished, self.saves[-1], self.is_time):
            self.saves.append(self.dispatched)  # what is dispatched is settled before a save
            self.finished = self.dispatched
        return False


@pytest.mark.parametrize("seed", range(40))
def test_all_stop_and_save_at_the_same_steps_in_any_order_of_events(seed):
    rng = random.Random(seed)
    start = rng.choice([0, 700])
    pods = [member.pod for member in members(rng.choice([2, 4]))]
    engines = [Engine(pod, start) for pod in pods]
    for turn in range(4000):
        engine = rng.choice(engines)
        engines[0].is_time = turn % 60 == 20  # by the writer's clock
        if turn == 400:
            rng.choice(pods).ask_to_stop("SIGTERM")
            pods[0].ask_to_stop("SIGTERM")  # the writer hears of it
        engine.advance(engines, rng)
    for engine in engines:
        assert engine.pod.stops_at(engine.finished, False) and engine.finished > start
        assert engine.finished == engine.dispatched == engines[0].finished
        assert engine.saves == engines[0].saves
    assert len(engines[0].saves) > 2


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("diverged", Diverged, "process 1 on host: step 3"),
        ("bug", Stalled, r"process 1 on host ended \(bug: step 3\)"),
    ],
)
def test_a_failure_ends_the_others_with_its_reason(reason, kind, words):
    writer, failing = members(2)
    thread = writer.listen()
    failing.pod.fail(reason, "step 3")
    thread.join(30)
    (end,) = writer.left
    assert type(end) is kind and re.search(words, str(end))
    failing.pod.fail("io_error", "a second end of the same process")
    assert "io_error" not in str(failing.pod._client.key_value_dir_get("pod/"))


def test_a_failure_that_the_lost_store_holds_up_ends_the_process(monkeypatch):
    monkeypatch.setattr(pod_lib, "_FINAL_STATUS_SECONDS", 0.1)
    one = members(1)[0]
    one.pod._client.key_value_set = lambda *_: threading.Event().wait()  # type: ignore[attr-defined]
    threading.Thread(target=one.pod.fail, args=("stalled", "Gloo"), daemon=True).start()
    until(lambda: one.pod._failure)
    one.pod._cut_off()  # JAX's client has noticed
    assert [type(error) for error in one.left] == [Stalled]


def test_who_waits_in_the_main_thread_raises_the_failure_there():
    writer, failing = members(2)
    thread = writer.listen()
    threading.Timer(0.1, failing.pod.fail, ("io_error", "disk full")).start()
    with pytest.raises(StorageError, match="process 1 on host: disk full"):
        writer.pod.collect("evaluation 8", {}, lambda: None)
    thread.join(30)
    assert not writer.left


def test_what_the_writer_makes_and_what_each_evaluates_travels_whole():
    writer, other = (member.pod for member in members(2))
    assert writer.share("start", lambda: {"step": None}) == {"step": None}
    assert other.share("start", dict) == {"step": None}
    part = {"loss": np.arange(3, dtype=np.float32), "empty": np.zeros(0)}
    assert other.collect("evaluation 8", part, lambda: None) is None
    parts = writer.collect("evaluation 8", {"loss": np.ones(1)}, lambda: None)
    assert parts is not None and len(parts) == 2
    np.testing.assert_array_equal(parts[1]["loss"], part["loss"])

    def give_up():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # a part that does not come
        writer.collect("evaluation 9", part, give_up)


def test_the_end_of_a_run_waits_for_the_writer():
    writer, other = members(2)
    ended = threading.Thread(target=other.pod.finish)
    ended.start()
    ended.join(0.3)
    assert ended.is_alive()
    writer.pod.finish()
    ended.join(30)
    assert not ended.is_alive()


def test_after_a_good_end_jax_says_nothing_whoever_exits_first():
    pytest.importorskip("jax")
    running = []
    for slow in range(2):
        address = pods.free_address()
        for index in range(2):
            command = [sys.executable, "-c", ENDING, str(index), address, str(index == slow)]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for process in running:
        err = process.communicate(timeout=pods.PATIENCE)[1]
        assert process.returncode == 0 and "Terminating process" not in err, err


def test_a_jax_that_is_too_old_is_refused(monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setattr("jax.__version_info__", (0, 6, 2))
    (member,) = members(1)
    with pytest.raises(BadInput, match="several processes need jax"):
        member.pod.connect("127.0.0.1:1", "cpu", 1, lambda: None)
