"""SIGTERM and Ctrl-C, sent for real to this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bigbird_ja.process.signals import StopRequest


class Heard:
    """What a StopRequest said, and when it wanted to leave."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.left: list[str] = []
        self.asked, self.gone = threading.Event(), threading.Event()

    def log(self, text: str) -> None:
        self.said.append(text)
        self.asked.set()

    def leave(self, text: str) -> None:
        self.left.append(text)
        self.gone.set()


@contextmanager
def listening(patience: float = 60.0) -> Iterator[tuple[StopRequest, Heard]]:
    heard = Heard()
    with StopRequest(heard.log, heard.leave, patience) as stop:
        yield stop, heard


def test_the_first_signal_asks_and_the_second_ctrl_c_leaves() -> None:
    with listening() as (stop, heard):
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.asked.wait(10) and stop.is_set() and stop.name == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)
        stop.answered()
        assert not heard.left
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.gone.wait(10) and len(heard.said) == 1


def test_it_is_heard_while_the_main_thread_is_busy() -> None:
    with listening() as (stop, heard):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert heard.asked.wait(10) and stop.name == "Ctrl-C"
        stop.answered()


def test_without_an_answer_it_leaves_by_itself() -> None:
    with listening(patience=0.05) as (_, heard):
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.gone.wait(10) and "left without saving" in heard.left[0]


def test_who_can_wait_is_kept_waiting_until_someone_comes_who_cannot() -> None:
    with listening(patience=0.05) as (stop, heard):
        stop.ask("a limit", is_urgent=False)
        assert stop.is_set() and not heard.gone.wait(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.gone.wait(10) and "left without saving" in heard.left[0]
        assert len(heard.said) == 1


def test_an_answer_gives_it_the_time_to_save() -> None:
    with listening(patience=0.3) as (stop, heard):
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.asked.wait(10)
        stop.answered()
        assert not heard.gone.wait(0.5)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with listening() as (stop, heard):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as TPUEstimator does before each loop
        stop.install()
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.asked.wait(10)
        stop.answered()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_hang_up_asks_too_unless_it_was_ignored_from_the_start() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests were started by
    try:
        with listening() as (stop, heard):
            os.kill(os.getpid(), signal.SIGHUP)
            assert heard.asked.wait(10) and stop.name == "SIGHUP"
            stop.answered()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with listening() as (stop, heard):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.asked.wait(10) and stop.name == "SIGTERM"
            stop.answered()
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
