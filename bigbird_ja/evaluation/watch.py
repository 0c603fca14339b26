"""Following a run: which checkpoints to evaluate next, and when to stop waiting for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from bigbird_ja.run.records import HeartbeatRecord

POLL_SECONDS = 20.0
# Without a sign of life for so long, nobody trains: a preempted TPU may take a while to come back.
STALE_MINUTES = 60.0


def follow(
    list_steps: Callable[[], list[int]],
    read_heartbeat: Callable[[], HeartbeatRecord | None],
    done: Collection[int],
    *,
    log: Callable[[str], None],
    stale_minutes: float = STALE_MINUTES,
    poll_seconds: float = POLL_SECONDS,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields each checkpoint's step once, in ascending order, as they appear.

    Ends by itself: when training has finished and its last checkpoint was yielded, or when there
    was no sign of life for `stale_minutes`. An evaluator that never ends keeps a rented machine.

    Args:
        list_steps: the steps of the checkpoints there are now.
        read_heartbeat: the run's heartbeat, or None before the first.
        done: steps that need no evaluation any more.
        log: told why waiting ended.
        stale_minutes: how old a sign of life may be.
        poll_seconds: between two looks.
        clock: UNIX seconds.
        sleep: waits for so many seconds.
    """
    seen = set(done)
    started = clock()
    while True:
        # Before the steps: a checkpoint that is written between the two is seen next time.
        heartbeat = read_heartbeat()
        fresh = next((step for step in sorted(list_steps()) if step not in seen), None)
        if fresh is not None:
            seen.add(fresh)
            yield fresh
            continue
        reason = why_ended(heartbeat, started, clock(), stale_minutes)
        if reason:
            log(f"no more checkpoints to wait for: {reason}")
            return
        sleep(poll_seconds)


def why_ended(
    heartbeat: HeartbeatRecord | None, started: float, now: float, stale_minutes: float
) -> str | None:
    """Why no further checkpoint will come, or None where one may."""
    if heartbeat and heartbeat["state"] == "stopped" and heartbeat.get("reason") == "finished":
        return f"training finished at step {heartbeat['global_step']:,}"
    last = max(started, heartbeat["time"] if heartbeat else 0.0)
    # A clock that runs ahead must not make an old heartbeat look fresh for ever.
    silent = now - min(last, now)
    if silent < stale_minutes * 60:
        return None
    state = heartbeat["state"] if heartbeat else "no heartbeat"
    return f"no sign of life for {stale_minutes:g} minutes (last state: {state})"
