"""A callback that a background thread calls periodically, and failures of the callback."""

from threading import Event

import pytest

from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.periodic import Periodic


def test_failure_is_logged_once_and_the_call_repeated():
    calls, logged, has_repeated = [], [], Event()

    def fail():
        calls.append(1)
        if len(calls) == 3:
            has_repeated.set()
        raise OSError("503")

    with Periodic(fail, 0.01, logged.append) as periodic:
        assert has_repeated.wait(60)
        periodic.poll()
    assert logged == ["the heartbeat could not be written and will be retried: 503"]


def test_lost_lock_ends_the_calls_and_the_run():
    calls = []

    def lose():
        calls.append(1)
        raise LeaseLost("gone")

    with Periodic(lose, 0.01, print) as periodic:
        periodic._thread.join(60)
        with pytest.raises(LeaseLost, match="gone"):
            periodic.poll()
    assert calls == [1]
