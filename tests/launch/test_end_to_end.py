"""Launch with real training: preempted again and again, it ends with the weights of a run that
was left alone, and with not one node."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

SETTINGS = [
    "--set=model.hidden_size=32", "--set=model.intermediate_size=64", "--set=data.seed=3",
    "--set=checkpoints.save_every_steps=20", "--set=training.log_every_steps=5",
    "--set=training.global_batch_size=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("corpus")
    make = [sys.executable, "-m", "bigbird_ja"]
    for arguments in (
        ["sample", f"--output={root}/s.jsonl", "--documents=40", "--seed=1"],
        ["tokenize", f"--input={root}/s.jsonl", f"--output_prefix={root}/tok", "--vocab_size=1200"],
        ["make-data", "--config=tiny-cpu", f"--input={root}/s.jsonl",
         f"--tokenizer={root}/tok.model", f"--output_dir={root}/data", "--seq_length=128",
         "--max_predictions_per_seq=20", "--num_workers=1"],
    ):  # fmt: skip
        subprocess.run([*make, *arguments], check=True, capture_output=True)
    return f"{root}/data"


def weights(model_dir: str, steps: int) -> dict[str, bytes]:
    from bigbird_ja.run.model import load_parameters

    _, parameters, meta = load_parameters(model_dir)
    assert meta.step == steps
    return {name: value.tobytes() for name, value in parameters.items()}


def undisturbed(root: str, data_dir: str, steps: int) -> str:
    model_dir = f"{root}/undisturbed"
    arguments = [
        "pretrain", "--config=tiny-cpu", f"--data_dir={data_dir}",
        f"--model_dir={model_dir}", f"--num_train_steps={steps}", *SETTINGS,
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "bigbird_ja", *arguments], check=True, capture_output=True
    )
    return model_dir


def command(root: str, data_dir: str, fake: support.Fake, steps: int) -> list[str]:
    newer = ["--accelerator_type=v6e-8"] if isinstance(fake, FakeCompute) else []
    base = support.command(root, fake, *SETTINGS, *newer, steps=steps)
    replaced = {
        "--data_dir": f"--data_dir={data_dir}",
        "--vm_python": f"--vm_python={sys.executable}",
    }
    return [replaced.get(argument.partition("=")[0], argument) for argument in base]


def read(root: str, path: str, key: str) -> object:
    """A value in a file of the run; None where it is not there yet."""
    try:
        with open(f"{root}/bucket/run-1/{path}", encoding="utf-8") as file:
            return json.load(file)[key]
    except (FileNotFoundError, ValueError):
        return None


def has_ended(root: str) -> bool:
    return read(root, "model/heartbeat.json", "state") == "stopped"


def is_watched(root: str) -> bool:
    """Whether the supervisor has seen the machine: what goes before that, it cannot count."""
    return read(root, "supervisor/state.json", "phase") == "running"


def trace(root: str, kind: str) -> object:
    """What changes with every logged step, or with every file of a checkpoint."""
    model_dir = f"{root}/bucket/run-1/model"
    try:
        if kind == "training":
            return os.path.getsize(f"{model_dir}/metrics.jsonl")
        return sorted(name for name in os.listdir(model_dir) if "ckpt" in name)
    except FileNotFoundError:
        return None


def preempt_often(root: str, fake: support.Fake, times: int, seed: int) -> list[str]:
    """Kills at random: while booting, before the first step, in a save, and well into training."""
    rng, done = random.Random(seed), []
    while len(done) < times:
        support.wait_until(lambda: fake.is_ready("run-1") and is_watched(root), 120)
        kind = ("booting", "starting", "saving", "training")[len(done) % 4]
        if kind == "booting":
            time.sleep(rng.uniform(0.0, 1.0))
        elif kind == "starting":
            time.sleep(rng.uniform(1.5, 4.0))
        else:
            before = trace(root, kind)
            support.wait_until(lambda: trace(root, kind) != before or has_ended(root), 120)  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.1 if kind == "saving" else 0.4))
        if fake.is_ready("run-1") and not has_ended(root):
            fake.preempt("run-1", grace=rng.choice([0.0, 0.0, 1.0]))
            done.append(kind)
    return done


def check(kind: type[support.Fake], root: str, data_dir: str, times: int, steps: int) -> None:
    reference = undisturbed(root, data_dir, steps)
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    preempted: list[str] = []
    with kind(f"{root}/vms", environ, keep_disk=True) as fake:
        thread = support.in_background(
            lambda: preempted.extend(preempt_often(root, fake, times, seed=11))
        )
        status, result = support.run(command(root, data_dir, fake, steps), fake)
        assert status == 0, result
        thread.join(5)
        assert fake.node_names() == []
        assert fake.most_at_once == 1
    assert result["global_step"] == steps
    assert result["preemptions"] == len(preempted) == times
    assert result["failures"] == 0
    results, expected = weights(result["model_dir"], steps), weights(reference, steps)
    assert [name for name in expected if results[name] != expected[name]] == []
    with open(f"{result['model_dir']}/metrics.jsonl", encoding="utf-8") as file:
        logged = [json.loads(line)["step"] for line in file]
    assert logged == sorted(set(logged))
    assert logged[-1] == steps


SERVICES = pytest.mark.parametrize("kind", [FakeTpu, FakeCompute], ids=["tpu", "compute"])


@SERVICES
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_preempted_twenty_times_same_weights(
    tmp_path: object, data_dir: str, kind: type[support.Fake]
) -> None:
    check(kind, str(tmp_path), data_dir, times=20, steps=1000)


@pytest.mark.timeout(600)
def test_preempted_twice_same_weights(tmp_path: object, data_dir: str) -> None:
    """While it boots, and before its first step."""
    check(FakeTpu, str(tmp_path), data_dir, times=2, steps=40)
