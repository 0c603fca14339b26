"""`pretrain` on short sequences first: the change, and kills before, at and after it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import SLOTS, CheckpointStore, read_variables, slot_name
from testkit import killing, pods, synthetic
from testkit.engine_runs import apart
from testkit.zygote import Zygote
from tests.commands.pretraining import refused, resumed_at_last

STEPS, CHANGE, SHORT, WHOLE = 12, 6, 64, 256
POSITIONS = "bert/embeddings/position_embeddings"


@pytest.fixture(
    params=[
        pytest.param("estimator", marks=pytest.mark.estimator),
        pytest.param("pjrt", marks=pytest.mark.nightly),  # compiles seven times
    ]
)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "pjrt":
        pytest.importorskip("jax")
    return str(request.param)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"), WHOLE)
    return [
        "pretrain", "--config", str(config), "--data_dir", str(data), "--json",
        "--num_train_steps", str(STEPS), "--set", f"training.first_seq_length={SHORT}",
        "--set", f"training.first_seq_length_steps={CHANGE}", "--set", "checkpoints.keep_last=20",
        "--set", "checkpoints.save_every_steps=1", "--set", "training.masked_lm_prob=0.3",
        "--set", "training.final_masked_lm_prob=0.15",
    ]  # fmt: skip


def variables(model: Path, step: int) -> dict[str, np.ndarray]:
    return read_variables(str(model / f"model.ckpt-{step}"))


def test_killed_around_the_change_it_ends_with_the_same_weights(
    zygote: Zygote, flags: list[str], tmp_path: Path, engine: str
) -> None:
    here = [*flags, "--engine", engine, "--model_dir"]
    model = tmp_path / "model"
    ended = zygote.run(*here, str(model))
    assert ended.status == 0, ended.err
    assert "16 sequences of 64 tokens, then on 4 of 256: 1,024 positions each" in ended.err
    assert f"from step {CHANGE} on sequences have 256 tokens, no longer 64" in ended.err
    (reported,) = [e for e in run_log.read_events(str(model)) if e["event"].startswith("sequence_")]
    assert (reported["global_step"], reported["was"], reported["now"]) == (CHANGE, SHORT, WHOLE)  # type: ignore[typeddict-item]

    # Only the first positions are trained at first; at the change the others begin with them.
    before, after = variables(model, CHANGE), variables(model, CHANGE + 1)
    slot = slot_name(POSITIONS, SLOTS[0])
    assert not before[slot][SHORT:].any() and before[slot][:SHORT].any()
    repeated = np.tile(before[POSITIONS][:SHORT], (WHOLE // SHORT, 1))
    assert 0 < np.abs(after[POSITIONS] - repeated).max() < 0.01, (
        "one step of training from the first positions repeated"
    )

    for step in (CHANGE - 1, CHANGE, CHANGE + 1):
        killed = Path(shutil.copytree(model, tmp_path / f"killed-{step}"))
        for later in (n for n in CheckpointStore(str(killed)).steps() if n > step):
            for file in killed.glob(f"model.ckpt-{later}.*"):
                file.unlink()
        resumed = zygote.run(*here, str(killed))
        assert resumed.status == 0 and f"checkpoint {step} verified" in resumed.err, resumed.err
        assert killing.digest(str(killed)) == killing.digest(str(model)), f"killed at step {step}"
        assert resumed.result["tokens_seen"] == ended.result["tokens_seen"]


def test_modernbert_changes_its_length_and_resumes_at_the_change(
    zygote: Zygote, tmp_path: Path
) -> None:
    """It has no learned positions to lengthen; its windows of 32 tokens are longer than the short
    sequences."""
    pytest.importorskip("jax")
    data = tmp_path / "data"
    synthetic.write(data, seq_length=64)
    shape = ["model.architecture=modernbert", "model.num_layers=2", "training.num_train_steps=6"]
    first = ["training.first_seq_length=16", "training.first_seq_length_steps=3"]
    first += ["training.global_batch_size=4", "model.local_attention=32", "training.dtype=float32"]
    every = ["checkpoints.save_every_steps=1", "checkpoints.keep_last=20"]
    sets = [f"--set={item}" for item in (*shape, *first, *every)]
    here = ["pretrain", "--config=tiny-cpu", f"--data_dir={data}", *sets, "--model_dir"]
    model, killed = tmp_path / "model", tmp_path / "killed"
    ended = zygote.run(*here, str(model))
    assert ended.status == 0, ended.err
    assert "from step 3 on sequences have 64 tokens, no longer 16" in ended.err
    shutil.copytree(model, killed)
    for file in (f for step in (4, 5, 6) for f in killed.glob(f"model.ckpt-{step}.*")):
        file.unlink()
    resumed = zygote.run(*here, str(killed))
    assert resumed.status == 0 and "checkpoint 3 verified" in resumed.err, resumed.err
    assert killing.digest(str(killed)) == killing.digest(str(model))


@pytest.mark.nightly
def test_a_signal_in_the_change(
    zygote: Zygote, flags: list[str], tmp_path: Path, engine: str
) -> None:
    """It comes when the first engine has ended and the second one opens its input."""
    every = ["--set", "checkpoints.save_every_steps=5"]
    here = [*flags, "--engine", engine, *every, "--model_dir"]
    alone = zygote.run(*here, str(tmp_path / "alone"))
    assert alone.status == 0, alone.err
    model = tmp_path / "model"
    running = zygote.start(*here, str(model), hang_at=["input", 2])
    running.wait_for(running.hung, seconds=pods.PATIENCE)
    running.send(signal.SIGTERM)
    ended = resumed_at_last(running, "SIGTERM: ")
    assert ended.status == 75, ended.err
    assert CHANGE <= CheckpointStore(str(model)).steps()[-1] < STEPS  # heard after some steps more
    resumed = zygote.run(*here, str(model))
    assert resumed.status == 0, resumed.err
    assert killing.digest(str(model)) == killing.digest(str(tmp_path / "alone"))


@pytest.mark.nightly
def test_two_processes_change_at_the_same_step(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    here = [*flags, "--engine", "pjrt", "--set", "model.hidden_dropout_prob=0", "--model_dir"]
    pods.wait(pods.start(zygote, 2, *here, str(tmp_path / "pod")), 0, 0)
    alone = zygote.run(*here, str(tmp_path / "alone"), environ=pods.environ(4))
    assert alone.status == 0, alone.err
    assert apart(tmp_path / "pod", tmp_path / "alone", STEPS) < 1e-5


def test_what_has_no_first_phase_is_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    here = [*flags, "--model_dir", str(tmp_path / "model")]
    wrong = "--set=training.first_seq_length=100"
    refused([*here, wrong], capsys, "use 128, or another length that divides it")
    for name, data in (("pairs", {"nsp": True}), ("static", {"masking": "static"})):
        synthetic.write(tmp_path / name, seq_length=WHOLE, **data)  # type: ignore[arg-type]
        refused([*here, f"--data_dir={tmp_path / name}"], capsys, "first_seq_length=64")
    # 480 tokens are whole tiles of two blocks of 8, and 120 are not.
    synthetic.write(tmp_path / "long", seq_length=480)
    wrong = "--set=training.first_seq_length=120"
    refused(
        [*here, f"--data_dir={tmp_path / 'long'}", "--set=model.block_size=8", wrong], capsys,
        "sequences of 120 tokens are not a multiple of two attention blocks",
    )  # fmt: skip
    assert not (tmp_path / "model").exists()
