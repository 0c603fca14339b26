"""The watchdog, with a clock passed in."""

import threading

import pytest

from bigbird_ja.train.watchdog import Watchdog


@pytest.mark.parametrize(
    ("limit", "at", "silences"), [(1.0, 0.9, []), (1.0, 1.5, [1.5]), (0.0, 1e9, [])]
)
def test_the_watchdog_acts_after_its_limit_and_zero_is_off(limit, at, silences):
    now, called = [0.0], threading.Event()
    seen = []

    def on_stall(silence):
        seen.append(silence)
        called.set()

    with Watchdog(limit, on_stall, clock=lambda: now[0]) as watchdog:
        now[0] = at
        called.wait(10 if silences else 0.1)
        watchdog.tick()
    assert seen == silences
