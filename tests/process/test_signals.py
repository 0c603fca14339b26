"""SIGTERM, SIGHUP and Ctrl-C while training, sent for real to this process."""

import os
import signal
import threading

from bigbird_ja.process.signals import StopRequest


class Listening(StopRequest):
    """A request that records its messages, and when it wanted to end the process."""

    def __init__(self, patience=60.0):
        super().__init__(self._record, self._left, patience)
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
    with Listening(patience=0.05) as stop:
        stop.ask("a limit", is_urgent=False)
        assert stop.is_set() and not stop.has_left.wait(0.3)
        send(signal.SIGTERM)
        assert stop.has_left.wait(10) and "left without saving" in stop.last_words[0]
        assert stop.logged == ["a limit: finishing the step and saving"], "nobody pressed Ctrl-C"


def test_an_answer_gives_it_the_time_to_save():
    with Listening(patience=0.3) as stop:
        send(signal.SIGTERM)
        assert stop.was_asked.wait(10) and stop.is_set() and stop.name == "SIGTERM"
        send(signal.SIGTERM)
        stop.answered()
        assert not stop.has_left.wait(0.5) and len(stop.logged) == 1


def test_handlers_are_restored_and_survive_a_library_that_takes_them():
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with Listening() as stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as TPUEstimator does before each loop
        stop.install()
        send(signal.SIGINT)
        assert stop.was_asked.wait(10)
        stop.answered()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
