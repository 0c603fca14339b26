"""`launch --continue_with`: a launched run goes on with other settings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bigbird_ja.launch.services import TpuSpec
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

RATE = "training.learning_rate=0.00005"


def launched(root: str) -> dict[str, object]:
    with open(f"{root}/bucket/run-1/supervisor/launch.json", encoding="utf-8") as file:
        found: dict[str, object] = json.load(file)
        return found


def log(root: str) -> str:
    with open(f"{root}/vms/disk/training.log", encoding="utf-8") as file:
        return file.read()


def test_a_run_goes_on_with_another_learning_rate(tmp_path: Path) -> None:
    root = str(tmp_path)
    with FakeTpu(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        assert support.run(support.command(root, fake, steps=30), fake)[0] == 0
        other = support.command(root, fake, f"--set={RATE}", steps=60)
        status, result = support.run(other, fake)
        assert status == 2 and "change it in mid run by --continue_with" in result["error"]
        assert "continue_with" not in log(root)
        changed = support.command(root, fake, f"--continue_with={RATE}", steps=60)
        status, result = support.run(changed, fake)
        assert (status, result["global_step"]) == (0, 60)
        assert log(root).count("--continue_with=training.learning_rate=5e-05") == 1
        assert launched(root)["continue_with"] == {"training.learning_rate": 5e-05}
        with open(f"{root}/bucket/run-1/supervisor/config.yaml", encoding="utf-8") as file:
            assert "learning_rate: 5.0e-05" in file.read()
        # From now on it is the run's own setting, and later machines still tell a trainer that has
        # not heard of it.
        status, result = support.run(support.command(root, fake, f"--set={RATE}", steps=90), fake)
        assert (status, result["global_step"]) == (0, 90)
        assert log(root).count("--continue_with=training.learning_rate=5e-05") == 2


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (RATE, "no run 'run-1' was launched"),
        ("model.num_layers=2", "only the settings of `training`"),
        ("training.log_every_steps=7", "give it with --set"),
        ("training.no_such=7", "no_such"),
    ],
)
def test_what_cannot_go_on(tmp_path: Path, flag: str, said: str) -> None:
    root = str(tmp_path)
    with FakeTpu(f"{root}/vms") as fake:
        status, result = support.run(support.command(root, fake, f"--continue_with={flag}"), fake)
        assert status == 2 and said in result["error"], result
        assert not os.path.exists(f"{root}/bucket")


def test_a_machine_with_the_old_settings_must_be_gone(tmp_path: Path) -> None:
    root = str(tmp_path)
    with FakeTpu(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        command = support.command(root, fake, steps=30)
        assert support.run(command, fake)[0] == 0
        service = support.nodes(fake)
        service.create(
            TpuSpec("run-1", "v3-8", "i"), "us-central1-b", 1, {"startup-script": "true"}, 1e5
        )
        before = launched(root)
        again = support.command(root, fake, f"--continue_with={RATE}", steps=60)
        status, result = support.run(again, fake)
        assert status == 2 and "bigbird-ja down" in result["error"]
        assert launched(root) == before
        os.remove(f"{root}/bucket/run-1/model/checkpoint.json")
        for name in os.listdir(f"{root}/bucket/run-1/model"):
            if "ckpt" in name:
                os.remove(f"{root}/bucket/run-1/model/{name}")
        status, result = support.run(again, fake)
        assert status == 2 and "no checkpoint to resume from" in result["error"]
