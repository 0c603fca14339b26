"""`make-data` on one machine: corpus to shards and manifest, in processes, resumable at any point.

1. Documents are cut into blocks; workers tokenise and pack them.
2. Workers gather the shards from the blocks.
3. When all are there they take their places, and `manifest.json` is written, last.

Each file appears whole or not at all, and depends on the corpus and the settings alone. So a run
that was killed is continued by the next with the same bytes, and only what was in flight is redone.
Where unfinished work lies, and what may be removed, is said in `work`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import blocks as blocks_lib
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import shards, verify
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.spec import DataSpec
from bigbird_ja.data.work import Work, exclusive
from bigbird_ja.data.workers import Workers
from bigbird_ja.process.console import Progress, log
from bigbird_ja.process.errors import BadInput, Refused, StorageError
from bigbird_ja.storage import outputs, paths
from bigbird_ja.storage.lease import Lease
from bigbird_ja.text import words
from bigbird_ja.text.corpus import Corpus, Document, Part
from bigbird_ja.text.tokenizer import Tokenizer

SPLITS = verify.SPLITS
_GZIP_RATIO = 3  # text bytes per compressed byte, for the progress line only


@dataclass(frozen=True)
class Request:
    """What `make-data` was asked for."""

    corpus: Corpus
    tokenizer: Tokenizer
    spec: DataSpec
    output_dir: str
    num_workers: int
    overwrite: bool = False
    work_dir: str | None = None
    unasked: tuple[str, ...] = ()  # fields of the spec that nobody asked for


def make_data(request: Request) -> tuple[Manifest, bool]:
    """Makes a data set, or continues one, or finds it finished.

    Returns:
        The manifest, and whether it was there already.

    Raises:
        BadInput: bad text, something else in the directory, another process at work on it.
    """
    work = Work(request.output_dir, request.work_dir)
    _check_places(request, work)
    words.word_marker(request.spec.word_boundaries, request.tokenizer)  # fail before all else
    named = [path for path in (request.work_dir, request.output_dir) if path]
    new = [path for path in named if not storage.exists(path)]
    try:
        storage.make_directory(request.output_dir)
        with exclusive(request.output_dir) as lease:
            return _make(request, work, lease)
    except BadInput:
        for path in new:
            _remove_if_empty(path)
        raise


def _check_places(request: Request, work: Work) -> None:
    """Refuses places that cannot be, or that overlap, before anything is written."""
    output, work_dir = request.output_dir, request.work_dir
    for flag, path in (("--output_dir", output), ("--work_dir", work_dir)):
        if path is not None:  # what is in them is looked at later, file by file
            outputs.check_folder_place(path, flag)
    written: dict[str, str | None] = {"--output_dir": output}
    if work_dir is not None:
        if storage.is_remote(work_dir):
            raise paths.refusal(work_dir, "--work_dir", "not on this machine: name a local folder")
        outputs.refuse_overlap(written, {"--work_dir": work.local})
        written["--work_dir"] = work.local
    for source in request.corpus.sources:
        if not source.startswith("tfds:"):
            outputs.refuse_overlap({"--input": source}, written)


def _make(request: Request, work: Work, lease: Lease) -> tuple[Manifest, bool]:
    output = request.output_dir
    listing = storage.list_stats(output)
    has_data = manifest_lib.FILE_NAME in listing
    if has_data and not request.overwrite:
        found = finished(request)
        with contextlib.suppress(BadInput):  # work of other settings is not this command's
            if _continued(request, work) is not None:
                work.remove()
        return found, True
    continued = _continued(request, work)
    owned = work.owned()
    if has_data:
        owned |= manifest_lib.shards_to_replace(output)
    if continued is None:
        _refuse_foreign(request, listing, owned)
        work.remove()
    else:
        log(f"{output}: continuing what an earlier run began")
        request = dataclasses.replace(request, spec=continued)
    work.open(request.spec, owned)
    plans = _pack(request, work)
    if continued is not None:
        _refuse_foreign(request, listing, owned | _names(plans))
    made = _write_shards(request, work, plans)
    lease.check()
    return _finish(request, work, plans, made), False


def _continued(request: Request, work: Work) -> DataSpec | None:
    """The settings with which the work of an earlier run goes on; None to begin anew.

    Raises:
        BadInput: that run had other settings, and is not to be overwritten.
    """
    begun = work.begun()
    if begun is None:
        return None
    try:
        return request.spec.continuing(begun, request.unasked)
    except BadInput as error:
        if request.overwrite:
            return None
        raise BadInput(f"{work.local} holds {error}") from error


def finished(request: Request) -> Manifest:
    """The data set that is there already, complete and of this spec.

    Raises:
        BadInput: it is of other settings, or damaged.
    """
    output_dir = request.output_dir
    found = manifest_lib.load(output_dir)
    differing = request.spec.differences(found, request.unasked)
    if differing:
        raise BadInput(
            f"{output_dir} holds a data set of other settings: {', '.join(differing)}: choose"
            " another --output_dir, or --overwrite"
        )
    return verify.fast_check(output_dir)


def _refuse_foreign(
    request: Request, listing: Mapping[str, storage.Stat], owned: Collection[str]
) -> None:
    """Refuses an output that holds a file of another make where ours would be.

    Raises:
        BadInput: naming it.
    """
    foreign = [n for n in listing if n.endswith(".tfrecord") and n not in owned]
    name = manifest_lib.TOKENIZER_NAME
    if not owned and name in listing:
        data = storage.read_bytes(storage.join(request.output_dir, name))
        foreign += [name] if data != request.tokenizer.model_bytes else []
    if foreign:
        raise BadInput(
            f"{request.output_dir} holds {foreign[0]}, which no make-data made as far as can be"
            " told: choose another --output_dir, or move it away yourself"
        )


def _names(plans: list[shards.SplitPlan]) -> set[str]:
    return {plan.name(shard) for plan in plans for shard in range(plan.num_shards)}


# --- packing: documents to blocks ---

_worker: dict[str, Any] = {}


def start_packer(tokenizer: Tokenizer, spec: DataSpec, work: Work) -> None:
    """Prepares a worker process for `pack_block`."""
    marker = words.word_marker(spec.word_boundaries, tokenizer)
    _worker.update(tokenizer=tokenizer, marker=marker, spec=spec, work=work)


def pack_block(block: blocks_lib.Block) -> tuple[str, int]:
    """Packs and writes one block unless it is there; returns its split and its bytes of text."""
    spec: DataSpec = _worker["spec"]
    path = _worker["work"].block(block.name)
    if blocks_lib.read_block(path, spec.row_dtype.itemsize, verify=True) is None:
        rows, stats = blocks_lib.make_rows(block, _worker["tokenizer"], _worker["marker"], spec)
        blocks_lib.write_block(path, rows, stats)
    return block.split, sum(len(text.encode()) for text in block.texts)


def _pack(request: Request, work: Work) -> list[shards.SplitPlan]:
    """Packs the whole corpus (unless that was done) and plans the shards of both splits.

    Raises:
        BadInput: the text or a setting is at fault; nothing of the work is left then.
        Refused: the bucket that the text lies on; the work is kept.
    """
    try:
        for _ in range(2):  # a block that was damaged since it was written is packed again
            numbers = work.num_blocks() or _pack_blocks(request, work)
            plans = plan_shards(work, numbers, request.spec)
            if plans is not None:
                _check_portions(request.corpus, request.spec, plans[0])
                return plans
            work.forget_blocks()
    except Refused:
        raise
    except BadInput:
        work.remove()
        raise
    raise StorageError(f"{work.local}: the disk does not keep what is written: check it")


def _pack_blocks(request: Request, work: Work) -> dict[str, int]:
    spec, corpus = request.spec, request.corpus
    corpora: list[tuple[Iterable[Document], float]] = [(corpus.documents(), 1.0)]
    if spec.mixture:
        weights = [portion["weight"] for portion in spec.mixture]
        documents = [part.documents() for part in corpus.parts]
        corpora = list(zip(documents, weights, strict=True))
    cut = blocks_lib.cut_mixture(corpora, spec.seq_length, spec.eval_fraction, spec.seed)
    numbers = dict.fromkeys(SPLITS, 0)
    total = int(sum(_text_bytes(part) * min(1.0, part.weight or 1.0) for part in corpus.parts))
    with (
        Workers(request.num_workers, start_packer, (request.tokenizer, spec, work)) as workers,
        Progress(total, "B") as progress,
    ):
        for split, size in workers.map(pack_block, cut):
            numbers[split] += 1
            progress.update(size)
    work.note_blocks(numbers)
    return numbers


def _check_portions(corpus: Corpus, spec: DataSpec, train: shards.SplitPlan) -> None:
    """Refuses a corpus of which nothing is trained on: its weight says otherwise.

    Raises:
        BadInput: naming it.
    """
    there = {block.stats.corpus for block in train.blocks if block.stats.sequences}
    for number, portion in enumerate(spec.mixture):
        if number not in there:
            raise BadInput(
                f"--input {corpus.parts[number].name}={portion['weight']:g}: none of its documents"
                " would be trained on: give a larger weight or more text, or leave it out"
            )


def _text_bytes(part: Part) -> int:
    """Bytes of text in a part of the corpus, about."""
    return sum(
        storage.size(s) * (_GZIP_RATIO if s.endswith((".gz", ".zst", ".parquet")) else 1)
        for s in (source.label for source in part.opened)
        if not s.startswith("tfds:")
    )


def plan_shards(
    work: Work, numbers: Mapping[str, int], spec: DataSpec
) -> list[shards.SplitPlan] | None:
    """The shards of both splits, from the blocks that were written; None where one is damaged.

    Raises:
        BadInput: there is nothing to train on.
    """
    plans = []
    for split in SPLITS:
        stored = []
        for number in range(numbers[split]):
            path = work.block(blocks_lib.Block(split, number, ()).name)
            block = blocks_lib.read_block(path, spec.row_dtype.itemsize)
            if block is None:
                return None
            stored.append(block)
        plans.append(shards.plan_split(split, stored, spec))
    left_out = sum(block.stats.left_out for plan in plans for block in plan.blocks)
    if not plans[0].num_records:
        raise BadInput("the corpus has no text that could be predicted: give more or other --input")
    if left_out:
        log(f"left out {left_out} sequences in which every token is special or unknown")
    return plans


# --- shards ---


def start_writer(plans: list[shards.SplitPlan], spec: DataSpec, work: Work) -> None:
    """Prepares a worker process for `write_shard`."""
    _worker.update(plans=plans, spec=spec, work=work)


def write_shard(task: tuple[int, int]) -> shards.MadeShard:
    """Writes shard `task` = (split, number) to where finished shards wait, and notes it."""
    plan: shards.SplitPlan = _worker["plans"][task[0]]
    work: Work = _worker["work"]
    target = storage.join(work.ready, plan.name(task[1]))
    path = work.scratch(plan.name(task[1])) if storage.is_remote(target) else target
    made = shards.write_shard(plan, task[1], _worker["spec"], path)
    if path != target:
        _upload(path, target)
        os.unlink(path)
    work.note_shard(made)
    return made


def _upload(path: str, target: str) -> None:
    try:
        storage.upload(path, target)
    except PermissionError as error:  # the lock was written here: this was permitted before
        raise StorageError(
            f"{target}: {error.strerror} in mid run: run the same command again"
        ) from error


def _write_shards(
    request: Request, work: Work, plans: list[shards.SplitPlan]
) -> list[list[shards.MadeShard]]:
    """Writes all shards, but those that an earlier run has finished."""
    found = work.finished_shards(_names(plans))
    tasks = [
        (i, k)
        for i, plan in enumerate(plans)
        for k in range(plan.num_shards)
        if plan.name(k) not in found
    ]
    arguments = (plans, request.spec, work)
    with (
        Workers(max(1, min(request.num_workers, len(tasks))), start_writer, arguments) as workers,
        Progress(len(tasks), "shards") as progress,
    ):
        for made in workers.map(write_shard, tasks):
            found[made.shard.name] = made
            progress.update(1)
    return [[found[plan.name(k)] for k in range(plan.num_shards)] for plan in plans]


def _finish(
    request: Request,
    work: Work,
    plans: list[shards.SplitPlan],
    made: list[list[shards.MadeShard]],
) -> Manifest:
    """Puts the shards in their place, then the tokenizer and, last, the manifest."""
    output = request.output_dir
    result = shards.manifest_of(request.spec, request.corpus, plans, made)
    if changes := request.tokenizer.changes:
        result.statistics["tokenizer_changes"] = changes
    work.put_in_place(_names(plans))
    storage.write_bytes(
        storage.join(output, manifest_lib.TOKENIZER_NAME), request.tokenizer.model_bytes
    )
    verify.raise_first(verify.file_problems(result, storage.list_stats(output)), output)
    manifest_lib.save(result, output)
    work.remove()
    return result


def _remove_if_empty(directory: str) -> None:
    if not storage.is_remote(directory) and os.path.isdir(directory) and not os.listdir(directory):
        os.rmdir(directory)
