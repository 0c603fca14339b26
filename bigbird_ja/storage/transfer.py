"""Several transfers at once; the first failure stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any


def run_all(tasks: Sequence[Callable[[], Any]], workers: int = 8) -> None:
    """Runs `tasks` in threads; raises the first failure after those in flight have ended."""
    if len(tasks) <= 1 or workers <= 1:
        for task in tasks:
            task()
        return
    pool = ThreadPoolExecutor(min(workers, len(tasks)), thread_name_prefix="storage")
    try:
        futures = [pool.submit(task) for task in tasks]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def one_at_a_time(progress: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """The same callback, safe to call from several threads."""
    if progress is None:
        return None
    lock, told = threading.Lock(), progress

    def locked(count: int) -> None:
        with lock:
            told(count)

    return locked
