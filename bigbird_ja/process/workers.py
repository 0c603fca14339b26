"""Worker processes that run tasks, and child processes for native code.

Native code runs in a child process if it cannot be interrupted (SentencePiece), or if it aborts its
process (the TPU compiler).
"""

from __future__ import annotations

import collections
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from bigbird_ja.errors import CommandError, Interrupted, OutOfMemory, StorageError
from bigbird_ja.process import signals
from bigbird_ja.process.classify import classify

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
R = TypeVar("R")

# Maximum number of waiting and running tasks per worker, which limits memory.
_IN_FLIGHT = 2

_PR_SET_PDEATHSIG = 1
_LAST_LINES = 20
_STATED = re.compile("what\\(\\):|Check failed|CHECK|Fatal|Error|error:|F0|F1")

# Exception that the initializer raised in this worker.
_start_error: BaseException | None = None


def run_tasks(
    function: Callable[[T], R],
    tasks: Iterable[T],
    num_workers: int,
    initializer: Callable[..., None],
    arguments: tuple[Any, ...] = (),
) -> Generator[R]:
    """Yield `function(task)` in the order of the tasks.

    The caller must close the generator.

    Args:
        function: picklable function of a task, with picklable arguments and results.
        tasks: arguments of `function`, which are read from their iterator as needed.
        num_workers: number of processes; 1 runs the tasks in this process.
        initializer: function called once in each process before its first task.
        arguments: arguments of `initializer`.

    Raises:
        CommandError: A worker died. On Linux, the usual cause is insufficient memory.
    """
    if num_workers == 1:
        initializer(*arguments)
        yield from map(function, tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # The method "fork" is not used, since a fork of a process with threads (storage, progress) may
    # hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (initializer, arguments))
    # A thread that blocks Ctrl-C and SIGHUP starts the workers. A worker inherits the thread's
    # signal mask, so only this process handles these signals. Python's handlers run in the main
    # thread, so they do not interrupt the start of a worker.
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
            to_do = "use fewer `num_workers` and rerun the same command"
            raise make_pool_error(pool, "a worker process", to_do) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_pool_error(pool: ProcessPoolExecutor, subject: str, advice: str) -> CommandError:
    """Return the error for the worker that died first.

    The executor ends the other workers by SIGTERM. So a worker with another exit code died first.

    Args:
        pool: broken pool, which is shut down.
        subject: subject of the message.
        advice: advice if memory is insufficient.
    """
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=True)
    statuses = [process.exitcode for process in processes if process.exitcode is not None]
    first = min(statuses, key=lambda status: status in (0, -signal.SIGTERM), default=0)
    return make_exit_error(first, ("its output is above",), subject, advice)


def _start_worker(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Call `initializer` in a worker, and make the worker exit if its parent process dies."""
    global _start_error
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        initializer(*arguments)
    # An exception of the initializer would break the pool without a message. So store it, and let
    # the worker's first task raise it.
    except BaseException as error:
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


def init_child() -> None:
    """Make this child process ignore Ctrl-C, which the parent handles.

    On Linux, the child is also killed if its parent ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def make_exit_error(
    returncode: int, stderr_tail: Iterable[str], subject: str, advice: str
) -> CommandError:
    """Return the error for a child that exited without a result.

    Args:
        returncode: exit code of `subprocess.Popen`, negative for a signal.
        stderr_tail: last lines on standard error. If C++ code aborts, they show whether the cause
            is insufficient memory or a failed check.
        subject: subject of the message.
        advice: advice if memory is insufficient.
    """
    lines = [line.strip() for line in stderr_tail if line.strip()][-_LAST_LINES:]
    known = classify(RuntimeError("\n".join(lines)))
    if isinstance(known, OutOfMemory) or returncode == -signal.SIGKILL:
        return OutOfMemory(f"{subject} ran out of memory, or was killed: {advice}")
    if isinstance(known, StorageError) or returncode == -signal.SIGXFSZ:
        cause = _find_cause(lines)
        return StorageError(
            f"{subject} could not write ({cause}): free some space and rerun the same command"
        )
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"status {returncode}"
    if -returncode in signals.SIGNALS:
        return Interrupted(f"{subject} was stopped by {name}: rerun the same command")
    return CommandError(f"{subject} crashed ({name}): {_find_cause(lines)}")


def _find_cause(lines: list[str]) -> str:
    """Return the last line that looks like an error of a library, or else the last line."""
    stated = [line for line in lines if _STATED.search(line)]
    return (stated or lines or ["no message"])[-1][:300]
