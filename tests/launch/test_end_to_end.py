"""Launch with real training: preempted again and again, it ends with the weights of a run that
was left alone, and with no node."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.command_line import run_cli
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

SETTINGS = (
    "--set=model.hidden_size=32", "--set=model.intermediate_size=64", "--set=data.seed=3",
    "--set=checkpoints.save_every_steps=20", "--set=training.log_every_steps=5",
    "--set=training.global_batch_size=4",
)  # fmt: skip


@pytest.fixture(scope="session")
def data_dir(sample_corpus: str, tokenizer_path: str, once: Callable[..., Path]) -> str:
    def make(folder: Path) -> None:
        ended = run_cli(
            "make-data", "--config=tiny-cpu", f"--input={sample_corpus}",
            f"--tokenizer={tokenizer_path}", f"--output_dir={folder}/data", "--seq_length=128",
            "--max_predictions_per_seq=20",
        )  # fmt: skip
        assert ended.status == 0, ended.stderr

    return f"{once('launched-data', make)}/data"


def weights(model_dir: str, steps: int) -> dict[str, bytes]:
    from bigbird_ja.run.model import load_parameters

    _, parameters, meta = load_parameters(model_dir)
    assert meta.step == steps
    return {name: value.tobytes() for name, value in parameters.items()}


def wait_for_a_write(root: str, kind: str) -> None:
    """Until another step was made, or another file of a checkpoint written, or all is over."""

    def trace() -> object:
        if kind == "training":
            return support.read(root, "model/heartbeat.json", "global_step")
        return sorted(path.name for path in Path(root, "bucket/run-1/model").glob("*ckpt*"))

    before = trace()
    support.wait_until(lambda: trace() != before or has_ended(root), 120)


def has_ended(root: str) -> bool:
    return bool(support.read(root, "model/heartbeat.json", "state") == "stopped")


def preempt_often(root: str, fake: support.Fake, times: int) -> None:
    """Kills at random: while booting, before the first step, in a save, and well into training.

    What is taken away before the supervisor has seen it, it cannot count.
    """
    rng, done = random.Random(11), 0
    pauses = {"booting": (0.0, 1.0), "starting": (1.5, 4.0), "saving": (0.0, 0.1)}
    while done < times:
        support.wait_until(
            lambda: (
                fake.is_ready("run-1")
                and support.read(root, "supervisor/state.json", "phase") == "running"
            ),
            120,
        )
        kind = ("booting", "starting", "saving", "training")[done % 4]
        if kind in ("saving", "training"):
            wait_for_a_write(root, kind)
        time.sleep(rng.uniform(*pauses.get(kind, (0.0, 0.4))))
        if fake.is_ready("run-1") and not has_ended(root):
            fake.preempt("run-1", grace=rng.choice([0.0, 0.0, 1.0]))
            done += 1


def check(kind: type[support.Fake], root: str, data_dir: str, times: int, steps: int) -> None:
    reference = f"{root}/undisturbed"
    same = ("--config=tiny-cpu", f"--data_dir={data_dir}", f"--num_train_steps={steps}", *SETTINGS)
    ended = run_cli("pretrain", f"--model_dir={reference}", *same)
    assert ended.status == 0, ended.stderr
    more = [*same, f"--vm_python={sys.executable}"]
    more += ["--accelerator_type=v6e-8"] if kind is FakeCompute else []
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with kind(f"{root}/vms", environ, keep_disk=True) as fake:
        thread = support.in_background(lambda: preempt_often(root, fake, times))
        status, result = support.run(support.command(root, *more), fake)
        assert (status, result["global_step"]) == (0, steps), result
        thread.join(5)
        assert (fake.node_names(), fake.most_at_once) == ([], 1)
    assert (result["preemptions"], result["failures"]) == (times, 0)
    results, expected = weights(result["model_dir"], steps), weights(reference, steps)
    assert [name for name in expected if results[name] != expected[name]] == []
    with open(f"{result['model_dir']}/metrics.jsonl", encoding="utf-8") as file:
        logged = [json.loads(line)["step"] for line in file]
    assert logged == sorted(set(logged)) and logged[-1] == steps


@pytest.mark.parametrize("kind", [FakeTpu, FakeCompute])
@pytest.mark.nightly
def test_preempted_twenty_times_same_weights(
    tmp_path: Path, data_dir: str, kind: type[support.Fake]
) -> None:
    check(kind, str(tmp_path), data_dir, times=20, steps=1000)


@pytest.mark.timeout(600)
def test_preempted_twice_same_weights(tmp_path: Path, data_dir: str) -> None:
    """While it boots, and before its first step."""
    check(FakeTpu, str(tmp_path), data_dir, times=2, steps=40)
