"""A pool of processes that never outlives its parent and never runs far ahead of it."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bigbird_ja.process import children, console, signals
from bigbird_ja.process.errors import CommandError
from bigbird_ja.storage.scratch import scratch_directory

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
            self._words = os.path.join(self._open.enter_context(scratch_directory()), "stderr")
            self._pool = ProcessPoolExecutor(
                num_workers,
                # Not "fork": a fork of a process with threads (storage, progress) may hang.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.getpid(), self._words, initializer, arguments),
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
                waiting.append(self._submit(function, task))
                while len(waiting) >= _IN_FLIGHT * self._num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise self._end_of_a_worker() from error

    def _submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hands a task over, and starts a process for it where one is lacking.

        A process begins with the thread's mask: Ctrl-C and a closed terminal, which reach every
        process of a group, are this one's to answer.
        """
        assert self._pool is not None
        with signals.uninterrupted():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
            try:
                return self._pool.submit(function, task)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _end_of_a_worker(self) -> CommandError:
        """How the first one ended; the executor has sent SIGTERM to the others."""
        assert self._pool is not None
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=True)
        statuses = [process.exitcode for process in processes if process.exitcode is not None]
        first = min(statuses, key=lambda status: status in (0, -signal.SIGTERM), default=0)
        to_do = "use fewer --num_workers and run the same command again"
        return children.error_from_exit(
            first, self._read_words().splitlines(), "a worker process", to_do
        )

    def _read_words(self) -> str:
        """What the workers, and libraries in them, have written to standard error; once."""
        with contextlib.suppress(FileNotFoundError), open(self._words, "rb+") as file:
            words = file.read().decode(errors="replace")
            file.truncate(0)
            return words
        return ""

    def close(self) -> None:
        """Ends the processes; tasks that have not begun are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            if words := self._read_words().rstrip():
                console.log(words)
        self._open.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_worker(
    parent: int, words: str, initializer: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    descriptor = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    initializer(*arguments)


def _leave_with(parent: int) -> None:
    """A pool's worker waits for ever for the next task of a parent that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
