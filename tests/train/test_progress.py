"""The progress line and its rates, with the clock passed in; Weights & Biases."""

from __future__ import annotations

import fcntl
import io
import os
import select
import struct
import sys
import termios
import tty

import pytest

from bigbird_ja.process import console
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.progress import Pace, TrainProgress, WandbLog, load_wandb


def make(peak: float | None = None, start: int = 0, before: float = 0.0) -> tuple:
    now = [100.0]
    pace = Pace(1000, 4000.0, 8, 1e12, peak)
    stream = io.StringIO()
    return TrainProgress(pace, start, before, stream, lambda: now[0]), now, stream


def measured(progress: TrainProgress, step: int) -> float:
    """The rate at a step that is logged as soon as it is finished."""
    progress.finished(step)
    return progress.measure(step)


def metrics(step: int, rate: float) -> dict[str, float]:
    return {"step": step, "loss": 2.5, "masked_lm_accuracy": 0.25, "tokens_per_second": rate}


def test_rate_and_eta_follow_the_clock() -> None:
    progress, now, _ = make()
    now[0] += 10.0
    assert measured(progress, 20) == pytest.approx(8000.0)
    assert progress.eta_seconds(20) == pytest.approx(490.0)
    now[0] += 5.0
    progress.restart_clock(20)  # an evaluation is no part of the rate
    now[0] += 10.0
    assert measured(progress, 40) == pytest.approx(8000.0)


def test_steps_that_arrive_together_share_the_time_of_their_turn() -> None:
    """Measured when a row was read, all but the first had millions of tokens per second."""
    progress, now, _ = make()
    now[0] += 10.0
    progress.finished(20)
    assert [progress.measure(step) for step in (5, 10, 15, 20)] == [pytest.approx(8000.0)] * 4
    now[0] += 5.0
    progress.finished(30)
    now[0] += 10.0
    progress.finished(50)  # two turns since the last logged step
    assert progress.measure(40) == pytest.approx(20 * 4000 / 10)


def test_the_line_holds_all_its_parts() -> None:
    progress, now, stream = make(peak=50e12)
    now[0] += 10.0
    progress.show(metrics(20, measured(progress, 20)))
    line = stream.getvalue()
    for part in (
        "step 20 of 1,000", "2.0%", "loss 2.5000", "accuracy 25.0%", "1,000 tokens/s/core",
        "8,000 tokens/s", "MFU 4.0%", "ETA 8 min 10 s", "trained 10 s",
    ):  # fmt: skip
        assert part in line


def test_one_core_has_one_rate() -> None:
    progress = TrainProgress(Pace(1000, 4000.0, 1, 1e12, None), 0, 0.0, io.StringIO())
    assert progress.line(metrics(20, 800.0)).count("tokens/s") == 1


class Terminal:
    """A pseudo-terminal of some columns; `rows` are its lines as a person sees them."""

    def __init__(self, columns: int) -> None:
        self._reader, self._writer = os.openpty()
        tty.setraw(self._writer)
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self._writer, termios.TIOCSWINSZ, size)
        self.stream = os.fdopen(self._writer, "w")
        self._columns = columns

    def rows(self) -> list[str]:
        self.stream.flush()
        text, rows = "", []
        while select.select([self._reader], [], [], 0.2)[0]:
            text += os.read(self._reader, 1 << 20).decode()
        for row in text.split("\n"):
            for shown in row.split("\r\x1b[K"):
                assert len(shown) < self._columns, "wraps, and erasing leaves the first row"
            rows.append(row.split("\r\x1b[K")[-1])
        return rows


@pytest.mark.parametrize("columns", [200, 80, 50, 24])
def test_on_a_terminal_the_line_fits_and_messages_stand_above_it(columns: int, monkeypatch) -> None:
    terminal, now = Terminal(columns), [100.0]
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    pace = Pace(1_400_000, 65536.0, 8, 1e12, 60e12)
    progress = TrainProgress(pace, 0, 0.0, clock=lambda: now[0])
    for step in (1_399_800, 1_399_900):
        now[0] += 1000.0
        progress.show(metrics(step, measured(progress, step)))
    console.log("a message")
    progress.show(metrics(1_400_000, measured(progress, 1_400_000)), force=True)
    progress.close()
    console.log("the end")
    message, line, end, rest = terminal.rows()
    assert (message, end, rest) == ("a message", "the end", "")
    assert line.startswith("step 1,400,000 of")
    assert ("loss" in line) == (columns >= 50)
    assert ("100.0%" in line and "ETA" in line) == (columns >= 80)
    assert ("trained" in line) == (columns == 200)


def test_train_time_accumulates_over_restarts() -> None:
    progress, now, _ = make(start=500, before=3600.0)
    now[0] += 30.0
    progress.begin()  # imports and tracing do not count
    now[0] += 60.0
    assert progress.train_seconds() == pytest.approx(3660.0)
    assert progress.measure(500) == 0.0


def test_lines_in_a_log_are_spaced_but_the_last_is_always_there() -> None:
    progress, now, stream = make()
    for step in range(10, 110, 10):
        now[0] += 0.5
        progress.show(metrics(step, measured(progress, step)), force=step == 100)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 5 and "step 100 " in lines[-1]


class Library:
    """The three calls that are used; `log` fails where the text of a failure is given."""

    def __init__(self, failure: str = "") -> None:
        self.calls: list[tuple[str, dict]] = []
        self._failure = failure

    def init(self, **options):
        self.calls.append(("init", options))
        return self

    def log(self, values, step):
        if self._failure:
            raise ConnectionError(self._failure)
        self.calls.append(("log", {**values, "step": step}))

    def finish(self):
        self.calls.append(("finish", {}))


def test_numbers_are_written_under_their_prefix():
    library = Library()
    log = WandbLog(library, "0123abcd", "model", Config(), print)
    log.write(3, {"loss": 2.0, "examples": ["text"]}, "train")
    log.close()
    (_, options), *later = library.calls
    assert later == [("log", {"train/loss": 2.0, "step": 3}), ("finish", {})]
    assert (options["id"], options["name"], options["resume"]) == ("0123abcd", "model", "allow")
    assert options["config"]["training.global_batch_size"] == 16
    assert options["settings"]["console"] == "off" and options["settings"]["disable_git"]


def test_a_failure_is_logged_once_and_training_continues():
    printed = []
    log = WandbLog(Library("no network"), "0123abcd", "model", Config(), printed.append)
    for step in range(3):
        log.write(step, {"loss": 1.0}, "train")
    log.close()
    assert len(printed) == 1 and "no network" in printed[0]


def test_not_installed_is_bad_input(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match="pip install wandb"):
        load_wandb()
