"""Ctrl-C: asked where somebody is there, deletes where nobody is. And the trainer's log, followed
through windows of its end."""

import os
import signal
import threading

import pytest

from bigbird_ja import storage
from bigbird_ja.commands.launch import Interrupts
from bigbird_ja.commands.logs import follow, new_lines
from bigbird_ja.launch import LaunchedRun
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.launch.supervise import Stop
from tests.launch import support


def press(interrupts, number=signal.SIGINT):
    """Sends the signal, and waits until the listening thread has it."""
    received = threading.Event()
    receive = interrupts._interrupted
    interrupts.receive = lambda n: (receive(n), received.set())
    os.kill(os.getpid(), number)
    assert received.wait(10)


def quiet(text):
    """Shows nothing."""


@pytest.mark.parametrize(
    ("answer", "meaning"), [("d", "delete"), ("t", "detach"), ("c", "no"), ("", "delete")]
)
def test_a_person_is_asked_once(answer, meaning):
    answers = iter([answer])
    with Interrupts("ask", True, lambda question: next(answers), quiet) as interrupts:
        assert interrupts.stop() is Stop.NO
        press(interrupts)
        assert interrupts.stop() is Stop(meaning)
        interrupts.stop()  # asks no second time


def test_without_a_terminal_the_tpu_is_deleted_and_a_second_ctrl_c_leaves_at_once():
    with Interrupts("ask", False, say=quiet) as interrupts:
        press(interrupts)
        assert interrupts.stop() is Stop.DELETE
        assert interrupts.stop() is Stop.DELETE  # and it stays so
        press(interrupts)
        assert interrupts.stop() is Stop.DETACH


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_and_a_shutdown_ask_nobody(number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        with Interrupts("ask", True, lambda question: "c", quiet) as interrupts:
            press(interrupts, number)
            assert interrupts.stop() is Stop.DELETE
            press(interrupts, signal.SIGTERM)
            interrupts.nobody_reads()
            assert interrupts.stop() is Stop.DELETE  # nobody asked to leave before it is done
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_wake_the_sleeper_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts("detach", True, say=quiet) as interrupts:
        press(interrupts)
        interrupts.sleep(1000.0)
        assert interrupts.stop() is Stop.DETACH
    assert signal.getsignal(signal.SIGINT) is before


LINES = [f"step {n:,} of 9,999   loss {1 / n:.4f}" for n in range(1, 2_000)]


@pytest.mark.parametrize("step", [3, 700])
def test_every_line_of_the_log_comes_once_and_in_order(step):
    seen, results, log = "", [], ""
    for start in range(0, len(LINES), step):
        log += "".join(f"{line}\n" for line in LINES[start : start + step])
        half = log[: -len(LINES[-1]) // 2]  # a copy may end within a line
        seen, lines = new_lines(seen, half[-40_000:])
        results += lines
    seen, lines = new_lines(seen, log[-40_000:])
    assert results + lines == LINES
    assert new_lines(seen, log[-40_000:]) == (seen, [])
    assert new_lines(seen, "of another machine\n")[1] == ["of another machine"]


def test_following_a_log_ends_with_the_run(tmp_path):
    run = LaunchedRun(str(tmp_path), "run-1")
    files, shown = RunFiles(run), []
    files.prepare()
    files.save_run()
    storage.write_text(run.supervisor("training.log"), "one\n")
    turns = iter(["one\ntwo\n", "one\ntwo\nthree\n"])

    def sleep(seconds):
        storage.write_text(run.supervisor("training.log"), next(turns))
        if len(shown) == 2:
            files.save_state(RunState(Phase.ENDED, ending_message="finished at step 3"))

    assert follow(str(tmp_path), "run-1", shown.append, sleep) == "finished at step 3"
    assert shown == ["one", "two", "three", "finished at step 3"]
    status, result = support.run(["logs", "run-1", f"--bucket={tmp_path}"])
    assert (status, result["ending"]) == (0, "finished at step 3")
    status, result = support.run(["logs", "run-2", f"--bucket={tmp_path}"])
    assert status == 2 and "run-1" in result["error"]
