"""A log that nobody reads any more, and one that cannot hold more."""

from __future__ import annotations

import os
import sys
import threading

from bigbird_ja.process import streams


def test_a_reader_that_goes_away_is_told_once_and_nothing_raises() -> None:
    reader, writer = os.pipe()
    told: list[int] = []
    with os.fdopen(writer, "w") as stream:
        log = streams.LogStream(stream, lambda: told.append(1))
        print("one", file=log, flush=True)
        assert os.read(reader, 10) == b"one\n" and not told
        os.close(reader)
        for _ in range(3):
            print("two", file=log, flush=True)
        assert told == [1]
        os.write(stream.fileno(), b"libraries write to the descriptor itself")


def test_what_a_full_disk_does_not_hold_is_dropped() -> None:
    told: list[int] = []
    with open(os.open("/dev/full", os.O_WRONLY), "w", closefd=True, buffering=1) as stream:
        log = streams.LogStream(stream, lambda: told.append(1))
        print("lost", file=log, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    assert not told


def test_the_standard_stream_is_put_back() -> None:
    before, gone = sys.stderr, threading.Event()
    with streams.guard_stderr(gone.set):
        print("still seen", file=sys.stderr)
        assert isinstance(sys.stderr, streams.LogStream)
    assert sys.stderr is before and not gone.is_set()
