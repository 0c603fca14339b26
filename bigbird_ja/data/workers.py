"""Processes that share the work of `make-data`: tasks from an iterator, results in their order."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bigbird_ja.process import children
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import CommandError
from bigbird_ja.storage.disk import scratch_directory

Task = TypeVar("Task")
Result = TypeVar("Result")

_IN_FLIGHT = 2  # tasks per worker that wait or run, so that memory does not grow with the corpus


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Runs `function(task)` in processes, or in this one for `num_workers=1`.

    Args:
        num_workers: processes.
        initializer, arguments: called once in each process before its first task.
    """

    def __init__(
        self, num_workers: int, initializer: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self._num_workers = num_workers
        self._pool: ProcessPoolExecutor | None = None
        self._open = contextlib.ExitStack()
        if num_workers == 1:
            initializer(*arguments)
        else:
            self._stderr = os.path.join(self._open.enter_context(scratch_directory()), "stderr")
            # Processes begin with the mask of the thread that starts them: Ctrl-C and a closed
            # terminal are this process's to answer.
            blocked = (signal.SIGINT, signal.SIGHUP)
            starter = ThreadPoolExecutor(
                1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, blocked)
            )
            self._starter = self._open.enter_context(starter)
            self._pool = ProcessPoolExecutor(
                num_workers,
                # Not "fork": a fork of a process with threads (storage, progress) may hang.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.getpid(), self._stderr, initializer, arguments),
            )

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in the order of the tasks, which are taken from their iterator as needed.

        Raises:
            CommandError: a worker ended; on Linux a kill is what running out of memory looks like.
        """
        if self._pool is None:
            yield from map(function, tasks)
            return
        waiting: collections.deque[Future[Result]] = collections.deque()
        try:
            for task in tasks:
                # In a thread, which no signal interrupts halfway through a process's start.
                submitted = self._starter.submit(self._pool.submit, function, task)
                waiting.append(submitted.result())
                while len(waiting) >= _IN_FLIGHT * self._num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise self._worker_error() from error

    def _worker_error(self) -> CommandError:
        """How the first one ended; the executor has sent SIGTERM to the others."""
        assert self._pool is not None
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=True)
        statuses = [process.exitcode for process in processes if process.exitcode is not None]
        first = min(statuses, key=lambda status: status in (0, -signal.SIGTERM), default=0)
        to_do = "use fewer --num_workers and run the same command again"
        stderr = self._read_stderr().splitlines()
        return children.error_from_exit(first, stderr, "a worker process", to_do)

    def _read_stderr(self) -> str:
        """What the workers, and libraries in them, have written to standard error; once."""
        with contextlib.suppress(FileNotFoundError), open(self._stderr, "rb+") as file:
            text = file.read().decode(errors="replace")
            file.truncate(0)
            return text
        return ""

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes; tasks that have not begun are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            if text := self._read_stderr().rstrip():
                log(text)
        self._open.close()


def _start_worker(
    parent: int, stderr: str, initializer: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    initializer(*arguments)


def _exit_with(parent: int) -> None:
    """Ends a worker whose parent was killed; it would wait for its next task for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
