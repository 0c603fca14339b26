"""`make-data` on one machine: corpus to shards and manifest, in processes, resumable at any point.

1. Documents are cut into blocks; workers tokenise and pack them into `.make-data/blocks/`.
2. Workers gather the shards from the blocks; what is known of a finished one is noted in
   `.make-data/shards/`.
3. `manifest.json` is written, and `.make-data` removed.

Each file appears whole or not at all, and depends on the corpus and the settings alone. So a run
that was killed is continued by the next with the same bytes, and only what was in flight is redone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.console import Progress, log
from bigbird_ja.data import blocks as blocks_lib
from bigbird_ja.data import lock, shards, totals, verify
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import Manifest, Shard
from bigbird_ja.data.settings import DataSettings, differences
from bigbird_ja.data.workers import Workers
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.text import words
from bigbird_ja.text.corpus import Corpus
from bigbird_ja.text.tokenizer import Tokenizer

WORK_NAME = ".make-data"
SPLITS = ("train", "eval")
_GZIP_RATIO = 3  # text bytes per compressed byte, for the progress line only


@dataclass(frozen=True)
class Request:
    """What `make-data` was asked for."""

    corpus: Corpus
    tokenizer: Tokenizer
    settings: DataSettings
    output_dir: str
    num_workers: int
    overwrite: bool = False
    work_dir: str | None = None


def make_data(request: Request) -> tuple[Manifest, bool]:
    """Makes a data set, or continues one, or finds it finished.

    Returns:
        The manifest, and whether it was there already.

    Raises:
        BadInput: bad text, other work in the directory, another process at work on it.
    """
    words.word_marker(request.settings.word_boundaries, request.tokenizer)  # fail before all else
    is_new = not storage.exists(request.output_dir)
    storage.make_directory(request.output_dir)
    try:
        with lock.exclusive(request.output_dir):
            return _make(request)
    except BadInput:
        if is_new:
            _remove_if_empty(request.output_dir)
        raise


def _make(request: Request) -> tuple[Manifest, bool]:
    output, settings = request.output_dir, request.settings
    if request.overwrite:
        clear(output)
    else:
        found = finished(output, settings)
        if found:
            _remove(work_directory(request))
            return found, True
    work, settings = open_work(request)
    request = dataclasses.replace(request, settings=settings)
    try:
        plans = pack_corpus(request, work)
        made = _write_shards(request, plans, work)
    except BadInput:
        _remove(work)  # the text or a setting is at fault: nothing of this run can be continued
        raise
    result = finish(request, plans, made)
    _remove(work)
    return result, False


def finished(output_dir: str, settings: DataSettings) -> Manifest | None:
    """The data set that is there already, complete and of these settings.

    Raises:
        BadInput: it is of other settings, damaged, or the directory holds foreign shards.
    """
    names = storage.list_files(output_dir)
    if manifest_lib.FILE_NAME in names:
        found = manifest_lib.load(output_dir)
        differing = differences(found.settings, settings.as_dict())
        if differing:
            raise BadInput(
                f"{output_dir} holds a data set of other settings: {', '.join(differing)}: choose"
                " another --output_dir, or --overwrite"
            )
        return verify.fast_check(output_dir)
    if WORK_NAME not in _directories(output_dir) and not storage.is_remote(output_dir):
        foreign = [name for name in names if name.endswith(".tfrecord")]
        if foreign:
            raise BadInput(
                f"{output_dir} holds {foreign[0]} and no manifest.json: choose another"
                " --output_dir, or --overwrite"
            )
    return None


def clear(output_dir: str) -> None:
    """Removes a data set and unfinished work; the manifest first, which vouches for the rest."""
    storage.delete(storage.join(output_dir, manifest_lib.FILE_NAME))
    names = storage.list_files(output_dir)
    storage.delete_many(
        storage.join(output_dir, name)
        for name in names
        if name.endswith(".tfrecord") and name.startswith(("train-", "eval-"))
    )
    if not storage.is_remote(output_dir):
        _remove(os.path.join(output_dir, WORK_NAME))


def work_directory(request: Request) -> str:
    """Where unfinished work lies: in the output directory, or in the user's cache for a bucket."""
    if request.work_dir:
        return request.work_dir
    if not storage.is_remote(request.output_dir):
        return os.path.join(request.output_dir, WORK_NAME)
    import hashlib

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(request.output_dir.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(cache, "bigbird-ja", f"make-data-{name}")


def open_work(request: Request) -> tuple[str, DataSettings]:
    """Creates the work directory, or takes up the one that an earlier run left.

    Returns:
        The directory, and the settings to go on with: those of the earlier run.

    Raises:
        BadInput: that run had other settings.
    """
    work = work_directory(request)
    path = os.path.join(work, "settings.json")
    settings = request.settings
    if request.overwrite:
        _remove(work)
    if os.path.exists(path):
        try:
            settings = settings.continuing(json.loads(storage.read_text(path)))
        except BadInput as error:
            raise BadInput(f"{work} holds {error}") from error
        log(f"{request.output_dir}: continuing what an earlier run began")
    for name in ("blocks", "shards"):
        os.makedirs(os.path.join(work, name), exist_ok=True)
        storage.clean_temporary(os.path.join(work, name))
    storage.write_text(path, json.dumps(settings.as_dict(), ensure_ascii=False, indent=1))
    return work, settings


# --- packing: documents to blocks ---

_worker: dict[str, Any] = {}


def start_packer(tokenizer: Tokenizer, settings: DataSettings, work: str) -> None:
    """Prepares a worker process for `pack_block`."""
    marker = words.word_marker(settings.word_boundaries, tokenizer)
    _worker.update(tokenizer=tokenizer, marker=marker, settings=settings, work=work)


def pack_block(block: blocks_lib.Block) -> tuple[str, int]:
    """Packs and writes one block unless it is there; returns its split and its bytes of text."""
    settings: DataSettings = _worker["settings"]
    path = os.path.join(_worker["work"], "blocks", block.name)
    if blocks_lib.read_block(path, settings.row_dtype.itemsize, verify=True) is None:
        rows, stats = blocks_lib.make_rows(block, _worker["tokenizer"], _worker["marker"], settings)
        blocks_lib.write_block(path, rows, stats)
    return block.split, sum(len(text.encode()) for text in block.texts)


def pack_corpus(request: Request, work: str) -> list[shards.SplitPlan]:
    """Packs the whole corpus (unless that was done) and plans the shards of both splits."""
    settings = request.settings
    done = os.path.join(work, "blocks.json")
    if not os.path.exists(done):
        cut = blocks_lib.cut_into_blocks(
            request.corpus.documents(), settings.seq_length, settings.eval_fraction, settings.seed
        )
        numbers = dict.fromkeys(SPLITS, 0)
        arguments = (request.tokenizer, settings, work)
        total = sum(
            storage.size(s) * (_GZIP_RATIO if s.endswith(".gz") else 1)
            for s in request.corpus.sources
            if not s.startswith("tfds:")
        )
        with (
            Workers(request.num_workers, start_packer, arguments) as workers,
            Progress(total, "B") as progress,
        ):
            for split, size in workers.map(pack_block, cut):
                numbers[split] += 1
                progress.update(size)
        storage.write_text(done, json.dumps(numbers))
    return plan_shards(work, json.loads(storage.read_text(done)), settings)


def plan_shards(
    work: str, numbers: dict[str, int], settings: DataSettings
) -> list[shards.SplitPlan]:
    """The shards of both splits, from the blocks that were written.

    Raises:
        BadInput: there is nothing to train on.
    """
    plans = []
    for split in SPLITS:
        stored = []
        for number in range(numbers[split]):
            path = os.path.join(work, "blocks", blocks_lib.Block(split, number, ()).name)
            block = blocks_lib.read_block(path, settings.row_dtype.itemsize)
            if block is None:
                raise BadInput(f"{path} was damaged since it was written: run with --overwrite")
            stored.append(block)
        plans.append(shards.plan_split(split, stored, settings))
    left_out = sum(block.stats.left_out for plan in plans for block in plan.blocks)
    if not plans[0].num_records:
        raise BadInput("the corpus has no text that could be predicted: give more or other --input")
    if left_out:
        log(f"left out {left_out} sequences in which every token is special or unknown")
    return plans


# --- shards ---


def start_writer(
    plans: list[shards.SplitPlan], settings: DataSettings, output: str, work: str
) -> None:
    """Prepares a worker process for `write_shard`."""
    _worker.update(plans=plans, settings=settings, output=output, work=work)


def write_shard(task: tuple[int, int]) -> shards.MadeShard:
    """Writes shard `task` = (split, number) unless an earlier run noted it as finished."""
    plan: shards.SplitPlan = _worker["plans"][task[0]]
    name = plan.name(task[1])
    note = os.path.join(_worker["work"], "shards", f"{name}.json")
    target = storage.join(_worker["output"], name)
    made = read_note(note)
    if made is not None and _is_there(target, made.shard):
        return made
    path = target
    if storage.is_remote(target):
        path = os.path.join(_worker["work"], "shards", name)
    made = shards.write_shard(plan, task[1], _worker["settings"], path)
    if path != target:
        _upload(path, target)
        os.unlink(path)
    storage.write_text(note, json.dumps(dataclasses.asdict(made)))
    return made


def _upload(path: str, target: str) -> None:
    try:
        storage.upload(path, target)
    except PermissionError as error:  # the lock was written here: this was permitted before
        raise StorageError(
            f"{target}: {error.strerror} in mid run: run the same command again"
        ) from error


def read_note(path: str) -> shards.MadeShard | None:
    """What an earlier run noted of a finished shard."""
    try:
        values = json.loads(storage.read_text(path))
        return shards.MadeShard(Shard(**values["shard"]), values["predictions"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _is_there(target: str, shard: Shard) -> bool:
    try:
        return storage.size(target) == shard.bytes
    except FileNotFoundError:
        return False


def _write_shards(
    request: Request, plans: list[shards.SplitPlan], work: str
) -> list[list[shards.MadeShard]]:
    tasks = [(i, k) for i, plan in enumerate(plans) for k in range(plan.num_shards)]
    made: list[list[shards.MadeShard]] = [[] for _ in plans]
    arguments = (plans, request.settings, request.output_dir, work)
    with (
        Workers(min(request.num_workers, len(tasks)), start_writer, arguments) as workers,
        Progress(len(tasks), "shards") as progress,
    ):
        for (split, _), shard in zip(tasks, workers.map(write_shard, tasks), strict=True):
            made[split].append(shard)
            progress.update(1)
    return made


def finish(
    request: Request, plans: list[shards.SplitPlan], made: list[list[shards.MadeShard]]
) -> Manifest:
    """Writes the tokenizer and, last, the manifest; removes shards of an earlier layout."""
    output = request.output_dir
    result = totals.manifest_of(request.settings, request.corpus.sources, plans, made)
    named = {shard.name for shard in result.train_shards + result.eval_shards}
    for name in storage.list_files(output):
        if name.endswith(".tfrecord") and name not in named:
            storage.delete(storage.join(output, name))
    storage.write_bytes(
        storage.join(output, manifest_lib.TOKENIZER_NAME), request.tokenizer.model_bytes
    )
    verify.raise_first(verify.file_problems(result, storage.list_stats(output)), output)
    manifest_lib.save(result, output)
    return result


def _directories(path: str) -> Iterator[str]:
    if not storage.is_remote(path) and os.path.isdir(path):
        with os.scandir(path) as entries:
            yield from (entry.name for entry in entries if entry.is_dir())


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _remove_if_empty(directory: str) -> None:
    if not storage.is_remote(directory) and os.path.isdir(directory) and not os.listdir(directory):
        os.rmdir(directory)
