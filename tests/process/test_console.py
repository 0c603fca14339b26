"""Progress on a terminal and in a log."""

import io
import os
import re
import threading

import pytest

from bigbird_ja.process import console


class Terminal(io.StringIO):
    """A stream that is a terminal, of some columns."""

    def __init__(self, columns, monkeypatch):
        super().__init__()
        size = os.terminal_size((columns, 24))
        monkeypatch.setattr(os, "get_terminal_size", {self.fileno(): size}.__getitem__)

    def fileno(self):
        return 99

    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [20, 80])
def test_a_bar_fits_the_terminal_below_messages_and_ends_at_100_percent(columns, monkeypatch):
    monkeypatch.setattr("tqdm.std.time", iter(range(0, 1000)).__next__)
    stream = Terminal(columns, monkeypatch)
    with console.Progress(50, "documents with a long name", stream) as progress:
        for number in range(48):  # the total was an estimate
            progress.update(1)
            if number == 2:
                console.log("a message", stream)
    lines = [part for part in re.split(r"[\r\n]|\x1b\[[A-Z]", stream.getvalue()) if part.strip()]
    assert max(map(console.display_width, lines)) < columns
    assert "100%" in lines[-1] and "a message" in lines


def test_a_live_line_is_cut_to_the_terminal(monkeypatch):
    stream = Terminal(20, monkeypatch)
    line = console.LiveLine(stream)
    for text in ("loss 3", "東京" * 20):
        line.show(text)
    line.close()
    shown = [part.rstrip() for part in re.split(r"[\r\n]", stream.getvalue()) if part.strip()]
    assert shown[0] == "loss 3" and console.display_width(shown[-1]) < 20


def test_waiting_is_logged_repeatedly():
    lines = []
    third = threading.Event()

    def log(text):
        lines.append(text)
        if len(lines) == 3:
            third.set()

    with console.waiting("compiling", log, 0.01):
        assert third.wait(30)
    assert lines[0] == "compiling ..." and lines[2].startswith("compiling: 0 s")


def test_long_messages_are_cut_between_words():
    assert console.shortened("a line\nand  more", 40) == "a line and more"
    assert console.shortened("see the documentation for more", 28) == "see the documentation ..."
    assert console.shortened("x" * 100, 20) == "x" * 16 + " ..."


def test_progress_in_a_log_is_lines_and_a_failure_does_not_end_at_100_percent(monkeypatch):
    monkeypatch.setattr("tqdm.std.time", iter(range(0, 1000, 20)).__next__)
    stream = io.StringIO()
    with pytest.raises(ValueError), console.Progress(10, "shards", stream) as progress:
        for _ in range(3):
            progress.update()
        raise ValueError
    lines = stream.getvalue().splitlines()
    assert [line[:8] for line in lines] == ["10% 1/10", "20% 2/10", "30% 3/10", "30% 3/10"]
