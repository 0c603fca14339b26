"""Ends child processes and removes temporary files with this process.

Native code runs in a child where it cannot be stopped otherwise (SentencePiece), or where it ends
its process when it meets something that it cannot do (the TPU compiler). `run_tasks` shares work
out to processes.

`with` blocks remove children and files as a rule. A process that is stopped while its main thread
sits in a library that does not return never reaches the end of those blocks; so they are also
registered here, and `clean_up` removes what is left, from any thread.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bigbird_ja.process import signals
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import (
    CommandError,
    Interrupted,
    OutOfMemory,
    StorageError,
    classify,
    of_reason,
)

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
R = TypeVar("R")

_PR_SET_PDEATHSIG = 1
_LAST_LINES = 20
_IN_FLIGHT = 2  # tasks per worker that wait or run, so that memory does not grow with their number
_STATED = re.compile("what\\(\\):|Check failed|CHECK|Fatal|Error|error:|F0|F1")

_paths: set[str] = set()
_children: set[subprocess.Popen] = set()
_start_error: BaseException | None = None  # of this worker's initializer


def be_a_child() -> None:
    """Prepares a child: it ignores Ctrl-C, which the parent answers, and dies with the parent.

    Linux alone ends it with the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def kill_on_exit(child: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """Kills the child, if it still runs, when the block ends; `clean_up` kills it too."""
    _children.add(child)
    try:
        yield child
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        child.wait()
        _children.discard(child)


@contextlib.contextmanager
def remove_on_exit(path: str) -> Iterator[None]:
    """Registers a file or directory with `clean_up` while the block runs.

    The end of the block does not remove it.
    """
    path = os.path.abspath(path)
    _paths.add(path)
    try:
        yield
    finally:
        _paths.discard(path)


def clean_up() -> None:
    """Kills the registered children and pool processes, removes the registered paths."""
    for child in list(_children):
        with contextlib.suppress(OSError):
            child.kill()
    pools = sys.modules.get("multiprocessing")  # importing it costs more than most commands take
    for worker in pools.active_children() if pools else ():
        with contextlib.suppress(OSError, ValueError):
            worker.kill()
    for child in list(_children):  # a child that still writes would fill the directory again
        with contextlib.suppress(Exception):
            child.wait(timeout=2)
    for path in sorted(_paths):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


def error_from_exit(
    returncode: int, stderr_tail: Iterable[str], subject: str, advice: str
) -> CommandError:
    """Returns the error for a child that ended without an answer.

    Args:
        returncode: as of `subprocess.Popen`: negative for a signal.
        stderr_tail: its last lines on standard error. C++ ends by SIGABRT for want of memory as
            for a failed check; these lines tell which.
        subject: of the message.
        advice: what to do against a lack of memory.
    """
    lines = [line.strip() for line in stderr_tail if line.strip()][-_LAST_LINES:]
    known = classify(RuntimeError("\n".join(lines)))
    if isinstance(known, OutOfMemory) or returncode == -signal.SIGKILL:
        return OutOfMemory(f"{subject} ran out of memory, or was killed: {advice}")
    if isinstance(known, StorageError) or returncode == -signal.SIGXFSZ:
        cause = _cause(lines)
        return StorageError(f"{subject} could not write: {cause}: free some space, run again")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"status {returncode}"
    if -returncode in signals.SIGNALS:
        return Interrupted(f"{subject} was stopped by {name}: run the same command again")
    return CommandError(f"{subject} crashed ({name}): {_cause(lines)}")


def _cause(lines: list[str]) -> str:
    """Returns the line in which a library states what was wrong."""
    stated = [line for line in lines if _STATED.search(line)]
    return (stated or lines or ["no message"])[-1][:300]


def run_tasks(
    function: Callable[[T], R],
    tasks: Iterable[T],
    num_workers: int,
    initializer: Callable[..., None],
    arguments: tuple[Any, ...] = (),
) -> Generator[R]:
    """Yield `function(task)` in the order of the tasks; `close` the generator at the end.

    Args:
        function: picklable, as are its arguments and results.
        tasks: taken from their iterator as needed.
        num_workers: processes; 1 is this one.
        initializer: called once in each process before its first task.
        arguments: of `initializer`.

    Raises:
        CommandError: a worker ended; on Linux a kill is what running out of memory looks like.
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
    # A worker inherits the signal mask of the thread that starts it: this process answers Ctrl-C
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


def bigbird_ja(
    arguments: Sequence[str], kill_when: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Runs one command as a user would, shows its output, and returns its `--json` results.

    Args:
        arguments: of the command line.
        kill_when: polled; once true, the command is killed with SIGKILL.

    Raises:
        CommandError: with the command's exit status and message.
        RuntimeError: the command that was to be killed ended before.
    """
    import json
    import shlex
    import subprocess

    print(f"$ bigbird-ja {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with kill_on_exit(process):
        while kill_when and process.poll() is None:
            time.sleep(0.05)
            if kill_when():
                process.kill()
                process.wait()
        out, _ = process.communicate()
    if kill_when and process.returncode == -signal.SIGKILL:
        log(f"SIGKILL sent to process {process.pid}")
        return {}
    subject = f"`bigbird-ja {arguments[0]}`"
    results: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        results = json.loads(out)
    if not results:
        advice = "close other programs and run it again"
        raise error_from_exit(process.returncode, (), subject, advice)
    if process.returncode:
        raise of_reason(str(results.get("reason")), f"{subject}: {results.get('error')}")
    if kill_when:
        raise RuntimeError(f"{subject} ended by itself, before the kill")
    return results


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
