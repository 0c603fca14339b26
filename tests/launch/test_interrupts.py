"""Ctrl-C: asked where somebody is there, deletes where nobody is."""

from __future__ import annotations

import os
import signal

import pytest

from bigbird_ja.launch.interrupts import Interrupts
from bigbird_ja.launch.supervise import Stop


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        ("d", Stop.DELETE),
        ("t", Stop.DETACH),
        ("detach", Stop.DETACH),
        ("c", Stop.NO),
        ("", Stop.DELETE),
    ],
)
def test_a_person_is_asked(answer: str, meaning: Stop) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    with Interrupts("ask", True, ask, lambda text: None) as interrupts:
        assert interrupts.stop() is Stop.NO
        press()
        assert interrupts.stop() is meaning
        assert len(asked) == 1
        if meaning is Stop.NO:
            assert interrupts.stop() is Stop.NO


def test_nobody_there_means_delete() -> None:
    def ask(question: str) -> str:
        raise AssertionError("nobody is there")

    with Interrupts("ask", False, ask, lambda text: None) as interrupts:
        press()
        assert interrupts.stop() is Stop.DELETE
        assert interrupts.stop() is Stop.DELETE  # and it stays so
        press()
        assert interrupts.stop() is Stop.DETACH  # twice: leave at once


def test_a_closed_terminal_asks_nobody_and_tells_more_than_once() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        with Interrupts("ask", True, lambda question: "c", lambda text: None) as interrupts:
            press(signal.SIGHUP)
            assert interrupts.stop() is Stop.DELETE
            press(signal.SIGTERM)
            interrupts.nobody_reads()
            assert interrupts.stop() is Stop.DELETE  # nobody asked to leave before it is done
    finally:
        signal.signal(signal.SIGHUP, before)


def test_termination_asks_nobody() -> None:
    with Interrupts("ask", True, lambda question: "c", lambda text: None) as interrupts:
        press(signal.SIGTERM)
        assert interrupts.stop() is Stop.DELETE


def test_signals_wake_the_sleeper_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts("detach", True, say=lambda text: None) as interrupts:
        press()
        interrupts.sleep(1000.0)
        assert interrupts.stop() is Stop.DETACH
    assert signal.getsignal(signal.SIGINT) is before
