"""`make-data` on one machine: corpus to shards and manifest, in processes, resumable at any point.

1. Documents are cut into blocks; workers tokenise and pack them (`blocks`).
2. Workers gather the shards from the blocks (`shards`).
3. When all shards are ready they are moved into place, and `manifest.json` is written, last.

Each file appears whole or not at all, and depends on the corpus and the settings alone. So the next
run of a killed command makes the same bytes, and repeats only what was in flight.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeVar

from bigbird_ja import storage
from bigbird_ja.data import blocks, shards, verify
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import SPLITS, DataSpec, Manifest
from bigbird_ja.data.shards import MadeShard, SplitPlan
from bigbird_ja.data.work import Work, check_output, exclusive
from bigbird_ja.process import children
from bigbird_ja.process.console import Progress, log
from bigbird_ja.process.errors import BadInput, CommandError, Refused, StorageError
from bigbird_ja.storage import outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import Lease
from bigbird_ja.text import words
from bigbird_ja.text.corpus import Corpus, Part
from bigbird_ja.text.interface import Tokenizer
from bigbird_ja.text.sentences import MARKERS

Task = TypeVar("Task")
Result = TypeVar("Result")

_GZIP_RATIO = 3  # text bytes per compressed byte, for the progress line only
_IN_FLIGHT = 2  # tasks per worker that wait or run, so that memory does not grow with the corpus


@dataclass(frozen=True)
class Request:
    """The arguments of `make_data`."""

    corpus: Corpus
    tokenizer: Tokenizer
    spec: DataSpec
    output_dir: str
    num_workers: int
    overwrite: bool = False


def make_data(request: Request) -> tuple[Manifest, bool]:
    """Makes a data set, resumes unfinished work, or returns the finished one.

    Returns:
        The manifest, and whether it was there already.

    Raises:
        BadInput: bad text, something else in the directory, another process at work on it.
    """
    output = request.output_dir
    outputs.check_folder_place(output, "--output_dir")
    for source in request.corpus.sources:
        if not source.startswith("tfds:"):
            outputs.refuse_overlap({"--input": source}, {"--output_dir": output})
    words.word_marker(request.spec.word_boundaries, request.tokenizer)  # fail before all else
    is_new = not storage.exists(output)
    try:
        storage.make_directory(output)
        with exclusive(output) as lease:
            return _make(request, Work(output), lease)
    except BadInput:
        if is_new and os.path.isdir(output) and not os.listdir(output):
            os.rmdir(output)
        raise


def _make(request: Request, work: Work, lease: Lease) -> tuple[Manifest, bool]:
    output, spec = request.output_dir, request.spec
    if manifest_lib.FILE_NAME in storage.list_files(output) and not request.overwrite:
        try:
            manifest = _finished(request)
        except BadInput:
            check_output(output)
            raise
        with contextlib.suppress(BadInput):  # what stands there is not this command's
            if work.begun() == spec:
                work.remove()
        return manifest, True
    begun = work.begun()
    if begun is not None and begun != spec:
        if not request.overwrite:
            raise BadInput(
                f"{work.local} holds unfinished work of other settings:"
                f" {', '.join(spec.differences(begun))}: run that command again, or --overwrite"
            )
        begun = None
    check_output(output)
    if begun is None:
        work.remove()
    else:
        log(f"{output}: continuing what an earlier run began")
    work.open(spec)
    plans = _pack(request, work)
    made = _write_shards(request, work, plans)
    lease.check()
    return _finish(request, work, plans, made), False


def _finished(request: Request) -> Manifest:
    """The data set that is there already, complete and of this spec.

    Raises:
        BadInput: it is of other settings, or damaged.
    """
    output = request.output_dir
    differing = request.spec.differences(manifest_lib.load(output))
    if differing:
        raise BadInput(
            f"{output} holds a data set of other settings: {', '.join(differing)}: choose"
            " another --output_dir, or --overwrite"
        )
    return verify.fast_check(output)


# --- packing: documents to blocks ---


def _pack(request: Request, work: Work) -> list[SplitPlan]:
    """Packs the corpus, but for the blocks that are there, and plans the shards of both splits.

    Raises:
        BadInput: the text or a setting is at fault; nothing of the work is left then.
        Refused: the bucket that the text lies on refuses; the work is kept.
    """
    try:
        plans = _plan_shards(work, _pack_blocks(request, work), request.spec)
        _check_plans(request, plans)
        return plans
    except Refused:
        raise
    except BadInput:
        work.remove()
        raise


def _pack_blocks(request: Request, work: Work) -> dict[str, int]:
    """Packs all blocks; returns the number of each split."""
    spec, corpus = request.spec, request.corpus
    corpora: list[tuple[Iterable[str], float]] = [(corpus.texts(), 1.0)]
    if spec.mixture:
        weights = [portion["weight"] for portion in spec.mixture]
        corpora = [(p.texts(), w) for p, w in zip(corpus.parts, weights, strict=True)]
    cut = blocks.cut_into_blocks(corpora, spec.seq_length, spec.eval_fraction, spec.seed)
    numbers = dict.fromkeys(SPLITS, 0)
    total = int(sum(_text_bytes(part) * min(1.0, part.weight or 1.0) for part in corpus.parts))
    cut = _noticing_markers(cut, request.tokenizer)
    packer = (request.tokenizer, spec, work.block)
    with (
        Workers(request.num_workers, blocks.start_packer, packer) as workers,
        Progress(total, "B") as progress,
    ):
        for split, size in workers.map(blocks.pack_block, cut):
            numbers[split] += 1
            progress.update(size)
    return numbers


def _noticing_markers(cut: Iterable[blocks.Block], tokenizer: Tokenizer) -> Iterator[blocks.Block]:
    """The blocks; logs once where their text has markers that are no pieces of the tokenizer."""
    is_pending = tokenizer.special.article is None
    for block in cut:
        if is_pending and (
            marker := next(filter("".join(block.texts).__contains__, MARKERS), None)
        ):
            is_pending = False
            log(
                f"{tokenizer.source} has no piece for Wiki40b's markers, which the text holds:"
                f" {marker} becomes {len(tokenizer.encode(marker))} tokens of text"
            )
        yield block


def _text_bytes(part: Part) -> int:
    """Bytes of text in a part of the corpus, about."""
    paths = [source.label for source in part.opened if not source.label.startswith("tfds:")]
    packed = (".gz", ".zst", ".parquet")
    return sum(storage.stat(p).size * (_GZIP_RATIO if p.endswith(packed) else 1) for p in paths)


def _plan_shards(work: Work, numbers: Mapping[str, int], spec: DataSpec) -> list[SplitPlan]:
    """The shards of both splits, from the blocks that were written."""
    plans = []
    for split in SPLITS:
        stored = []
        for number in range(numbers[split]):
            path = work.block(blocks.Block(split, number, ()).name)
            block = blocks.read_block(path, spec.row_dtype.itemsize)
            if block is None:
                raise StorageError(f"{path}: the disk does not keep what is written: check it")
            stored.append(block)
        plans.append(shards.plan_split(split, stored, spec))
    return plans


def _check_plans(request: Request, plans: list[SplitPlan]) -> None:
    """Refuses a corpus, or one of several, of which nothing is trained on.

    Raises:
        BadInput: naming it.
    """
    train = plans[0]
    if not train.num_records:
        raise BadInput("the corpus has no text that could be predicted: give more or other --input")
    there = {block.stats.corpus for block in train.blocks if block.stats.sequences}
    for number, portion in enumerate(request.spec.mixture):
        if number not in there:
            raise BadInput(
                f"--input {request.corpus.parts[number].name}={portion['weight']:g}: none of its"
                " documents would be trained on: give a larger weight or more text, or leave it out"
            )
    left_out = sum(block.stats.left_out for plan in plans for block in plan.blocks)
    if left_out:
        log(f"left out {left_out} sequences in which every token is special or unknown")


# --- writing: blocks to shards ---

_worker: dict[str, Any] = {}  # of a worker process


def _start_writer(plans: list[SplitPlan], spec: DataSpec, work: Work) -> None:
    _worker.update(plans=plans, spec=spec, work=work)


def _write_shard(task: tuple[int, int]) -> MadeShard:
    """Writes shard `task` = (split, number) into the `ready` folder, and notes it."""
    plan: SplitPlan = _worker["plans"][task[0]]
    work: Work = _worker["work"]
    target = storage.join(work.ready, plan.name(task[1]))
    path = work.scratch(plan.name(task[1])) if storage.is_remote(target) else target
    made = shards.write_shard(plan, task[1], _worker["spec"], path)
    if path != target:
        try:
            storage.upload(path, target)
        except PermissionError as error:  # writing the lease was permitted before
            raise StorageError(
                f"{target}: {error.strerror} in mid run: run the same command again"
            ) from error
        os.unlink(path)
    work.note_shard(made)
    return made


def _write_shards(request: Request, work: Work, plans: list[SplitPlan]) -> list[list[MadeShard]]:
    """Writes the shards of each split, except those that an earlier run has finished."""
    every = [(i, k) for i, plan in enumerate(plans) for k in range(plan.num_shards)]
    made = work.finished_shards([plans[i].name(k) for i, k in every])
    tasks = [(i, k) for i, k in every if plans[i].name(k) not in made]
    num_workers = max(1, min(request.num_workers, len(tasks)))
    with (
        Workers(num_workers, _start_writer, (plans, request.spec, work)) as workers,
        Progress(len(tasks), "shards") as progress,
    ):
        for one in workers.map(_write_shard, tasks):
            made[one.shard.name] = one
            progress.update(1)
    return [[made[plan.name(k)] for k in range(plan.num_shards)] for plan in plans]


def _finish(
    request: Request, work: Work, plans: list[SplitPlan], made: list[list[MadeShard]]
) -> Manifest:
    """Moves the shards into place, then writes the tokenizer and, last, the manifest."""
    output, tokenizer = request.output_dir, request.tokenizer
    manifest = shards.manifest_of(request.spec, request.corpus, plans, made)
    if tokenizer.changes:
        manifest.statistics["tokenizer_changes"] = tokenizer.changes
    owned = work.put_in_place(manifest.train_shards + manifest.eval_shards, request.spec)
    owned.write(manifest_lib.TOKENIZER_NAME, tokenizer.model_bytes)
    verify.raise_first(verify.file_problems(manifest, storage.list_stats(output)), output)
    owned.write(manifest_lib.FILE_NAME, manifest_lib.to_json(manifest).encode())
    work.remove()
    return manifest


# --- processes ---


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
                waiting.append(self._submit(function, task))
                while len(waiting) >= _IN_FLIGHT * self._num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise self._worker_error() from error

    def _submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hands a task over, and starts a process for it where one is lacking: in a thread, which
        no signal interrupts halfway."""
        assert self._pool is not None
        return self._starter.submit(self._pool.submit, function, task).result()

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
