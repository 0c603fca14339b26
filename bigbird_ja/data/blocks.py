"""Blocks of packed sequences: the first half of `make-data`.

A block is a run of documents of one split, about a million characters (more for long sequences).
Corpora that are mixed by weights have blocks of their own, and so have documents with more
repetitions per epoch: all sequences of a block have the same number of repetitions.

Blocks depend only on the corpus and the settings, so the result is the same for any number of
workers, and a block that was written needn't be repeated. Packing happens inside a block, so
its size bounds memory, and each block ends in one sequence that is not full.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from bigbird_ja import storage
from bigbird_ja.data import masking, packing, pair_packing
from bigbird_ja.data.hashing import Purpose, fold, seed_key
from bigbird_ja.data.manifest import LENGTH_BINS, MAX_FRAGMENTS, DataSpec
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.storage.decode import Count
from bigbird_ja.text import words
from bigbird_ja.text.markers import without_markers
from bigbird_ja.text.sentences import sentence_boundaries
from bigbird_ja.text.tokenizer import Tokenizer

_BLOCK_CHARACTERS = 1 << 20
# Minimum for each position of a sequence.
_CHARACTERS_PER_POSITION = 256
# Unknown characters are examples for a warning: a part of a block's text is enough for them.
_SEARCHED_DOCUMENTS, _SEARCHED_CHARACTERS, _SHOWN_UNKNOWN = 20, 100_000, 20


@dataclass(frozen=True)
class Block:
    """Run of documents of one split, in which `number` counts from 0."""

    split: str
    number: int
    texts: tuple[str, ...]
    corpus: int = 0  # index among the corpora that are mixed
    times: int = 1  # repetitions per epoch

    @property
    def name(self) -> str:
        """File name in the work directory."""
        return f"{self.split}-{self.number:06d}.block"


@dataclass(frozen=True)
class BlockStats:
    """Counts of a block, which the manifest sums. Tuples are histograms."""

    documents: Count
    tokens: Count
    sequences: Count
    used_positions: Count
    predictions: Count  # targeted number in one epoch
    left_out: Count  # sequences without any token to predict
    document_tokens: tuple[Count, ...]  # documents by the logarithm of their length
    documents_per_sequence: tuple[Count, ...]  # sequences by number of fragments
    times: Count = 1  # repetitions per epoch
    unknown: Count = 0  # unknown tokens
    # Characters without a token of their own, in documents with unknown tokens; how often.
    unknown_characters: dict[str, Count] = field(default_factory=dict)


def cut_into_blocks(
    corpora: Iterable[tuple[Iterable[str], float]], seq_length: int, eval_fraction: float, seed: int
) -> Iterator[Block]:
    """Assign the documents of each corpus to the splits, and cut each split into blocks.

    An epoch repeats each document as often as its corpus's weight, rounded down, and a share of
    them, the fraction, once more. Held-out documents are taken once; they don't depend on the
    weight.
    """
    numbers = {"train": 0, "eval": 0}
    limit = max(_BLOCK_CHARACTERS, _CHARACTERS_PER_POSITION * seq_length)
    for corpus, (documents, weight) in enumerate(corpora):
        for split, times, texts in _cut_corpus(documents, weight, limit, eval_fraction, seed):
            yield Block(split, numbers[split], tuple(texts), corpus, times)
            numbers[split] += 1


def _cut_corpus(
    texts: Iterable[str], weight: float, limit: int, eval_fraction: float, seed: int
) -> Iterator[tuple[str, int, list[str]]]:
    """Yield split, repetitions per epoch and texts of each block of about `limit` characters."""
    whole, fraction = divmod(_fraction(weight), 1)
    # The last blocks, which are not full, come in this order.
    keys = (("train", int(whole)), ("train", int(whole) + 1), ("eval", 1))
    pending: dict[tuple[str, int], list[str]] = {key: [] for key in keys}
    sizes = dict.fromkeys(keys, 0)
    # Of the first two documents one is held out, so that a corpus of two has both splits.
    are_held_out = _draws(_fraction(eval_fraction), seed, Purpose.HELD_OUT, first_of=2)
    are_repeated = _draws(fraction, seed, Purpose.MIXTURE)
    for text, is_held_out in zip(texts, are_held_out, strict=False):
        key = ("eval", 1) if is_held_out else ("train", int(whole) + next(are_repeated))
        if not key[1]:
            continue
        pending[key].append(text)
        sizes[key] += len(text)
        if sizes[key] >= limit:
            yield (*key, pending[key])
            pending[key], sizes[key] = [], 0
    for key in keys:
        if pending[key]:
            yield (*key, pending[key])


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1_000_000)


def _draws(share: Fraction, seed: int, purpose: int, first_of: int | None = None) -> Iterator[bool]:
    """Yield for each item whether it is drawn: one of every run of 1 / share items.

    Args:
        share: fraction of the items to draw, below 1.
        seed: seed of the draws.
        purpose: purpose of the draws.
        first_of: number of candidates in the first run; None: all.
    """
    if not share:
        yield from itertools.repeat(False)
    key, start = seed_key(seed, purpose), 0
    for run in itertools.count():
        end = -(-(run + 1) * share.denominator // share.numerator)
        choices = end - start
        if run == 0 and first_of is not None:
            choices = min(first_of, choices)
        drawn = start + int(fold(key, run)) % choices
        yield from (index == drawn for index in range(start, end))
        start = end


# State of a worker process.
_packer: dict[str, Any] = {}


def start_packer(
    tokenizer: Tokenizer, spec: DataSpec, path_of: Callable[[str], str] | None = None
) -> None:
    """Prepare a worker for `packed`, or with `path_of` (name to path) for `pack_block`."""
    marker = words.word_marker(spec.word_boundaries, tokenizer)
    _packer.update(tokenizer=tokenizer, marker=marker, spec=spec, path_of=path_of)


def packed(block: Block) -> bytes:
    """Pack one block and return the content of its file."""
    spec = _packer["spec"]
    return _file_of(*make_rows(block, _packer["tokenizer"], _packer["marker"], spec))


def pack_block(block: Block) -> int:
    """Pack and write one block unless it exists, and return the bytes of its text."""
    path = _packer["path_of"](block.name)
    if read_block(path, _packer["spec"].row_dtype.itemsize, verify=True) is None:
        storage.write_bytes(path, packed(block))
    return text_bytes(block)


def text_bytes(block: Block) -> int:
    """Count the bytes of a block's text."""
    return sum(len(text.encode()) for text in block.texts)


