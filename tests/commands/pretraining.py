"""What the tests of `pretrain` share: runs of a tiny model, each engine's left alone once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bigbird_ja.cli import main
from bigbird_ja.run import log as run_log
from bigbird_ja.storage.ownership import Owned
from testkit.zygote import Ended, Zygote

STEPS = 30
ENGINES = [pytest.param("estimator", marks=pytest.mark.estimator), "pjrt"]


@dataclass
class Runs:
    """Starts `pretrain` under an engine.

    Args:
        zygote: forks the processes.
        flags: of all runs.
        finished: a run that was left alone, and how its process ended.
    """

    zygote: Zygote
    flags: list[str]
    engine: str
    finished: Path
    ended: Ended

    def new(self, directory: Path) -> list[str]:
        """The command for a new run, with the programs that another one has compiled."""
        model = directory / "model"
        if (self.finished / "compiled").exists():
            shutil.copytree(self.finished / "compiled", model / "compiled")
            Owned.create(str(model), "run")
        return [*self.flags, "--model_dir", str(model)]

    def copied(self, directory: Path) -> list[str]:
        """The command for a copy of the finished run."""
        model = shutil.copytree(self.finished, directory / "model")
        return [*self.flags, "--model_dir", str(model)]


def make_runs(zygote: Zygote, inputs: tuple[str, str], engine: str, directory: Path) -> Runs:
    """Lets one run finish, with evaluations on the way."""
    config, data = inputs
    flags = [
        "pretrain", "--json", "--engine", engine, "--config", config, "--data_dir", data,
        "--num_train_steps", str(STEPS),
    ]  # fmt: skip
    model = directory / "model"
    ended = zygote.run(
        *flags, "--model_dir", str(model), "--mode", "train_and_eval",
        "--set", "training.eval_every_steps=16",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    return Runs(zygote, flags, engine, model, ended)


def events(model: Path | str) -> list[str]:
    """The names of a run's events."""
    return [event["event"] for event in run_log.read_events(str(model))]


def refused(flags: list[str], capsys: pytest.CaptureFixture, *words: str) -> None:
    """The command ends with 2 and one line that holds `words`."""
    assert main.run_command_line(flags) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "bigbird-ja:" in line]
    assert len(error) == 1
    for word in words:
        assert word in error[0]
