"""Progress on a terminal and in a log."""

import io
import logging
import os
import re
import sys
import threading

import pytest

from bigbird_ja.process import console
from testkit import command_line


class Terminal(io.StringIO):
    """Standard error on a terminal with `columns` columns."""

    def __init__(self, columns, monkeypatch):
        super().__init__()
        monkeypatch.setattr(sys, "stderr", self)
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
    with console.print_log(), console.Progress(50, "documents with a long name") as progress:
        # The total of 50 is only an estimate.
        for number in range(48):
            progress.update(1)
            if number == 2:
                console.log("a message")
    lines = [part for part in re.split(r"[\r\n]|\x1b\[[A-Z]", stream.getvalue()) if part.strip()]
    assert max(map(console.display_width, lines)) < columns
    assert "100%" in lines[-1] and "a message" in lines


def test_a_live_line_is_cut_to_the_terminal(monkeypatch):
    stream = Terminal(20, monkeypatch)
    line = console.LiveLine()
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

    with console.show_waiting("compiling", log, 0.01):
        assert third.wait(30)
    assert lines[0] == "compiling ..." and lines[2].startswith("compiling: 0 s")


def test_long_messages_are_cut_between_words():
    assert console.shorten("a line\nand  more", 40) == "a line and more"
    assert console.shorten("see the documentation for more", 28) == "see the documentation ..."
    assert console.shorten("x" * 100, 20) == "x" * 16 + " ..."


def test_progress_in_a_log_is_lines_and_a_failure_does_not_end_at_100_percent(monkeypatch, caplog):
    monkeypatch.setattr("tqdm.std.time", iter(range(0, 1000, 20)).__next__)
    with pytest.raises(ValueError), console.Progress(10, "shards") as progress:
        for _ in range(3):
            progress.update()
        raise ValueError
    lines = [line[:8] for line in caplog.messages]
    assert lines == ["10% 1/10", "20% 2/10", "30% 3/10", "30% 3/10"]


SECRET = "hf_0123456789abcdefghij"
IMPORTING = """
import logging, sys
from bigbird_ja.process import console
from testkit import command_line
console.log("a line"); console.warn(["a warning"])
with console.show_waiting("working"), console.Progress(1, "units"): pass
assert logging.getLogger().handlers == [] and not sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
console.log("a line"); console.warn(["a warning"])
"""


def test_a_program_that_imports_us_decides_about_the_log():
    ended = command_line.run(sys.executable, "-c", IMPORTING)
    expected = "bigbird_ja INFO a line\nbigbird_ja WARNING a warning\n"
    assert (ended.status, ended.stdout, ended.stderr) == (0, "", expected)


def test_the_command_line_prints_the_log_masked_escaped_and_translated(capsys):
    with console.print_log() as handler:
        handler.translate = lambda text: text.replace("`overwrite`", "--overwrite")
        console.log("`overwrite` moves it")
        console.log(f"one\ntwo\x1b[2K {SECRET}")
        console.warn(["slow"])
        logging.getLogger("a.library").warning("sent %s", SECRET)
        logging.getLogger("a.library").info("not shown")
    console.log("not shown")
    assert capsys.readouterr().err == (
        "--overwrite moves it\none\ntwo\\x1b[2K [redacted]\nwarning: slow\n"
        "warning: sent [redacted]\n"
    )
