"""The processes of a pod, which train one run together, save and stop at the same step.

The first tests use a key-value store in memory. The later tests run `pretrain` in real processes,
which are killed or get signals.
"""

import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from bigbird_ja.errors import Diverged, Stalled, StorageError
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.schema import Config, SteadyTraining
from bigbird_ja.train import pod as pod_lib
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.pod import Pod
from bigbird_ja.train.watchdog import Watchdog
from testkit import killing, pods, synthetic
from testkit.engine_runs import apart
from testkit.zygote import Command
from tests.commands.pretraining import events, take_programs

ENDING = """
import sys, time
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import leave
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.pod import Pod
exit_process = ProcessExit(leave)
pod = Pod(int(sys.argv[1]), 2, "host", StopRequest(print, print), exit_process)
pod.connect(sys.argv[2], "cpu", 60, lambda: None)
pod.finish()
pod.detach()
time.sleep(2 * (sys.argv[3] == "True"))
"""


class Store:
    """Key-value store in memory, in place of JAX's client. All simulated processes share it."""

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
    """Simulated process of a pod."""

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


def test_last_evaluation_is_shared_with_all_processes(monkeypatch):
    """Share the step of the last evaluation with all processes. Only process 0 reads the log."""
    monkeypatch.setattr("bigbird_ja.evaluation.masked_lm.evaluate_model", lambda *_, **__: None)
    evaluations = []
    for member in members(2):
        here = SimpleNamespace(
            config=Config(training=SteadyTraining(eval_every_steps=10, num_train_steps=50)),
            manifest=SimpleNamespace(fingerprint="data"),
            data_dir="",
            pod=member.pod,
            evaluates=True,
            init_from=None,
        )
        evaluations.append(Evaluations(here, member.stop, Watchdog(0, print)))
    # The run resumes at step 25, so the recorded evaluation of step 40 is ignored.
    lines = [{"step": step, "data_fingerprint": "data"} for step in (20, 40)]
    for each, known in zip(evaluations, (lines, []), strict=True):
        each.begin(25, known)
        assert not each.is_due(25) and each.is_due(30)
    assert evaluations[1].evaluate(30, None) is None
    assert not evaluations[1].is_due(33) and evaluations[1].is_due(40)


AHEAD = 3


class Engine:
    """Simulated engine of one process, with up to `AHEAD` dispatched steps that are not finished.

    A step can finish only after all processes have dispatched it.
    """

    def __init__(self, pod, start):
        self.pod, self.dispatched, self.finished, self.saves = pod, start, start, [start]
        self.is_time = False

    def advance(self, everyone, rng):
        """Run one turn of the training loop, and return whether training has stopped."""
        if self.pod.stops_at(self.finished, False):
            return True
        limit = self.pod.choose_limit(self.finished, 10**6, AHEAD)
        self.dispatched = max(self.dispatched, min(limit, self.finished + AHEAD))
        common = min(engine.dispatched for engine in everyone)
        self.finished = rng.randint(self.finished, common)
        if self.pod.saves_at(self.finished, self.saves[-1], self.is_time):
            # A save first waits until all dispatched steps are finished.
            self.saves.append(self.dispatched)
            self.finished = self.dispatched
        return False


@pytest.mark.parametrize("seed", range(40))
def test_all_processes_stop_and_save_at_the_same_steps(seed):
    rng = random.Random(seed)
    start = rng.choice([0, 700])
    pods = [member.pod for member in members(rng.choice([2, 4]))]
    engines = [Engine(pod, start) for pod in pods]
    for turn in range(4000):
        engine = rng.choice(engines)
        engines[0].is_time = turn % 60 == 20  # Only the clock of process 0 decides when to save.
        if turn == 400:
            rng.choice(pods).ask_to_stop("SIGTERM")
            # In a real pod, process 0 makes this call when it reads the request from the store.
            pods[0].ask_to_stop("SIGTERM")
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


def test_failure_ends_the_process_if_the_store_is_lost(monkeypatch):
    monkeypatch.setattr(pod_lib, "_FINAL_STATUS_SECONDS", 0.1)
    one = members(1)[0]
    one.pod._client.key_value_set = lambda *_: threading.Event().wait()  # type: ignore[attr-defined]
    threading.Thread(target=one.pod.fail, args=("stalled", "Gloo"), daemon=True).start()
    until(lambda: one.pod._failure)
    one.pod._cut_off()  # JAX's client calls this when it loses its connection to the store.
    assert [type(error) for error in one.left] == [Stalled]


