"""`make-data` on one machine: corpus to shards and manifest, in processes, resumable at any point.

1. Documents are cut into blocks; workers tokenise and pack them (`blocks`).
2. Workers gather the shards from the blocks (`shards`).
3. When all shards are ready they are moved into place, and `manifest.json` is written, last.

Each file appears whole or not at all, and depends on the corpus and the settings alone. So the next
run of a killed command makes the same bytes, and repeats only what was in flight. `work` describes
where unfinished work lies and what may be removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import blocks, shards, verify
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import SPLITS, DataSpec, Manifest
from bigbird_ja.data.shards import MadeShard, SplitPlan
from bigbird_ja.data.work import Work, exclusive, shards_to_replace
from bigbird_ja.data.workers import Workers
from bigbird_ja.process.console import Progress, log
from bigbird_ja.process.errors import BadInput, Refused, StorageError
from bigbird_ja.storage import outputs
from bigbird_ja.storage.lease import Lease
from bigbird_ja.text import words
from bigbird_ja.text.corpus import Corpus, Document, Part
from bigbird_ja.text.tokenizer import Tokenizer

_GZIP_RATIO = 3  # text bytes per compressed byte, for the progress line only


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
    listing = storage.list_stats(output)
    has_data = manifest_lib.FILE_NAME in listing
    if has_data and not request.overwrite:
        manifest = _finished(request)
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
    owned = work.owned()
    if has_data:
        owned |= shards_to_replace(output)
    if begun is None:
        _refuse_foreign(request, listing, owned)
        work.remove()
    else:
        log(f"{output}: continuing what an earlier run began")
    work.open(spec, owned)
    plans = _pack(request, work)
    if begun is not None:
        _refuse_foreign(request, listing, owned | _names(plans))
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
            f"{request.output_dir} holds {foreign[0]}, and nothing shows that make-data made it:"
            " choose another --output_dir, or move it away yourself"
        )


def _names(plans: list[SplitPlan]) -> set[str]:
    return {plan.name(shard) for plan in plans for shard in range(plan.num_shards)}


# --- packing: documents to blocks ---

_worker: dict[str, Any] = {}  # of a worker process


def _start_packer(tokenizer: Tokenizer, spec: DataSpec, work: Work) -> None:
    marker = words.word_marker(spec.word_boundaries, tokenizer)
    _worker.update(tokenizer=tokenizer, marker=marker, spec=spec, work=work)


def _pack_block(block: blocks.Block) -> tuple[str, int]:
    """Packs and writes one block unless it is there; returns its split and its bytes of text."""
    spec: DataSpec = _worker["spec"]
    path = _worker["work"].block(block.name)
    if blocks.read_block(path, spec.row_dtype.itemsize, verify=True) is None:
        rows, stats = blocks.make_rows(block, _worker["tokenizer"], _worker["marker"], spec)
        blocks.write_block(path, rows, stats)
    return block.split, sum(len(text.encode()) for text in block.texts)


def _pack(request: Request, work: Work) -> list[SplitPlan]:
    """Packs the whole corpus (unless that was done) and plans the shards of both splits.

    Raises:
        BadInput: the text or a setting is at fault; nothing of the work is left then.
        Refused: the bucket that the text lies on refuses; the work is kept.
    """
    try:
        for _ in range(2):  # a block that was damaged since it was written is packed again
            numbers = work.num_blocks() or _pack_blocks(request, work)
            plans = _plan_shards(work, numbers, request.spec)
            if plans is not None:
                _check_plans(request, plans)
                return plans
            work.forget_blocks()
    except Refused:
        raise
    except BadInput:
        work.remove()
        raise
    raise StorageError(f"{work.local}: the disk does not keep what is written: check it")


def _pack_blocks(request: Request, work: Work) -> dict[str, int]:
    """Packs all blocks; returns the number of each split."""
    spec, corpus = request.spec, request.corpus
    corpora: list[tuple[Iterable[Document], float]] = [(corpus.documents(), 1.0)]
    if spec.mixture:
        weights = [portion["weight"] for portion in spec.mixture]
        corpora = [(p.documents(), w) for p, w in zip(corpus.parts, weights, strict=True)]
    cut = blocks.cut_into_blocks(corpora, spec.seq_length, spec.eval_fraction, spec.seed)
    numbers = dict.fromkeys(SPLITS, 0)
    total = int(sum(_text_bytes(part) * min(1.0, part.weight or 1.0) for part in corpus.parts))
    with (
        Workers(request.num_workers, _start_packer, (request.tokenizer, spec, work)) as workers,
        Progress(total, "B") as progress,
    ):
        for split, size in workers.map(_pack_block, cut):
            numbers[split] += 1
            progress.update(size)
    work.note_blocks(numbers)
    return numbers


def _text_bytes(part: Part) -> int:
    """Bytes of text in a part of the corpus, about."""
    return sum(
        storage.size(s) * (_GZIP_RATIO if s.endswith((".gz", ".zst", ".parquet")) else 1)
        for s in (source.label for source in part.opened)
        if not s.startswith("tfds:")
    )


def _plan_shards(work: Work, numbers: Mapping[str, int], spec: DataSpec) -> list[SplitPlan] | None:
    """The shards of both splits, from the blocks that were written; None where one is damaged."""
    plans = []
    for split in SPLITS:
        names = [blocks.Block(split, number, ()).name for number in range(numbers[split])]
        stored = [blocks.read_block(work.block(n), spec.row_dtype.itemsize) for n in names]
        whole = [block for block in stored if block is not None]
        if len(whole) < len(stored):
            return None
        plans.append(shards.plan_split(split, whole, spec))
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
    made = work.finished_shards(_names(plans))
    tasks = [
        (i, k)
        for i, plan in enumerate(plans)
        for k in range(plan.num_shards)
        if plan.name(k) not in made
    ]
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
    work.put_in_place(_names(plans))
    storage.write_bytes(storage.join(output, manifest_lib.TOKENIZER_NAME), tokenizer.model_bytes)
    verify.raise_first(verify.file_problems(manifest, storage.list_stats(output)), output)
    manifest_lib.save(manifest, output)
    work.remove()
    return manifest
