"""The watchdog, which ends a run that finishes no step for too long, with a simulated clock."""

import threading

import pytest

from bigbird_ja.train.watchdog import Watchdog


@pytest.mark.parametrize(
    ("limit", "at", "ends"), [(1.0, 0.9, False), (1.0, 90.0, True), (0.0, 1e9, False)]
)
def test_the_watchdog_ends_the_process_after_its_limit_and_zero_disables_it(limit, at, ends, capfd):
    now, called = [0.0], threading.Event()
    seen = []

    def exit_process(error):
        seen.append(str(error))
        called.set()

    with Watchdog(limit, exit_process, clock=lambda: now[0]) as watchdog:
        now[0] = at
        called.wait(10 if ends else 0.1)
        watchdog.tick()
    assert [error[:32] for error in seen] == ["no step finished for 1.5 minutes"] * ends
    assert ("most recent call first" in capfd.readouterr().err) == ends
