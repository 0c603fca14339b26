"""Ctrl-C asks the user whether to delete the TPU. Without a terminal the TPU is deleted."""

import os
import signal
import threading

import pytest

from bigbird_ja.launch.interrupts import Interrupts
from bigbird_ja.launch.supervise import Stop


def press(interrupts, number=signal.SIGINT):
    """Send a signal to this process, and wait until the thread of `interrupts` receives it."""
    received = threading.Event()
    receive = interrupts._receive
    interrupts.receive = lambda n: (receive(n), received.set())
    os.kill(os.getpid(), number)
    assert received.wait(10)


def quiet(text):
    """Ignore a message."""


@pytest.mark.parametrize(
    ("answer", "meaning"), [("d", "delete"), ("t", "detach"), ("c", "no"), ("", "delete")]
)
def test_the_user_is_asked_once(answer, meaning):
    answers = iter([answer])
    with Interrupts("ask", True, lambda question: next(answers), quiet) as interrupts:
        assert interrupts.stop() is Stop.NO
        press(interrupts)
        assert interrupts.stop() is Stop(meaning)
        interrupts.stop()  # This second call does not ask the user again.


def test_without_a_terminal_the_tpu_is_deleted_and_a_second_ctrl_c_leaves_at_once():
    with Interrupts("ask", False, log=quiet) as interrupts:
        press(interrupts)
        assert interrupts.stop() is Stop.DELETE
        assert interrupts.stop() is Stop.DELETE  # The choice stays until the next Ctrl-C.
        press(interrupts)
        assert interrupts.stop() is Stop.DETACH


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_and_a_shutdown_ask_nobody(number):
    # Set the default handler, since a process that nohup has started ignores SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Interrupts("ask", True, lambda question: "c", quiet) as interrupts:
            press(interrupts, number)
            assert interrupts.stop() is Stop.DELETE
            press(interrupts, signal.SIGTERM)
            interrupts.handle_lost_reader()
            assert interrupts.stop() is Stop.DELETE  # Only a Ctrl-C could end the deletion.
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_wake_the_sleeper_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts("detach", True, log=quiet) as interrupts:
        press(interrupts)
        interrupts.sleep(1000.0)
        assert interrupts.stop() is Stop.DETACH
    assert signal.getsignal(signal.SIGINT) is before
