"""Weights & Biases only when asked for, and never in the way."""

from __future__ import annotations

import sys

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.train import curves


class Library:
    """The three calls that are used."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict]] = []
        self.begun: dict = {}
        self.fails = False
        self.finished = False

    def init(self, **options):
        self.begun = options
        return self

    def log(self, values, step):
        if self.fails:
            raise ConnectionError("no network")
        self.lines.append((step, values))

    def finish(self):
        self.finished = True


def test_numbers_are_written_under_their_prefix():
    library = Library()
    log = curves.WandbLog(library, "run-1", Config(), print)
    log.write(3, {"loss": 2.0, "examples": ["text"]}, "train")
    log.close()
    assert library.lines == [(3, {"train/loss": 2.0})]
    assert library.finished
    assert library.begun["id"] == "run-1" and library.begun["resume"] == "allow"
    assert library.begun["config"]["training.global_batch_size"] == 16
    assert (
        library.begun["settings"]["console"] == "off" and library.begun["settings"]["disable_git"]
    )


def test_a_failure_is_said_once_and_training_goes_on():
    library, said = Library(), []
    log = curves.WandbLog(library, "run-1", Config(), said.append)
    library.fails = True
    for step in range(3):
        log.write(step, {"loss": 1.0}, "train")
    log.close()
    assert len(said) == 1 and "no network" in said[0]


def test_not_installed_is_bad_input(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match="pip install wandb"):
        curves.load_wandb()
