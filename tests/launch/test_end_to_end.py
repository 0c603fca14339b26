"""Launch with real training: preempted again and again, it ends with the weights of a run that
was left alone, and with no node."""

import json
import os
import random
import sys
import time
from pathlib import Path

import pytest

from testkit.command_line import run_cli
from testkit.fakes.compute import FakeCompute
from testkit.fakes.service import in_background
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

SETTINGS = """
    --set=model.hidden_size=32 --set=model.intermediate_size=64 --set=data.seed=3
    --set=checkpoints.save_every_steps=20 --set=training.log_every_steps=5
    --set=training.global_batch_size=4
""".split()


def weights(model_dir, steps):
    from bigbird_ja.run.model import load_parameters

    _, _, parameters, meta = load_parameters(model_dir)
    assert meta.step == steps
    return {name: value.tobytes() for name, value in parameters.items()}


def has_ended(root):
    return bool(support.read(root, "model/heartbeat.json", "state") == "stopped")


def preempt_often(root, fake, times):
    """Kills at random: while booting, before the first step, in a save, and soon after one.

    What is taken away before the supervisor has seen it, it cannot count.
    """

    def is_running():
        phase = support.read(root, "supervisor/state.json", "phase")
        return fake.is_ready("run-1") and phase == "running"

    def checkpoint_files():
        return sorted(path.name for path in Path(root, "bucket/run-1/model").glob("*ckpt*"))

    rng, done = random.Random(11), 0
    while done < times:
        support.wait_until(is_running, 120)
        before = checkpoint_files()
        if done % 4 > 1:
            support.wait_until(lambda: checkpoint_files() != before or has_ended(root), 120)  # noqa: B023
        time.sleep(rng.uniform(0.0, (1.0, 4.0, 0.1, 1.0)[done % 4]))
        if fake.is_ready("run-1") and not has_ended(root):
            fake.preempt("run-1", grace=rng.choice([0.0, 0.0, 1.0]))
            done += 1


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "machine"), [(FakeTpu, "v3-8"), (FakeCompute, "v6e-8")])
def test_preempted_again_and_again_same_weights(tmp_path, small_run, kind, machine):
    times, steps = 20, 1000
    root, reference = str(tmp_path), f"{tmp_path}/undisturbed"
    data = f"--data_dir={small_run.data_dir}"
    same = ("--config=tiny-cpu", data, f"--num_train_steps={steps}", *SETTINGS)
    ended = run_cli("pretrain", f"--model_dir={reference}", *same)
    assert ended.status == 0, ended.stderr
    more = [*same, f"--vm_python={sys.executable}", f"--accelerator_type={machine}"]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with kind(f"{root}/vms", environ, keep_disk=True) as fake:
        thread = in_background(lambda: preempt_often(root, fake, times))
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
