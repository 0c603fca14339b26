"""Run the tasks of `make-data`: in processes of this machine, or its parts on a Ray cluster.

Ray (extra `ray`) gives each part to a machine with cores to spare, and again to another one where
the first is lost; what it had finished is not made twice. Machines see one --output_dir and the
same text.
"""

import collections
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bigbird_ja.process import children
from bigbird_ja.process.console import log, waiting
from bigbird_ja.process.errors import BadInput, CommandError, StorageError
from bigbird_ja.storage.disk import scratch_directory

T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT = 2  # tasks per worker that wait or run, so that memory does not grow with the corpus
_RETRIES = 5  # of a part whose worker or machine was lost


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[[T], R],
    tasks: Iterable[T],
    num_workers: int,
    initializer: Callable[..., None],
    arguments: tuple[Any, ...] = (),
) -> Generator[R]:
    """Run `function(task)` in processes, or in this one for `num_workers=1`; `close` it at the end.

    Args:
        function: picklable, as are its arguments and results.
        tasks: taken from their iterator as needed.
        num_workers: processes.
        initializer: called once in each process before its first task.
        arguments: of `initializer`.

    Yields:
        The results, in the order of the tasks.

    Raises:
        CommandError: a worker ended; on Linux a kill is what running out of memory looks like.
    """
    if num_workers == 1:
        initializer(*arguments)
        yield from map(function, tasks)
        return
    # Processes begin with the signal mask of the thread that starts them: Ctrl-C and a closed
    # terminal are this process's to answer. No signal interrupts that thread in a start.
    mask = (signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    with (
        scratch_directory() as scratch,
        ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=mask) as starter,
    ):
        stderr = os.path.join(scratch, "stderr")
        pool = ProcessPoolExecutor(
            num_workers,
            # Not "fork": a fork of a process with threads (storage, progress) may hang.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(os.getpid(), stderr, initializer, arguments),
        )
        started = (starter.submit(pool.submit, function, task).result() for task in tasks)
        try:
            yield from _results(started, _IN_FLIGHT * num_workers)
        except BrokenProcessPool as error:
            raise _worker_error(pool, stderr) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if text := _take_text(stderr).rstrip():
                log(text)


def _results(started: Iterable[Future[R]], most: int) -> Iterator[R]:
    """Yield the results of tasks in their order, of which at most so many wait or run."""
    pending: collections.deque[Future[R]] = collections.deque()
    for future in started:
        pending.append(future)
        if len(pending) >= most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _worker_error(pool: ProcessPoolExecutor, stderr: str) -> CommandError:
    """Describe how the first worker ended; the executor has sent SIGTERM to the others."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=True)
    statuses = [process.exitcode for process in processes if process.exitcode is not None]
    first = min(statuses, key=lambda status: status in (0, -signal.SIGTERM), default=0)
    to_do = "use fewer --num_workers and run the same command again"
    lines = _take_text(stderr).splitlines()
    return children.error_from_exit(first, lines, "a worker process", to_do)


def _take_text(path: str) -> str:
    """Return the text of a file and empty it; "" where there is none."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb+") as file:
        text = file.read().decode(errors="replace")
        file.truncate(0)
        return text
    return ""


def _start_worker(
    parent: int, stderr: str, initializer: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """Send this worker's standard error to a file, and end it with its parent."""
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    initializer(*arguments)


def _exit_with(parent: int) -> None:
    """End a worker whose parent was killed; it would wait for its next task for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def make_parts_on_ray(
    make_part: Callable[..., object], request: Any, num_workers: int | None
) -> None:
    """Make all parts on a Ray cluster; `build.make_data` joins them.

    Args:
        make_part: `build.make_part`.
        request: of `make_part`; its `num_workers` and `overwrite` have no meaning here.
        num_workers: processes of a part; None: as many as the smallest machine has cores.

    Raises:
        BadInput: Ray is not installed, or no machine has so many cores; as of `build.make_part`.
        StorageError: there is no cluster; parts were lost more often than Ray tries again.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BadInput("--runner ray needs Ray: pip install 'bigbird-ja[ray]'") from error
    try:
        with waiting("starting Ray, or joining its cluster"):
            ray.init(logging_level=logging.ERROR)
    except Exception as error:  # Ray's own kinds, or none
        line = " ".join(str(error).split())[:300]
        raise StorageError(f"Ray does not start, or cannot be reached: {line}") from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(resources.get("CPU", 0)) for resources in nodes]
        each = num_workers or max(1, min(filter(None, cores), default=1))
        count = sum(number // each for number in cores)
        if not count:
            raise BadInput(f"--num_workers {each}: no machine of the Ray cluster has so many cores")
        log(f"Ray: {count} parts of {each} processes on {len(cores)} machines")
        task = ray.remote(make_part).options(num_cpus=each, max_retries=_RETRIES)
        shared = ray.put(dataclasses.replace(request, num_workers=each, overwrite=False))
        ray.get([task.remote(shared, (number, count)) for number in range(count)])
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CommandError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        line = " ".join(str(error).split())[:300]
        raise StorageError(f"the Ray cluster: {line}: run the same command again") from error
    finally:
        ray.shutdown()
