"""`pretrain` by several processes as users run it: real processes, kills and signals."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, read_variables
from testkit import engine_runs, killing, pods, synthetic
from testkit.zygote import Ended, Zygote

pytest.importorskip("jax", minversion="0.7")
pytestmark = pytest.mark.timeout(900)  # two processes compile at the same time

STEPS = 16
GONE = "run the same command again on every host"


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return [
        "pretrain", "--config", str(config), "--data_dir", str(data), "--json",
        "--num_train_steps", str(STEPS), "--mode", "train_and_eval",
        "--set", "training.eval_every_steps=8", "--set", "model.hidden_dropout_prob=0",
        "--set", "model.num_layers=1",
        "--set", "training.global_batch_size=8", "--engine", "pjrt",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(
    zygote: Zygote, flags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Ended]]:
    """A pod of two that was left alone."""
    model = tmp_path_factory.mktemp("finished") / "model"
    ended = pods.wait(pods.start(zygote, 2, *flags, "--model_dir", str(model)))
    assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
    return model, ended


def apart(ours: Path, theirs: Path) -> float:
    """The largest relative difference of any variable of two runs' last checkpoints."""
    left, right = (read_variables(str(path / f"model.ckpt-{STEPS}")) for path in (ours, theirs))
    return max(engine_runs._apart(left, right, [n for n in left if n != "global_step"]))


def test_one_writes_and_all_know_the_end(finished: tuple[Path, list[Ended]]) -> None:
    model, ended = finished
    assert [e.result["global_step"] for e in ended] == [STEPS, STEPS]
    assert ended[0].result["loss"] == ended[1].result["loss"]
    events = run_log.read_events(str(model))
    assert [e["event"] for e in events] == ["started", *["saved"] * 4, "finished"]
    assert (events[0]["replicas"], events[0]["processes"]) == (4, 2)
    assert len({e["pid"] for e in events}) == 1, "two processes wrote"
    assert [line["step"] for line in run_log.read_metrics(str(model))] == [4, 8, 12, 16]
    assert "step 16 of 16" in ended[0].err and "step 16 of 16" not in ended[1].err
    assert all("4 x cpu in 2 processes" in e.err for e in ended)


@pytest.mark.nightly
def test_weights_and_evaluations_are_those_of_one_process(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    environ = {"XLA_FLAGS": pods.ENVIRON["XLA_FLAGS"].replace("count=2", "count=4")}
    ended = zygote.run(*flags, "--model_dir", str(model), environ=environ)
    assert ended.status == 0, ended.err
    assert apart(finished[0], model) < 1e-5
    ours, theirs = (run_log.read_evaluations(str(path)) for path in (finished[0], model))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == [8, STEPS]
    for a, b in zip(ours, theirs, strict=True):
        assert a["masked_lm_loss"] == pytest.approx(b["masked_lm_loss"], rel=1e-5)
        assert a["predictions"] == b["predictions"]
        assert [r["count"] for r in a["by_position"]] == [r["count"] for r in b["by_position"]]


def test_sigterm_to_one_saves_all_and_a_killed_one_ends_the_other(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """Process 0, whose end takes JAX's service away, is killed as well; then the same bits."""
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model)]
    running = pods.start(zygote, 2, *here, hang={1: ["step", 4]})
    running[1].wait_for(running[1].hung, seconds=pods.PATIENCE)
    running[1].send(signal.SIGTERM)
    running[0].wait_for(running[0].hung.with_name("err"), "SIGTERM in process 1")
    running[1].hung.unlink()
    ended = pods.wait(running)
    assert [e.status for e in ended] == [75, 75], [e.err for e in ended]
    (step,) = {e.result["global_step"] for e in ended}
    assert 3 <= step < STEPS and CheckpointStore(str(model)).steps()[-1] == step
    for killed in (1, 0):
        left = 1 - killed
        running = pods.start(zygote, 2, *here, hang={left: ["step", 2]})
        running[left].wait_for(running[left].hung, seconds=pods.PATIENCE)
        running[killed].send(signal.SIGKILL)
        running[left].hung.unlink()
        ended = pods.wait(running)
        assert ended[left].status == 76, ended[left].err
        assert ended[killed].status == -signal.SIGKILL
        assert GONE in ended[left].err.splitlines()[-1] and "Traceback" not in ended[left].err
        assert ended[left].result["reason"] == "stalled"
    ended = pods.wait(pods.start(zygote, 2, *here))
    assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    assert [e["reason"] for e in run_log.read_events(str(model)) if "reason" in e] == [
        "interrupted", "stalled", "finished",
    ]  # fmt: skip


