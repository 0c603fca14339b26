"""Ctrl-C, SIGTERM and SIGHUP, sent to this process and to commands."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from bigbird_ja.process.signals import CommandSignals, StopRequest
from testkit import ROOT, any_command, command_line, prepared


class Listening(StopRequest):
    """Stop request that does not print messages, and does not end the process.

    `logged` contains its messages. `last_words` contains the message with which it would end the
    process.
    """

    def __init__(self, timeout=60.0):
        super().__init__(self._record, self._left, timeout)
        self.logged = []
        self.last_words = []
        self.was_asked, self.has_left = threading.Event(), threading.Event()

    def _record(self, text):
        self.logged.append(text)
        self.was_asked.set()

    def _left(self, text):
        self.last_words.append(text)
        self.has_left.set()


def send(number):
    os.kill(os.getpid(), number)


def test_without_an_answer_an_urgent_request_leaves_by_itself():
    with Listening(timeout=0.05) as stop:
        stop.ask("a limit", is_urgent=False)
        assert stop.is_set() and not stop.has_left.wait(0.3)
        send(signal.SIGTERM)
        assert stop.has_left.wait(10) and "the last step was not saved" in stop.last_words[0]
        assert stop.logged == ["a limit: finishing the step and saving"], "nobody pressed Ctrl-C"


def test_an_answer_gives_it_the_time_to_save():
    with Listening(timeout=0.3) as stop:
        send(signal.SIGTERM)
        assert stop.was_asked.wait(10) and stop.is_set() and stop.name == "SIGTERM"
        send(signal.SIGTERM)
        stop.confirm()
        assert not stop.has_left.wait(0.5) and len(stop.logged) == 1


def test_handlers_are_restored_and_survive_a_library_that_takes_them():
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    _, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    # The event loop of a notebook sets such a wakeup descriptor.
    signal.set_wakeup_fd(wakeup)
    with Listening() as stop:
        # Reset the handler, as TPUEstimator does before each loop.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.install()
        send(signal.SIGINT)
        assert stop.was_asked.wait(10)
        stop.confirm()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == wakeup


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(*words, program="testkit.any_command", ignored=()):
    """Start a module as a command in its own process group.

    Signals are handled as in a terminal, except those in `ignored`, which the parent ignores.
    """
    words = [*prepared.python(prepared.dispositions(SIGNALS, ignored)), "-m", program, *words]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return subprocess.Popen(words, start_new_session=True, **how)


def until_ready(process):
    """Wait until a command of `any_command` prints READY, and return the earlier lines."""
    before = []
    assert process.stderr is not None
    while (line := process.stderr.readline().strip()) != any_command.READY:
        assert line or process.poll() is None, before
        before.append(line)
    return before


def stop(process, number):
    """Send a signal, and check that the process exits with status 75 and one message.

    Returns:
        Standard output and standard error.
    """
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Traceback" not in err and err.count("interrupted (") == 1, err
    return out, err


def wait_until_gone(group):
    """Wait until all processes of a group have ended, which may take a moment after a signal."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("processes are left")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: signal.Signals(n).name)
def test_a_signal_ends_a_command_with_one_line_and_75(number):
    process = start("wait", "--json")
    until_ready(process)
    out, err = stop(process, number)
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert len(err.splitlines()) == 1 and err.startswith(f"bigbird-ja: interrupted ({name}): ")
    assert json.loads(out)["reason"] == "interrupted" and len(out.splitlines()) == 1


def test_a_signal_while_the_command_is_being_imported_is_75_too():
    program = """
import os, signal, sys
from bigbird_ja import __main__

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "bigbird_ja.cli.command_flags":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["plan", "--json"]
__main__.main()
"""
    ended = command_line.run(sys.executable, "-c", program)
    assert ended.status == 75 and len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.json["reason"] == "interrupted"


@pytest.mark.parametrize("what", ["swallow", "translate", "native"])
def test_ctrl_c_ends_a_command_whatever_a_library_does(what):
    process = start(what, "--json")
    before = until_ready(process)
    out, err = stop(process, signal.SIGINT)
    assert len(err.strip().splitlines()) == 1 and "interrupted (Ctrl-C)" in err
    assert json.loads(out)["reason"] == "interrupted" and len(out.splitlines()) == 1
    for path in " ".join(before).split():
        assert not Path(path).exists(), "left behind"


def test_the_signal_is_known_before_its_exception_arrives():
    # On a busy machine, the exception may arrive before the thread that waits for signals runs.
    signals = CommandSignals(leave=lambda message: None)
    with pytest.raises(KeyboardInterrupt):
        signals._handle(signal.SIGINT, None)
    assert signals.number == signal.SIGINT


def test_a_second_ctrl_c_does_not_wait():
    process = start("native")
    until_ready(process)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted again (Ctrl-C)" in err


def test_ctrl_c_works_if_the_parent_ignored_it_and_nohup_is_respected():
    process = start("wait", ignored=(signal.SIGINT, signal.SIGHUP))
    until_ready(process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    _, err = stop(process, signal.SIGINT)
    assert "Ctrl-C" in err


def test_ctrl_c_in_a_terminal_reaches_workers_too():
    process = start("workers")
    while len(psutil.Process(process.pid).children()) < 2:  # until both workers have started
        assert process.poll() is None
    # A terminal sends the signal to the whole process group.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Traceback" not in err and err.strip().splitlines()[-1].count("interrupted (Ctrl-C)")
    wait_until_gone(process.pid)
