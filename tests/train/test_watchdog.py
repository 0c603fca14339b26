"""The watchdog, with the clock passed in."""

from __future__ import annotations

import threading
from pathlib import Path

from bigbird_ja.train.watchdog import Watchdog, dump_stacks


def test_it_barks_after_the_limit_and_not_before() -> None:
    now = [0.0]
    dog = Watchdog(60.0, lambda silence: None, clock=lambda: now[0])
    now[0] = 59.0
    assert not dog.is_stalled()
    dog.tick()
    now[0] = 118.0
    assert not dog.is_stalled()
    now[0] = 120.0
    assert dog.is_stalled()


def test_it_watches_in_a_thread_and_says_how_long() -> None:
    now, barked = [0.0], threading.Event()
    silences: list[float] = []

    def bark(silence: float) -> None:
        silences.append(silence)
        barked.set()

    with Watchdog(60.0, bark, clock=lambda: now[0], poll=0.01):
        now[0] = 61.0
        assert barked.wait(10)
    assert silences == [61.0]


def test_zero_is_off() -> None:
    now = [0.0]
    dog = Watchdog(0.0, lambda silence: None, clock=lambda: now[0])
    now[0] = 1e9
    assert not dog.is_stalled()


def test_stacks_name_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        dump_stacks(stream)
    assert "test_stacks_name_every_thread" in path.read_text()
