"""Training processes are killed a few times. `make soak` kills them sixty times."""

import os
import random

import pytest

from testkit import killing, soak

KILLS = int(os.environ.get("BIGBIRD_JA_KILLS", "6"))  # A pod gets a third of the kills.
ENGINE = os.environ.get("BIGBIRD_JA_ENGINE", "auto")


@pytest.mark.slow
@pytest.mark.timeout(1200 + 60 * KILLS)
@pytest.mark.parametrize("store", ["disk", "bucket", "pod"])
def test_killed_run_ends_with_the_weights_of_an_uninterrupted_one(store, zygote, tmp_path, request):
    pytest.importorskip("jax")
    config, data = killing.write_inputs(tmp_path / "inputs")
    arguments = ["--config", str(config), "--data_dir", str(data), "--engine", ENGINE]
    arguments += ["--mode", "train_and_eval", "--set", "training.eval_every_steps=20"]
    # Each process of a pod compiles the step at each start. A smaller step compiles faster.
    if store == "pod":
        arguments += ["--set", "training.global_batch_size=8", "--set", "model.num_layers=1"]
        arguments += ["--engine", "pjrt"]
    base = request.getfixturevalue("bucket") if store == "bucket" else tmp_path
    processes, kills = (2, KILLS // 3) if store == "pod" else (1, KILLS)
    tally = soak.soak(zygote, arguments, f"{base}/soak", processes, kills, random.Random(3))
    assert not tally.failure
    assert tally.survived == sum(tally.kills.values()) == kills