@pytest.mark.nightly
def test_a_missed_last_evaluation_is_made_by_all(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """As after a kill in it: nothing is left to train, and each process has its part."""
    model = tmp_path / "model"
    shutil.copytree(finished[0], model)
    (expected,) = run_log.read_evaluations(str(model))[1:]
    (model / run_log.EVAL).unlink()
    ended = pods.wait(pods.start(zygote, 2, *flags, "--model_dir", str(model)))
    assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
    assert [e.result["reason"] for e in ended] == ["finished"] * 2
    (made,) = run_log.read_evaluations(str(model))
    assert made["step"] == STEPS and made["predictions"] == expected["predictions"]
    assert made["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-6)
    assert run_log.read_events(str(model))[-1]["event"] == "finished"


@pytest.mark.nightly
def test_sigterm_in_an_evaluation_saves_the_same_step(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """In one on the way, and in that of the last step."""
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model)]
    for number in (1, 2):  # the second start first makes up for the evaluation of the first
        running = pods.start(zygote, 2, *here, hang={1: ["evaluate", number]})
        running[1].wait_for(running[1].hung, seconds=pods.PATIENCE)
        running[0].send(signal.SIGTERM)  # which has made its part, or soon has, and waits
        running[1].wait_for(running[1].hung.with_name("err"), "SIGTERM in process 0")
        running[1].hung.unlink()
        ended = pods.wait(running)
        assert [e.status for e in ended] == [75, 75], [e.err for e in ended]
        (step,) = {e.result["global_step"] for e in ended}
        assert CheckpointStore(str(model)).steps()[-1] == step
        assert step == STEPS if number == 2 else 8 <= step < STEPS
        assert not [e for e in run_log.read_evaluations(str(model)) if e["step"] == STEPS]
    ended = pods.wait(pods.start(zygote, 2, *here))
    assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    (first, last) = run_log.read_evaluations(str(model))
    assert 8 <= first["step"] < STEPS == last["step"]
    expected = run_log.read_evaluations(str(finished[0]))[-1]["masked_lm_loss"]
    assert last["masked_lm_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.nightly
def test_a_nan_ends_all_with_its_step(zygote: Zygote, flags: list[str], tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    wrong = ["training.adam_epsilon=1e-46", "training.weight_decay=0"]
    sets = [flag for setting in wrong for flag in ("--set", setting)]
    ended = pods.wait(pods.start(zygote, 2, *flags, "--model_dir", model, *sets))
    assert [e.status for e in ended] == [70, 70], [e.err for e in ended]
    for each in ended:
        lines = [line for line in each.err.splitlines() if line.startswith("bigbird-ja: ")]
        assert len(lines) == 1 and "step 2: loss or gradients are NaN" in lines[0], each.err
        assert each.result["reason"] == "diverged" and "Traceback" not in each.err
    assert CheckpointStore(model).steps() == []
    assert run_log.read_events(model)[-1]["reason"] == "diverged"


@pytest.mark.nightly
def test_divided_state_gives_the_same_weights_and_checkpoints(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """ZeRO-1 over all devices of a pod, from the first step on; then each resumes the other's
    checkpoint."""
    divided = ["--set", "training.optimizer_sharding=true"]
    model = tmp_path / "divided"
    ended = pods.wait(pods.start(zygote, 2, *flags, *divided, "--model_dir", str(model)))
    assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
    assert apart(model, finished[0]) < 1e-5
    for name, source, sets in (("whole", model, []), ("again", finished[0], divided)):
        other = tmp_path / name
        shutil.copytree(source, other)
        for path in other.glob(f"model.ckpt-{STEPS}.*"):
            path.unlink()
        ended = pods.wait(pods.start(zygote, 2, *flags, *sets, "--model_dir", str(other)))
        assert [e.status for e in ended] == [0, 0], [e.err for e in ended]
        (resumed,) = [e for e in run_log.read_events(str(other)) if e["event"] == "resumed"]
        assert 0 < resumed["global_step"] < STEPS
        assert apart(other, finished[0]) < 1e-5


@pytest.mark.nightly
def test_another_folder_under_the_same_name(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    places = [tmp_path / name for name in ("a", "b")]
    address = pods.free_address()
    running = []
    for index, place in enumerate(places):
        place.mkdir()
        running.append(
            zygote.start(
                *flags, "--model_dir", "model", *pods.place(address, 2, index), cwd=str(place),
                environ=pods.ENVIRON,
            )
        )  # fmt: skip
    check_refused(pods.wait(running), "not the folder that process 0 writes to")
    assert not any(list(place.iterdir()) for place in places)


def check_refused(ended: list[Ended], words: str) -> None:
    """One line on each, and status 2."""
    assert [e.status for e in ended] == [2] * len(ended), [e.err for e in ended]
    for each in ended:
        lines = [line for line in each.err.splitlines() if line.startswith("bigbird-ja: ")]
        assert len(lines) == 1 and words in lines[0], each.err
        assert "Traceback" not in each.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "training.learning_rate=0.5"], "training.learning_rate=0.5"),
        (["--mode", "train"], "--mode=train"),
        (["--num_processes", "4"], "--num_processes=4"),
        (["--data_dir", "other"], "fingerprint of the data="),
    ],
)
def test_hosts_that_differ_are_refused_on_each(
    more: list[str], words: str, zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    if more[1] == "other":
        synthetic.write(tmp_path / "other", (40, 40, 40, 40), seed=5)
        more = ["--data_dir", str(tmp_path / "other")]
    at = flags.index("training.eval_every_steps=8")  # means nothing without evaluation
    here = [*flags[: at - 1], *flags[at + 1 :], "--model_dir", str(tmp_path / "model")]
    address = pods.free_address()
    running = [
        zygote.start(*here, *pods.place(address, 2, index), *extra, environ=pods.ENVIRON)
        for index, extra in enumerate(([], more))
    ]
    check_refused(pods.wait(running), words)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("indices", [(0,), (1,), (0, 1, 1)])
def test_processes_that_do_not_meet_end(
    indices: tuple[int, ...], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """Where one is alone, and where two have the same --process_id."""
    here = [*flags, "--model_dir", str(tmp_path / "model"), "--pod_wait_seconds", "2"]
    address, count = pods.free_address(), 2 if len(indices) == 1 else 4
    running = [
        zygote.start(*here, *pods.place(address, count, index), environ=pods.ENVIRON)
        for index in indices
    ]
    check_refused(pods.wait(running), f"the {count} processes did not meet there within 2 s")
    assert not (tmp_path / "model").exists()


def test_a_request_to_stop_ends_the_wait_for_the_others(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    here = [*flags, "--model_dir", str(tmp_path / "model")]
    running = zygote.start(*here, *pods.place(pods.free_address(), 2, 0), environ=pods.ENVIRON)
    running.wait_for(running.hung.with_name("err"), "which meet at")
    running.send(signal.SIGTERM)
    ended = running.wait(pods.PATIENCE)
    assert ended.status == 75 and "stopped before training" in ended.err, ended.err


@pytest.mark.nightly
def test_four_processes(
    finished: tuple[Path, list[Ended]], zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    """Killed where it compiles, then to its end: as one process with as many devices."""
    model, alone = tmp_path / "model", tmp_path / "alone"
    here = [*flags, "--model_dir", str(model)]
    running = pods.start(zygote, 4, *here, hang={2: ["start-up", 1]})
    running[2].wait_for(running[2].hung, seconds=pods.PATIENCE)
    running[3].send(signal.SIGKILL)
    ended = pods.wait(running)
    assert [e.status for e in ended] == [76, 76, 76, -signal.SIGKILL], [e.err for e in ended]
    ended = pods.wait(pods.start(zygote, 4, *here))
    assert [e.status for e in ended] == [0] * 4, [e.err for e in ended]
    environ = {"XLA_FLAGS": pods.ENVIRON["XLA_FLAGS"].replace("count=2", "count=8")}
    done: Any = zygote.run(*flags, "--model_dir", str(alone), environ=environ)
    assert done.status == 0, done.err
    assert apart(model, alone) < 1e-5