def make_rows(
    block: Block, tokenizer: Tokenizer, marker: words.WordMarker, spec: DataSpec
) -> tuple[npt.NDArray[Any], BlockStats]:
    """Tokenize and pack a block, and return rows of `spec.row_dtype` and the counts.

    Raises:
        BadInput: Text that no tokenizer can read, or a tokenizer that produces [SEP] from text.
    """
    if spec.strip_markers:
        block = dataclasses.replace(block, texts=tuple(map(without_markers, block.texts)))
    ids = tokenizer.encode_arrays(block.texts)
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    _check_no_control(flat, tokenizer)
    starts = marker(block.texts, ids)
    lengths = [len(x) for x in ids]
    if spec.nsp:
        cuts = [_sentence_starts(t, x, tokenizer) for t, x in zip(block.texts, ids, strict=True)]
        key = seed_key(spec.seed, Purpose.NEXT_SENTENCE)
        key = int(fold(fold(key, block.split == "eval"), block.number))
        pairs = pair_packing.pack_pairs(lengths, cuts, spec.seq_length, key)
        sequences = [[*pair.a, *pair.b] for pair in pairs]
        extra = [(pair.segment_b, pair.is_random) for pair in pairs]
    else:
        sequences = packing.pack(lengths, spec.seq_length)
        extra = [(spec.seq_length, False)] * len(sequences)
    tokens, marks = packing.fill(sequences, ids, starts, spec.seq_length, spec.special_ids)
    rows = np.zeros(len(sequences), spec.row_dtype)
    rows["tokens"] = tokens
    rows["word_starts"] = np.packbits(marks, axis=1)
    if extra:
        rows["segment_b"], rows["label"] = np.array(extra).T
    ordinary = masking.is_ordinary(tokens, spec.rule()).sum(1)
    kept = ordinary > 0
    stats = _stats(lengths, sequences, tokens[kept], ordinary[kept], kept, spec)
    unknown = _unknown_characters(block.texts, ids, tokenizer)
    return rows[kept], dataclasses.replace(
        stats, times=block.times, unknown_characters=dict(unknown.most_common(_SHOWN_UNKNOWN))
    )