def test_waiting_process_raises_the_failure_of_another():
    writer, failing = members(2)
    thread = writer.listen()
    threading.Timer(0.1, failing.pod.fail, ("io_error", "disk full")).start()
    with pytest.raises(StorageError, match="process 1 on host: disk full"):
        writer.pod.collect("evaluation 8", {}, lambda: None)
    thread.join(30)
    assert not writer.left


def test_shared_values_and_collected_arrays_are_unchanged():
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

    # Process 1 sends no arrays of evaluation 9, so process 0 waits for them until `give_up` raises.
    with pytest.raises(KeyboardInterrupt):
        writer.collect("evaluation 9", part, give_up)


def test_finish_waits_for_the_writer():
    writer, other = members(2)
    ended = threading.Thread(target=other.pod.finish)
    ended.start()
    ended.join(0.3)
    assert ended.is_alive()
    writer.pod.finish()
    ended.join(30)
    assert not ended.is_alive()


def test_jax_prints_no_crash_after_a_finished_run():
    pytest.importorskip("jax")
    running = []
    for slow in range(2):
        address = pods.free_address()
        for index in range(2):
            command = [sys.executable, "-c", ENDING, str(index), address, str(index == slow)]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    for process in running:
        err = process.communicate(timeout=pods.TIMEOUT)[1]
        assert process.returncode == 0 and "Terminating process" not in err, err


STEPS = 16
GONE = "rerun the same command on every host"
Start = Callable[..., list[Command]]
# Processes that compile at the same time are slow, so these tests need a long timeout.
processes = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    pytest.importorskip("jax", minversion="0.7")
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return f"""
        pretrain --config {config} --data_dir {data} --json --num_train_steps {STEPS}
        --mode train_and_eval --engine pjrt --set training.eval_every_steps=8
        --set model.hidden_dropout_prob=0
        --set training.optimizer=muon --set training.global_batch_size=8
    """.split()


@pytest.fixture(scope="module")
def start(zygote, flags):
    """Return a function that starts `pretrain` in each of `processes` processes of one pod."""

    def start(model, *more, processes=2, hang=None):
        here = [*flags, *more, "--model_dir", str(model)]
        return pods.start(zygote, processes, *here, hang=hang)

    return start


@pytest.fixture(scope="module")
def finished(start, tmp_path_factory):
    """Train in a pod of two processes without interruption. Return MODEL_DIR and both outcomes.

    The optimizer's state is sharded over the devices.
    """
    model = tmp_path_factory.mktemp("finished") / "model"
    return model, pods.wait(start(model), 0, 0)


def hung(running, index):
    """Wait until process `index` pauses where `start(hang=...)` requested, and return it."""
    running[index].wait_for(running[index].hung, seconds=pods.TIMEOUT)
    return running[index]


@processes
def test_one_process_writes_and_all_report_the_result(finished):
    model, ended = finished
    assert [e.result["global_step"] for e in ended] == [STEPS, STEPS]
    assert ended[0].result["loss"] == ended[1].result["loss"]
    assert events(model) == ["started", *["saved"] * 4, "finished"]
    records = run_log.read_events(str(model))
    assert (records[0]["replicas"], records[0]["processes"]) == (4, 2)
    assert len({e["pid"] for e in records}) == 1, "two processes wrote"
    assert [line["step"] for line in run_log.read_metrics(str(model))] == [4, 8, 12, 16]
    assert "step 16 of 16" in ended[0].err and "step 16 of 16" not in ended[1].err
    assert all("4 x cpu in 2 processes" in e.err for e in ended)


@pytest.mark.slow
@processes
def test_weights_and_evaluations_equal_those_of_one_process(start, zygote, flags, tmp_path):
    """Compare the weights and evaluations of a pod with those of a single process.

    One process of the pod is killed, so that the other processes end. The pod is started again.
    """
    pod, alone = tmp_path / "pod", tmp_path / "alone"
    running = start(pod, processes=4, hang={0: ("start-up", 1)})
    hung(running, 0)
    running[-1].send(signal.SIGKILL)
    pods.wait(running, *[76] * 3, -signal.SIGKILL)
    pods.wait(start(pod, processes=4), *[0] * 4)
    ended = zygote.run(*flags, "--model_dir", str(alone), environ=pods.environ(8))
    assert ended.status == 0, ended.err
    assert apart(pod, alone, STEPS) < 1e-5
    ours, theirs = (run_log.read_evaluations(str(path)) for path in (pod, alone))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [8, STEPS]
    for a, b in zip(ours, theirs, strict=True):
        assert a["masked_lm_loss"] == pytest.approx(b["masked_lm_loss"], rel=1e-5)
        assert a["predictions"] == b["predictions"]
        assert [r["count"] for r in a["by_position"]] == [r["count"] for r in b["by_position"]]


