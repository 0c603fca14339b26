"""Progress on a real terminal (a pty) and in a log."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager

import pytest

from bigbird_ja.process import console
from testkit import ROOT

PROGRAM = """
import itertools, sys
from tqdm import std
from bigbird_ja.process.console import Progress, log
std.time = itertools.count(0, 0.5).__next__
with Progress(50, "documents with a long name") as progress:
    for i in range(48):  # the total was an estimate
        progress.update(1)
        if i == 2:
            log("a message")
"""


@contextmanager
def terminal(columns):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    yield ours, theirs
    os.close(ours)


def started(words, theirs, **how):
    """A program with a terminal, whose side is then the program's alone."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(words, cwd=ROOT, **streams, **how)
    os.close(theirs)
    return process


def read_all(ours):
    data = b""
    try:
        while part := os.read(ours, 4096):
            data += part
    except OSError:  # Linux says so when the other side is closed
        pass
    return data.decode()


@pytest.mark.parametrize("columns", [20, 80])
def test_it_fits_the_terminal_and_ends_at_100_percent(columns):
    with terminal(columns) as (ours, theirs):
        process = started([sys.executable, "-c", PROGRAM], theirs)
        text = read_all(ours)
        assert process.wait() == 0, text
    # Every text that was on the terminal's last line, in order.
    lines = [part for part in re.split(r"\r\n|\r\x1b\[K|\r", text) if part]
    assert max(map(console.display_width, lines)) < columns
    assert "100%" in lines[-1]
    assert "a message" in lines
    if columns >= 80:
        assert "2/50 [00:03<01:12,  1.50s/ documents with a long name]" in lines[1]


def test_what_takes_long_is_logged_again_and_again():
    lines = []
    third = threading.Event()

    def log(text):
        lines.append(text)
        if len(lines) == 3:
            third.set()

    with console.waiting("compiling", log, 0.01):
        assert third.wait(30)
    assert lines[0] == "compiling ..." and lines[2].startswith("compiling: 0 s")


def test_other_programs_words_are_cut_between_words():
    assert console.shortened("a line\nand  more", 40) == "a line and more"
    assert console.shortened("see the documentation for more", 28) == "see the documentation ..."
    assert console.shortened("x" * 100, 20) == "x" * 16 + " ..."


def test_in_a_log_each_state_is_a_line_and_what_fails_does_not_end_at_100_percent(monkeypatch):
    monkeypatch.setattr("tqdm.std.time", iter(range(0, 1000, 20)).__next__)
    stream = io.StringIO()
    with pytest.raises(ValueError), console.Progress(10, "shards", stream) as progress:
        for _ in range(3):
            progress.update()
        raise ValueError
    lines = stream.getvalue().splitlines()
    assert [line[:8] for line in lines] == ["10% 1/10", "20% 2/10", "30% 3/10", "30% 3/10"]