def _unknown_characters(
    texts: Sequence[str], ids: Sequence[npt.NDArray[np.int32]], tokenizer: Tokenizer
) -> Counter[str]:
    """Count the characters without a token in the first documents that contain unknown tokens."""
    found: Counter[str] = Counter()
    unk = tokenizer.special.unk
    if unk is None:
        return found
    having = (text for text, x in zip(texts, ids, strict=True) if (x == unk).any())
    for text in itertools.islice(having, _SEARCHED_DOCUMENTS):
        characters = sorted(set(text[:_SEARCHED_CHARACTERS]))
        alone = tokenizer.encode_arrays(characters)
        for character, x in zip(characters, alone, strict=True):
            if (x == unk).any():
                found[character] += text.count(character)
    return found


def _stats(
    lengths: Sequence[int],
    sequences: packing.Sequences,
    tokens: npt.NDArray[np.int32],
    ordinary: npt.NDArray[Any],
    kept: npt.NDArray[np.bool_],
    spec: DataSpec,
) -> BlockStats:
    whole = [sequence for sequence, keep in zip(sequences, kept, strict=True) if keep]
    fragments = np.minimum([len(sequence) for sequence in whole], MAX_FRAGMENTS - 1).astype(int)
    bins = [min(LENGTH_BINS - 1, length.bit_length() - 1) for length in lengths if length]
    wanted = masking.num_predictions(ordinary, spec.rule())
    return BlockStats(
        documents=len(lengths),
        tokens=sum(fragment.end - fragment.start for sequence in whole for fragment in sequence),
        sequences=len(tokens),
        used_positions=int((tokens != spec.special_ids["pad"]).sum()),
        predictions=int(wanted.sum()),
        unknown=int((tokens == spec.special_ids.get("unk", -1)).sum()),
        left_out=int((~kept).sum()),
        document_tokens=tuple(np.bincount(bins, minlength=LENGTH_BINS).tolist()),
        documents_per_sequence=tuple(np.bincount(fragments, minlength=MAX_FRAGMENTS).tolist()),
    )


def _check_no_control(flat: npt.NDArray[np.int32], tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    for control in (special.pad, special.cls, special.sep, special.mask):
        if (flat == control).any():
            raise BadInput(
                f"{tokenizer.source}: encoding text produces the special token"
                f" {tokenizer.tokens[control]}. Train a tokenizer with `bigbird-ja tokenize`"
            )


def _sentence_starts(text: str, ids: npt.NDArray[np.int32], tokenizer: Tokenizer) -> list[int]:
    """Return the indices (above 0) of the tokens that begin a sentence."""
    if not len(ids):
        return []
    surface, offsets = tokenizer.surface_and_offsets(text, ids)
    ends = np.array([0, *sentence_boundaries(surface)])
    starts = words.starts_at(ends, offsets)
    return [int(i) for i in np.flatnonzero(starts) if i]


@dataclass(frozen=True)
class _Header:
    """Header of a block's file: JSON after its length and before the rows."""

    stats: BlockStats
    crc32c: Count


def _file_of(rows: npt.NDArray[Any], stats: BlockStats) -> bytes:
    """Return the content of a block's file."""
    data = rows.tobytes()
    header = json.dumps({"stats": vars(stats), "crc32c": google_crc32c.value(data)}).encode()
    return struct.pack("<I", len(header)) + header + data


@dataclass(frozen=True)
class StoredBlock:
    """Block on disk: name of its file, offset of its rows in bytes, and counts."""

    path: str  # relative to the folder of blocks
    offset: int
    stats: BlockStats

    def rows(self, folder: str, numbers: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Read the rows with these numbers, ascending, one by one."""
        result = np.empty(len(numbers), kind)
        with open(os.path.join(folder, self.path), "rb", buffering=0) as file:
            for i, number in enumerate(numbers):
                file.seek(self.offset + int(number) * kind.itemsize)
                result[i] = np.frombuffer(file.read(kind.itemsize), kind)[0]
        return result


def read_block(path: str, row_bytes: int, verify: bool = False) -> StoredBlock | None:
    """Open a block that an earlier run may have written, None if it is missing or damaged.

    Args:
        path: path of the file.
        row_bytes: size of a row in bytes.
        verify: whether to compare the rows with their checksum: necessary after a crash of the
            machine (not after a kill, since the file is renamed when it is complete).
    """
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<I", file.read(4))
            header = decode.decode_json(file.read(length), _Header, path)
            size = file.seek(0, 2) - 4 - length
            file.seek(4 + length)
            is_whole = size == header.stats.sequences * row_bytes and (
                not verify or google_crc32c.value(file.read()) == header.crc32c
            )
    except (OSError, BadInput, struct.error):
        return None
    return StoredBlock(os.path.basename(path), 4 + length, header.stats) if is_whole else None