@processes
def test_resume_is_bit_exact_after_sigterm_and_kills_of_processes(finished, start, tmp_path):
    """Compare the last checkpoint bit for bit with that of an uninterrupted pod.

    The pod is stopped by SIGTERM, by SIGKILL of process 1, and by SIGKILL of process 0, which also
    runs JAX's coordination service. After each stop, the pod is started again.
    """
    model = tmp_path / "model"
    take_programs(finished[0], model)
    running = start(model, hang={1: ("step", 2)})
    hung(running, 1).send(signal.SIGTERM)
    running[0].wait_for(running[0].hung.with_name("err"), "SIGTERM in process 1")
    running[1].hung.unlink()
    ended = pods.wait(running, 75, 75)
    (step,) = {e.result["global_step"] for e in ended}
    assert 3 <= step < STEPS and CheckpointStore(str(model)).list_steps()[-1] == step
    for killed in (1, 0):
        left = 1 - killed
        running = start(model, hang={left: ("step", 2)})
        hung(running, left)
        running[killed].send(signal.SIGKILL)
        running[left].hung.unlink()
        ended = pods.wait(running)
        assert ended[left].status == 76, ended[left].err
        assert ended[killed].status == -signal.SIGKILL
        assert GONE in ended[left].err.splitlines()[-1] and "Traceback" not in ended[left].err
        assert ended[left].result["reason"] == "stalled"
    pods.wait(start(model), 0, 0)
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    assert [e["reason"] for e in run_log.read_events(str(model)) if "reason" in e] == [
        "interrupted",
        "stalled",
        "finished",
    ]


def check_refused(ended, *words):
    """Check that each process refuses its input in one line that contains all `words`."""
    for each in ended:
        lines = [line for line in each.err.splitlines() if line.startswith("bigbird-ja: ")]
        assert len(lines) == 1 and all(word in lines[0] for word in words), each.err
        assert each.result["reason"] == "bad_input" and "Traceback" not in each.err


@processes
def test_different_flags_are_refused_on_each_host(zygote, flags, tmp_path):
    # With --mode=train, training.eval_every_steps has no effect and would be refused, so remove the
    # setting.
    at = flags.index("training.eval_every_steps=8")
    same = [*flags[: at - 1], *flags[at + 1 :], "--model_dir", str(tmp_path / "model")]
    synthetic.write(tmp_path / "other", (40, 40, 40, 40), seed=5)
    other = ["--set=training.learning_rate=0.5", "--mode=train", f"--data_dir={tmp_path}/other"]
    address = pods.free_address()
    running = [
        zygote.start(*same, environ=pods.place(address, 2, 0)),
        zygote.start(*same, *other, environ=pods.place(address, 4, 1)),
    ]
    words = ["training.learning_rate=0.5", "--mode=train", "JAX_NUM_PROCESSES=4"]
    check_refused(pods.wait(running, 2, 2), *words, "fingerprint of the data=")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@processes
def test_another_folder_with_the_same_name_is_refused(zygote, flags, tmp_path):
    places = [tmp_path / name for name in ("a", "b")]
    address = pods.free_address()
    running = []
    for index, place in enumerate(places):
        place.mkdir()
        here = [*flags, "--model_dir", "model"]
        running.append(zygote.start(*here, cwd=str(place), environ=pods.place(address, 2, index)))
    ended = pods.wait(running, 2, 2)
    check_refused(ended, "not the folder that process 0 writes to")
    assert not any(list(place.iterdir()) for place in places)


@processes
def test_processes_that_do_not_meet_are_refused(zygote, flags, tmp_path):
    """Refuse to train if a process of the pod is missing, or if two processes have one index."""
    here = [*flags, "--model_dir", str(tmp_path / "model"), "--pod_wait_seconds", "2"]
    for count, indices in ((2, [1]), (4, [0, 1, 1])):
        address = pods.free_address()
        running = [
            zygote.start(*here, environ=pods.place(address, count, index)) for index in indices
        ]
        ended = pods.wait(running, *[2] * len(indices))
        check_refused(ended, f"the {count} processes did not meet at JAX_COORDINATOR_ADDRESS=")
    assert not (tmp_path / "model").exists()


@processes
def test_sigterm_ends_the_wait_for_other_processes(zygote, flags, tmp_path):
    here = [*flags, "--model_dir", str(tmp_path / "model")]
    running = zygote.start(*here, environ=pods.place(pods.free_address(), 2, 0))
    running.wait_for(running.hung.with_name("err"), "which meet at")
    running.send(signal.SIGTERM)
    ended = running.wait(pods.TIMEOUT)
    assert ended.status == 75 and "stopped before training" in ended.err, ended.err
