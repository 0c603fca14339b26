"""Ctrl-C: asked where somebody is there, deletes where nobody is."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bigbird_ja.launch.supervise import Stop
from bigbird_ja.launch.terminal import Interrupts


def press(interrupts: Interrupts, number: int = signal.SIGINT) -> None:
    """Sends the signal, and waits until the listening thread has it."""
    received = threading.Event()
    receive = interrupts._receive
    interrupts._listener._receive = lambda n: (receive(n), received.set())
    os.kill(os.getpid(), number)
    assert received.wait(10)


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
def test_a_person_is_prompted(answer: str, meaning: Stop) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    with Interrupts("ask", True, ask, lambda text: None) as interrupts:
        assert interrupts.stop() is Stop.NO
        press(interrupts)
        assert interrupts.stop() is meaning
        assert len(asked) == 1
        if meaning is Stop.NO:
            assert interrupts.stop() is Stop.NO


def test_nobody_there_means_delete() -> None:
    def ask(question: str) -> str:
        raise AssertionError("nobody is there")

    with Interrupts("ask", False, ask, lambda text: None) as interrupts:
        press(interrupts)
        assert interrupts.stop() is Stop.DELETE
        assert interrupts.stop() is Stop.DELETE  # and it stays so
        press(interrupts)
        assert interrupts.stop() is Stop.DETACH  # twice: leave at once


def test_a_closed_terminal_prompts_nobody_and_reports_repeatedly() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        with Interrupts("ask", True, lambda question: "c", lambda text: None) as interrupts:
            press(interrupts, signal.SIGHUP)
            assert interrupts.stop() is Stop.DELETE
            press(interrupts, signal.SIGTERM)
            interrupts.nobody_reads()
            assert interrupts.stop() is Stop.DELETE  # nobody asked to leave before it is done
    finally:
        signal.signal(signal.SIGHUP, before)


def test_termination_asks_nobody() -> None:
    with Interrupts("ask", True, lambda question: "c", lambda text: None) as interrupts:
        press(interrupts, signal.SIGTERM)
        assert interrupts.stop() is Stop.DELETE


def test_signals_wake_the_sleeper_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts("detach", True, say=lambda text: None) as interrupts:
        press(interrupts)
        interrupts.sleep(1000.0)
        assert interrupts.stop() is Stop.DETACH
    assert signal.getsignal(signal.SIGINT) is before
