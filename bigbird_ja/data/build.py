"""Build a data set (shards and a manifest) from a corpus, with worker processes.

1. Documents are grouped into blocks, which workers tokenize and pack (`blocks`).
2. An old data set is moved to OUTPUT_DIR.replaced-N. Then workers write the shards (`shards`).
3. `manifest.json` is written last. A folder without it is unfinished.

Each file is written atomically, and depends only on the corpus and the settings. So a rerun of a
killed command writes the same bytes, and repeats only unfinished files.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import blocks, check, shards
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.build_dir import Work, check_output, lease_folder
from bigbird_ja.data.manifest import SPLITS, DataSpec, Manifest
from bigbird_ja.data.shards import MadeShard, SplitPlan
from bigbird_ja.data.text_counts import TextCounts
from bigbird_ja.errors import BadInput, Refused, StorageError
from bigbird_ja.huggingface import hub
from bigbird_ja.process.classify import convert_refusals
from bigbird_ja.process.console import Progress, log
from bigbird_ja.process.workers import run_tasks
from bigbird_ja.storage import outputs
from bigbird_ja.storage.lease import LeaseShare
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.storage.paths import NAMED
from bigbird_ja.text import words
from bigbird_ja.text.containers import get_size, has_suffix
from bigbird_ja.text.corpus import Corpus, Input
from bigbird_ja.text.tokenizer import Tokenizer

# Estimated bytes of text per compressed byte, for the progress line.
_GZIP_RATIO = 3
# Arguments of `_start_writer`, stored in each worker process.
_worker: dict[str, Any] = {}


@dataclass(frozen=True)
class Request:
    """Arguments of `make_data`."""

    corpus: Corpus
    tokenizer: Tokenizer
    spec: DataSpec
    output_dir: str
    num_workers: int
    overwrite: bool = False
    settings: str = ""  # Text that is logged when the request is accepted.
    # Function that packs the blocks, or None for worker processes on this machine.
    pack: Callable[..., Generator[int]] | None = None


def make_data(request: Request) -> tuple[Manifest, bool]:
    """Build a data set, unless it is finished. Unfinished work is continued.

    Returns:
        The manifest, and whether the data set was finished before this call.

    Raises:
        BadInput: The text is invalid, another process writes to the directory, or the directory
            contains foreign files or data of other settings.
    """
    _check_places(request)
    with outputs.create_folder(request.output_dir), lease_folder(request.output_dir) as lease:
        work = Work(request.output_dir)
        if (manifest := _load_finished(request, work)) is not None:
            return manifest, True
        _begin(request, work)
        with convert_refusals():
            plans, counts = _pack(request, work)
            names = [plan.name_shard(k) for plan in plans for k in range(plan.num_shards)]
            owned = work.claim_output(names, request.spec)
            made = _write_shards(request, work, plans, lease.make_share())
            lease.check()
            return _finish(request, work, owned, plans, made, counts), False


def _check_places(request: Request) -> None:
    """Check the paths of output and inputs, and that MeCab is installed if the spec needs it."""
    output = request.output_dir
    outputs.check_folder_place(output, "`output_dir`")
    for source in request.corpus.sources:
        if not source.startswith(NAMED):
            outputs.refuse_overlap({"`inputs`": source}, output, "`output_dir`")
    if request.spec.word_boundaries == "mecab":
        words.find_mecab_boundaries("")


def _load_finished(request: Request, work: Work) -> Manifest | None:
    """Return the manifest if the output contains a finished data set of this spec, else None.

    With `overwrite`, a finished data set is replaced, so the result is None. But if an interrupted
    run with the same spec wrote the data set, its manifest is returned.

    Raises:
        BadInput: The folder contains a data set of other settings, or a damaged one.
    """
    output, spec = request.output_dir, request.spec
    if manifest_lib.FILE_NAME not in storage.list_files(output):
        return None
    if request.overwrite and not work.is_writing(spec):
        return None
    try:
        if differing := spec.list_differences(manifest_lib.load(output)):
            raise BadInput(
                f"{output} contains a data set of other settings ({', '.join(differing)}): choose"
                " another `output_dir`, or use `overwrite`"
            )
        manifest = check.check_files(output)
    except BadInput:
        check_output(output)
        raise
    with contextlib.suppress(BadInput):  # Foreign files in the work folders are left there.
        if work.read_spec() == spec:
            work.remove()
    return manifest


def _begin(request: Request, work: Work) -> None:
    """Create the work folders, or open those of an earlier run of the same spec.

    Raises:
        BadInput: The folders contain unfinished work of other settings, or foreign files.
    """
    output, spec = request.output_dir, request.spec
    begun = work.read_spec()
    if begun is not None and begun != spec:
        if not request.overwrite:
            raise BadInput(
                f"{work.folder} contains unfinished work of other settings"
                f" ({', '.join(spec.list_differences(begun))}): use the same settings, or set"
                " `overwrite`"
            )
        begun = None
    check_output(output)
    if begun is None:
        work.remove()
    else:
        log(f"{output}: continuing the work of an earlier run")
    if request.settings:
        log(request.settings)
    work.open(spec)


def _pack(request: Request, work: Work) -> tuple[list[SplitPlan], dict[str, int]]:
    """Pack the blocks of the corpus that do not exist yet.

    Returns:
        The plan of each split's shards, and the counts of `TextCounts`.

    Raises:
        BadInput: The text is invalid or contains no token to predict. The packed blocks are
            removed.
        Refused: The bucket of the text denies access. The packed blocks are kept.
    """
    try:
        numbers, counts = _pack_blocks(request, work)
        request.corpus.check_unchanged()
        plans = [_plan(request, work, split, numbers[split]) for split in SPLITS]
        if not plans[0].num_records:
            raise BadInput("the corpus contains no token to predict: give more or other `inputs`")
    except Refused:
        raise
    except BadInput:
        work.remove()
        raise
    return plans, counts


def _pack_blocks(request: Request, work: Work) -> tuple[dict[str, int], dict[str, int]]:
    """Read all text, and pack its blocks.

    Returns:
        The number of blocks of each split, and the counts of `TextCounts`.
    """
    spec, corpus = request.spec, request.corpus
    counts, trained, numbers = TextCounts(), set[int](), dict.fromkeys(SPLITS, 0)
    with_text = counts.skip_empty
    corpora = [(with_text(corpus.texts()), 1.0)]
    if spec.mixture:
        weights = [portion["weight"] for portion in spec.mixture]
        corpora = [(with_text(p.texts()), w) for p, w in zip(corpus.parts, weights, strict=True)]
    cut = blocks.cut_into_blocks(corpora, spec.seq_length, spec.eval_fraction, spec.seed)
    total = sum(_estimate_text_bytes(part) * min(1.0, part.weight or 1.0) for part in corpus.parts)

    def yield_blocks() -> Iterator[blocks.Block]:
        for block in cut:
            numbers[block.split] += 1
            if block.split == "train":
                trained.add(block.corpus)
            yield block

    packer = (request.tokenizer, spec, work.locate_block)
    if request.pack:
        done = request.pack(yield_blocks(), *packer)
    else:
        workers = request.num_workers
        done = run_tasks(blocks.pack_block, yield_blocks(), workers, blocks.start_packer, packer)
    with contextlib.closing(done), Progress(int(total), "B") as progress:
        for size in done:
            progress.update(size)
    for number in set(range(len(spec.mixture))) - trained:
        raise BadInput(
            f"`inputs` {corpus.parts[number].name}={spec.mixture[number]['weight']:g} adds no"
            " documents to the training data. Give a larger weight or more text, or leave it out"
        )
    return numbers, counts.get_statistics()


def _estimate_text_bytes(part: Input) -> int:
    """Estimate the number of bytes of text in one input of the corpus."""
    paths = [source.label for source in part.opened if not source.label.startswith(NAMED)]
    packed = (".gz", ".zst", ".parquet")
    return sum(get_size(p) * (_GZIP_RATIO if has_suffix(p, packed) else 1) for p in paths)


def _plan(request: Request, work: Work, split: str, number: int) -> SplitPlan:
    """Plan the shards of a split, whose blocks on disk are numbered from 0 to `number` - 1."""
    stored = []
    for i in range(number):
        path = work.locate_block(blocks.Block(split, i, ()).name)
        block = blocks.read_block(path, request.spec.row_dtype.itemsize)
        if block is None:
            raise StorageError(f"{path}: written data could not be read back. Check the disk")
        stored.append(block)
    return shards.plan_split(split, stored, work.blocks, request.spec)


def _start_writer(
    plans: list[SplitPlan], spec: DataSpec, work: Work, lease: LeaseShare | None
) -> None:
    _worker.update(plans=plans, spec=spec, work=work)
    if lease is not None:
        lease.add_fence()


def _write_shard(task: tuple[int, int]) -> MadeShard:
    """Write one shard, record that it is finished, and return its description.

    Args:
        task: index of the split, and number of the shard.
    """
    plan: SplitPlan = _worker["plans"][task[0]]
    work: Work = _worker["work"]
    path = storage.join(work.output, plan.name_shard(task[1]))
    made = shards.write_shard(plan, task[1], _worker["spec"], path)
    work.note_shard(made)
    return made


def _write_shards(
    request: Request, work: Work, plans: list[SplitPlan], lease: LeaseShare
) -> dict[str, MadeShard]:
    """Write the shards of both splits that do not exist yet, and return all shards by name."""
    every = [(i, k) for i, plan in enumerate(plans) for k in range(plan.num_shards)]
    made = work.find_finished_shards([plans[i].name_shard(k) for i, k in every])
    tasks = [(i, k) for i, k in every if plans[i].name_shard(k) not in made]
    num_workers = max(1, min(request.num_workers, len(tasks)))
    # A single worker is this process, which owns the lease. Other processes need a share of it.
    writer = (plans, request.spec, work, lease if num_workers > 1 else None)
    done = run_tasks(_write_shard, tasks, num_workers, _start_writer, writer)
    with contextlib.closing(done), Progress(len(tasks), "shards") as progress:
        for one in done:
            made[one.shard.name] = one
            progress.update(1)
    return made


def _finish(
    request: Request,
    work: Work,
    owned: Owned,
    plans: list[SplitPlan],
    made: dict[str, MadeShard],
    counts: dict[str, int],
) -> Manifest:
    """Write the tokenizer, check the shards, write the manifest, and return the manifest."""
    output, tokenizer = request.output_dir, request.tokenizer
    in_order = [[made[plan.name_shard(k)] for k in range(plan.num_shards)] for plan in plans]
    source = "@".join(filter(None, hub.parse_cached_path(tokenizer.source)))
    manifest = shards.make_manifest(
        request.spec,
        request.corpus,
        plans,
        in_order,
        **counts,
        tokenizer_changes=tokenizer.changes,
        tokenizer_source=source,
    )
    owned.write(manifest_lib.TOKENIZER_NAME, tokenizer.model_bytes)
    check.raise_first(check.compare_files(manifest, storage.list_stats(output)), output)
    # The data set is complete as soon as this file exists.
    owned.write(manifest_lib.FILE_NAME, manifest_lib.to_json(manifest).encode())
    work.remove()
    return manifest
