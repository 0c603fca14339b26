"""Worker processes that run tasks, by `concurrent.futures`."""

from __future__ import annotations

import collections
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from bigbird_ja.process.children import error_from_exit
from bigbird_ja.process.errors import CommandError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT = 2  # tasks per worker that wait or run, so that memory does not grow with their number

_start_error: BaseException | None = None  # of this worker's initializer


def run_tasks(
    function: Callable[[T], R],
    tasks: Iterable[T],
    num_workers: int,
    initializer: Callable[..., None],
    arguments: tuple[Any, ...] = (),
) -> Generator[R]:
    """Yield `function(task)` in the order of the tasks; `close` the generator at the end.

    Args:
        function: function of a task; picklable, as are its arguments and results.
        tasks: arguments of `function`, taken from their iterator as needed.
        num_workers: number of processes; 1 is this process.
        initializer: function called once in each process before its first task.
        arguments: arguments of `initializer`.

    Raises:
        CommandError: a worker died; on Linux a kill usually means a lack of memory.
    """
    if num_workers == 1:
        initializer(*arguments)
        yield from map(function, tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Not "fork": a fork of a process with threads (storage, progress) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (initializer, arguments))
    # A worker inherits the signal mask of the thread that starts it: this process handles Ctrl-C
    # and SIGHUP for its workers. Python's handlers run in the main thread, so that they interrupt
    # no start halfway.
    mask = (signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    pending: collections.deque[Future[R]] = collections.deque()
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=mask) as starter:
        try:
            for task in tasks:
                pending.append(starter.submit(pool.submit, _call, function, task).result())
                if len(pending) >= _IN_FLIGHT * num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise _worker_error(pool) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _worker_error(pool: ProcessPoolExecutor) -> CommandError:
    """Describe how the first worker ended; the executor has sent SIGTERM to the others."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=True)
    statuses = [process.exitcode for process in processes if process.exitcode is not None]
    first = min(statuses, key=lambda status: status in (0, -signal.SIGTERM), default=0)
    to_do = "use fewer --num_workers and run the same command again"
    return error_from_exit(first, ("its output is above",), "a worker process", to_do)


def _start_worker(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """End this worker with its parent, which may be killed, and call `initializer`."""
    global _start_error
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        initializer(*arguments)
    except BaseException as error:  # else the pool would break without a reason
        _start_error = error


def _call(function: Callable[[T], R], task: T) -> R:
    if _start_error is not None:
        raise _start_error
    return function(task)


def _exit_with_parent() -> None:
    import multiprocessing

    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
