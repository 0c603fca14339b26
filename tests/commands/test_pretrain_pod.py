"""`pretrain` by several processes as users run it: real processes, kills and signals."""

import signal
from collections.abc import Callable

import pytest

from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from testkit import killing, pods, synthetic
from testkit.engine_runs import apart
from testkit.zygote import Command
from tests.commands.pretraining import events, take_programs

pytest.importorskip("jax", minversion="0.7")
pytestmark = pytest.mark.timeout(900)  # two processes compile at the same time

STEPS = 16
GONE = "run the same command again on every host"
Start = Callable[..., list[Command]]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return f"""
        pretrain --config {config} --data_dir {data} --json --num_train_steps {STEPS}
        --mode train_and_eval --engine pjrt --set training.eval_every_steps=8
        --set model.hidden_dropout_prob=0
        --set training.optimizer=muon --set training.global_batch_size=8
    """.split()


@pytest.fixture(scope="module")
def start(zygote, flags):
    """`start(model, ...)`: a pod of two, or of `processes`, that trains in a folder."""

    def start(model, *more, processes=2, hang=None):
        here = [*flags, *more, "--model_dir", str(model)]
        return pods.start(zygote, processes, *here, hang=hang)

    return start


@pytest.fixture(scope="module")
def finished(start, tmp_path_factory):
    """A pod of two that was left alone; the optimiser's state is divided over its devices."""
    model = tmp_path_factory.mktemp("finished") / "model"
    return model, pods.wait(start(model), 0, 0)


def hung(running, index):
    """The process that stands still."""
    running[index].wait_for(running[index].hung, seconds=pods.PATIENCE)
    return running[index]


def test_one_writes_and_all_know_the_end(finished):
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


@pytest.mark.nightly
def test_weights_and_evaluations_are_those_of_one_process(start, zygote, flags, tmp_path):
    """Also after one was killed where it compiles, which ends all."""
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


def test_sigterm_to_one_saves_all_and_a_killed_one_ends_the_other(finished, start, tmp_path):
    """Process 0, whose end takes JAX's service away, is killed as well; then the same bits."""
    model = tmp_path / "model"
    take_programs(finished[0], model)
    running = start(model, hang={1: ("step", 2)})
    hung(running, 1).send(signal.SIGTERM)
    running[0].wait_for(running[0].hung.with_name("err"), "SIGTERM in process 1")
    running[1].hung.unlink()
    ended = pods.wait(running, 75, 75)
    (step,) = {e.result["global_step"] for e in ended}
    assert 3 <= step < STEPS and CheckpointStore(str(model)).steps()[-1] == step
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
    """One line on each, which holds the words."""
    for each in ended:
        lines = [line for line in each.err.splitlines() if line.startswith("bigbird-ja: ")]
        assert len(lines) == 1 and all(word in lines[0] for word in words), each.err
        assert each.result["reason"] == "bad_input" and "Traceback" not in each.err


def test_hosts_that_differ_are_refused_on_each(zygote, flags, tmp_path):
    at = flags.index("training.eval_every_steps=8")  # means nothing without evaluation
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


@pytest.mark.nightly
def test_another_folder_under_the_same_name(zygote, flags, tmp_path):
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


def test_processes_that_do_not_meet_end(zygote, flags, tmp_path):
    """Where one is alone, and where two have the same number."""
    here = [*flags, "--model_dir", str(tmp_path / "model"), "--pod_wait_seconds", "2"]
    for count, indices in ((2, [1]), (4, [0, 1, 1])):
        address = pods.free_address()
        running = [
            zygote.start(*here, environ=pods.place(address, count, index)) for index in indices
        ]
        ended = pods.wait(running, *[2] * len(indices))
        check_refused(ended, f"the {count} processes did not meet there within 2 s")
    assert not (tmp_path / "model").exists()


def test_a_request_to_stop_ends_the_wait_for_the_others(zygote, flags, tmp_path):
    here = [*flags, "--model_dir", str(tmp_path / "model")]
    running = zygote.start(*here, environ=pods.place(pods.free_address(), 2, 0))
    running.wait_for(running.hung.with_name("err"), "which meet at")
    running.send(signal.SIGTERM)
    ended = running.wait(pods.PATIENCE)
    assert ended.status == 75 and "stopped before training" in ended.err, ended.err
