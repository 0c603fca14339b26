"""Several transfers at once; the first failure stops the rest.

The client library's `transfer_manager` is not used: after a failure it waits for all the others,
and it does not verify a download that was resumed.
"""

from __future__ import annotations

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
