"""`make-data --runner=beam`: the functions of `build` on Apache Beam, with the same bytes.

The launcher cuts the corpus into blocks of text (that needs the whole corpus in its order, and no
more than reading speed); the pipeline packs them, learns how many sequences each block gave, sends
every record to its shard and place, and writes the shards. The launcher then writes the manifest.
Blocks of text lie under `<work_dir>/texts` while it runs: with Dataflow `--work_dir` is on gs://.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bigbird_ja import storage
from bigbird_ja.console import log
from bigbird_ja.data import blocks as blocks_lib
from bigbird_ja.data import build, check, lock, shards
from bigbird_ja.data.blocks import Block, BlockStats, StoredBlock
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.settings import DataSettings
from bigbird_ja.errors import BadInput
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text import words

_ROWS_AT_ONCE = 256  # rows of a block that travel together


def make_data(request: build.Request, options: Sequence[str]) -> tuple[Manifest, bool]:
    """`build.make_data` on Beam.

    Args:
        request: as for `build.make_data`; its `num_workers` is not looked at.
        options: of the pipeline, such as `--runner=DataflowRunner`; DirectRunner by default.

    Raises:
        BadInput: Beam is not installed, or what `build.make_data` refuses.
    """
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise BadInput("--runner=beam needs Beam: `pip install 'bigbird-ja[beam]'`") from error
    storage.make_directory(request.output_dir)
    with lock.exclusive(request.output_dir):
        if request.overwrite:
            build.clear(request.output_dir)
        else:
            found = build.finished(request.output_dir, request.settings)
            if found:
                return found, True
        work = request.work_dir or storage.join(request.output_dir, build.WORK_NAME)
        try:
            return _run(request, options, work), False
        finally:
            _remove_tree(work)


def _run(request: build.Request, options: Sequence[str], work: str) -> Manifest:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    settings = request.settings
    names = _write_texts(request, work)
    storage.write_bytes(storage.join(work, "tokenizer.model"), request.tokenizer.model_bytes)
    stats_dir, notes_dir = storage.join(work, "stats"), storage.join(work, "notes")
    for directory in (stats_dir, notes_dir):
        storage.make_directory(directory)
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        packed = (
            pipeline
            | beam.Create(names)
            | beam.Reshuffle()
            | "Pack" >> beam.FlatMap(_pack, settings, work, stats_dir)
        )
        counts = packed | "Count" >> beam.Map(_count, settings) | beam.CombinePerKey(sum)
        side = beam.pvalue.AsDict(counts)
        addressed = packed | "Address" >> beam.FlatMap(_address, settings, names, side)
        grouped = addressed | beam.GroupByKey()
        targets = (request.output_dir, notes_dir)
        _ = grouped | "Write" >> beam.Map(_write, settings, names, targets, side)
    plans = _plans(names, settings, stats_dir)
    made = []
    for plan in plans:
        notes = [storage.join(notes_dir, f"{plan.name(k)}.json") for k in range(plan.num_shards)]
        found = [build.read_note(note) for note in notes]
        made.append([note for note in found if note is not None])
    if not plans[0].num_records:
        raise BadInput("the corpus has no text that could be predicted: give more or other --input")
    result = build.finish(request, plans, made)
    check.fast_check(request.output_dir)
    return result


def _write_texts(request: build.Request, work: str) -> list[str]:
    """Writes each block's text as a file; returns the names, in order."""
    settings = request.settings
    texts = storage.join(work, "texts")
    storage.make_directory(texts)
    names = []
    cut = blocks_lib.cut_into_blocks(
        request.corpus.documents(), settings.seq_length, settings.eval_fraction, settings.seed
    )
    for block in cut:
        text = json.dumps([block.split, block.number, block.texts], ensure_ascii=False)
        # Lone surrogates travel as they are: the worker that tokenises refuses them in words.
        storage.write_bytes(storage.join(texts, block.name), text.encode("utf-8", "surrogatepass"))
        names.append(block.name)
    log(f"{len(names)} blocks of text for the pipeline in {texts}")
    return sorted(names)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Some rows of a block."""

    name: str  # of the block
    first: int  # number of the first row in the block
    rows: bytes


@functools.lru_cache(maxsize=1)
def _tools(work: str, settings: DataSettings) -> tuple[tokenizer_lib.Tokenizer, words.WordMarker]:
    tokenizer = tokenizer_lib.load(storage.join(work, "tokenizer.model"))
    return tokenizer, words.word_marker(settings.word_boundaries, tokenizer)


def _pack(name: str, settings: DataSettings, work: str, stats_dir: str) -> Iterator[_Rows]:
    """Block name to its packed rows; its counts go to a file."""
    data = storage.read_bytes(storage.join(work, "texts", name))
    split, number, texts = json.loads(data.decode("utf-8", "surrogatepass"))
    tokenizer, marker = _tools(work, settings)
    block = Block(split, number, tuple(texts))
    rows, stats = blocks_lib.make_rows(block, tokenizer, marker, settings)
    storage.write_text(storage.join(stats_dir, name), json.dumps(vars(stats)))
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        yield _Rows(name, first, rows[first : first + _ROWS_AT_ONCE].tobytes())


def _count(part: _Rows, settings: DataSettings) -> tuple[str, int]:
    return part.name, len(part.rows) // settings.row_dtype.itemsize


def _plan_by_counts(
    names: Sequence[str], counts: dict[str, int], settings: DataSettings
) -> list[shards.SplitPlan]:
    plans = []
    for split in build.SPLITS:
        mine = [name for name in names if name.startswith(f"{split}-")]
        empty = BlockStats(0, 0, 0, 0, 0, 0, (), ())
        stored = [
            StoredBlock(n, 0, dataclasses.replace(empty, sequences=counts.get(n, 0)), 0)
            for n in mine
        ]
        plans.append(shards.plan_split(split, stored, settings))
    return plans


def _address(
    part: _Rows, settings: DataSettings, names: list[str], counts: dict[str, int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int, bytes]]]:
    """Rows to ((split, shard), (place, copy, number among the split's rows, row))."""
    index = build.SPLITS.index(part.name.split("-")[0])
    plan = _plan_by_counts(names, counts, settings)[index]
    before = sum(b.stats.sequences for b in plan.blocks if b.path < part.name)  # sorted by number
    place_of = _place_of(plan.num_records, settings.seed, plan.split)
    width = settings.row_dtype.itemsize
    for i in range(len(part.rows) // width):
        row = before + part.first + i
        data = part.rows[i * width : (i + 1) * width]
        for copy in range(plan.copies):
            place = int(place_of[copy * plan.num_rows + row])
            # The shard k with n*k//K <= place < n*(k+1)//K.
            shard = ((place + 1) * plan.num_shards - 1) // plan.num_records
            yield (index, shard), (place, copy, row, data)


@functools.lru_cache(maxsize=2)
def _place_of(num_records: int, seed: int, split: str) -> np.ndarray:
    order = shards.scatter_order(num_records, seed, split)
    places = np.empty_like(order)
    places[order] = np.arange(num_records)
    return places


def _write(
    keyed: tuple[tuple[int, int], Iterable[tuple[int, int, int, bytes]]],
    settings: DataSettings,
    names: list[str],
    targets: tuple[str, str],
    counts: dict[str, int],
) -> str:
    """A shard's records, in any order, to its file and a note."""
    (index, shard), values = keyed
    output, notes_dir = targets
    plan = _plan_by_counts(names, counts, settings)[index]
    items = sorted(values)
    name = plan.name(shard)

    def batches() -> Iterator[shards.Batch]:
        for at in range(0, len(items), shards.ROWS_AT_ONCE):
            part = items[at : at + shards.ROWS_AT_ONCE]
            rows = np.frombuffer(b"".join(i[3] for i in part), settings.row_dtype)
            yield rows, np.array([i[1] for i in part]), np.array([i[2] for i in part])

    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, name)
        made = shards.write_records(batches(), name, settings, path)
        storage.upload(path, storage.join(output, name))
    note = json.dumps(dataclasses.asdict(made))
    storage.write_text(storage.join(notes_dir, f"{name}.json"), note)
    return name


def _plans(names: Sequence[str], settings: DataSettings, stats_dir: str) -> list[shards.SplitPlan]:
    """The plans with all counts, as the manifest needs them."""
    plans = []
    for split in build.SPLITS:
        stored = []
        for name in names:
            if name.startswith(f"{split}-"):
                values = json.loads(storage.read_text(storage.join(stats_dir, name)))
                for key in ("document_tokens", "documents_per_sequence"):
                    values[key] = tuple(values[key])
                stored.append(StoredBlock(name, 0, BlockStats(**values), 0))
        plans.append(shards.plan_split(split, stored, settings))
    return plans


def _remove_tree(work: str) -> None:
    storage.delete_many(storage.join(work, name) for name in storage.list_tree(work))
    if not storage.is_remote(work):
        for directory, _, _ in os.walk(work, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
