"""Blocks of packed sequences: the first half of `make-data`.

A block is a group of documents of one split, with about a million characters (more for long
sequences). All documents of a block come from one corpus of the mixture, and are repeated equally
often per epoch.

Blocks depend only on the corpus and the settings. So the result is the same for any number of
workers, and a rerun keeps the blocks that are already written. Documents of different blocks never
share a sequence. So a worker needs memory for one block only, but each block may leave some
positions empty.
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
from bigbird_ja.text.markers import remove_markers
from bigbird_ja.text.sentences import find_sentence_boundaries
from bigbird_ja.text.tokenizer import Tokenizer

_BLOCK_CHARACTERS = 1 << 20
# Minimum size of a block, in characters per position of a sequence.
_CHARACTERS_PER_POSITION = 256
# Limits of the search for characters without a token: documents of a block, characters of a
# document, characters in the result. They are low, since a warning needs only some examples.
_SEARCHED_DOCUMENTS, _SEARCHED_CHARACTERS, _SHOWN_UNKNOWN = 20, 100_000, 20


@dataclass(frozen=True)
class Block:
    """Documents of one split that are packed together.

    Attributes:
        split: "train" or "eval".
        number: number of the block in its split, from 0.
        texts: texts of the documents.
        corpus: index of the corpus in the mixture.
        times: repetitions of the documents per epoch.
    """

    split: str
    number: int
    texts: tuple[str, ...]
    corpus: int = 0
    times: int = 1

    @property
    def name(self) -> str:
        """Name of the block's file."""
        return f"{self.split}-{self.number:06d}.block"


@dataclass(frozen=True)
class BlockStats:
    """Counts of one block, without repetitions. The manifest contains sums over all blocks.

    Attributes:
        predictions: number of positions to predict, computed from the masking rate.
        left_out: number of sequences that were left out, as they contain no token to predict.
        document_tokens: histogram of documents by the logarithm of their length.
        documents_per_sequence: histogram of sequences by their number of fragments.
        times: repetitions of the documents per epoch.
        unknown: number of unknown tokens.
        unknown_characters: counts of characters that no token covers, in a part of the text.
    """

    documents: Count
    tokens: Count
    sequences: Count
    used_positions: Count
    predictions: Count
    left_out: Count
    document_tokens: tuple[Count, ...]
    documents_per_sequence: tuple[Count, ...]
    times: Count = 1
    unknown: Count = 0
    unknown_characters: dict[str, Count] = field(default_factory=dict)


def cut_into_blocks(
    corpora: Iterable[tuple[Iterable[str], float]], seq_length: int, eval_fraction: float, seed: int
) -> Iterator[Block]:
    """Assign the documents of each corpus to the splits, and cut each split into blocks.

    With a weight of 2.25, an epoch contains each train document twice, and a quarter of them once
    more. An eval document is contained once, whatever the weight.
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
    """Yield (split, repetitions per epoch, texts) of each block.

    A block ends as soon as its documents have at least `limit` characters together.
    """
    whole, fraction = divmod(_to_fraction(weight), 1)
    # Each pair (split, repetitions per epoch) has its own blocks. When the corpus ends, the pairs'
    # last blocks, which are below the limit, are yielded in this order.
    keys = (("train", int(whole)), ("train", int(whole) + 1), ("eval", 1))
    pending: dict[tuple[str, int], list[str]] = {key: [] for key in keys}
    sizes = dict.fromkeys(keys, 0)
    # One of the first two documents is held out, so that even a corpus of two documents has both
    # splits.
    are_held_out = _draw(_to_fraction(eval_fraction), seed, Purpose.HELD_OUT, first_of=2)
    are_repeated = _draw(fraction, seed, Purpose.MIXTURE)
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


def _to_fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(1_000_000)


def _draw(share: Fraction, seed: int, purpose: int, first_of: int | None = None) -> Iterator[bool]:
    """Yield an endless series of booleans: whether item 0, 1, ... is drawn.

    The items form runs of 1 / `share` items. One random item of each run is drawn.

    Args:
        share: fraction of the items to draw, below 1.
        seed: seed of the draws.
        purpose: purpose of the draws, a `hashing.Purpose`.
        first_of: limit for the first run: one of its first `first_of` items is drawn. None for no
            limit.
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


# Arguments of `start_packer`, stored in each worker process.
_packer: dict[str, Any] = {}


def start_packer(
    tokenizer: Tokenizer, spec: DataSpec, path_of: Callable[[str], str] | None = None
) -> None:
    """Prepare a worker process for `pack_to_bytes` and `pack_block`.

    Args:
        tokenizer: tokenizer of the data set.
        spec: spec of the data set.
        path_of: function that returns the path of a block's file by its name. Only `pack_block`
            needs it.
    """
    marker = words.make_word_marker(spec.word_boundaries, tokenizer)
    _packer.update(tokenizer=tokenizer, marker=marker, spec=spec, path_of=path_of)


def pack_to_bytes(block: Block) -> bytes:
    """Pack one block and return the content of its file."""
    spec = _packer["spec"]
    return _encode_file(*make_rows(block, _packer["tokenizer"], _packer["marker"], spec))


def pack_block(block: Block) -> int:
    """Pack a block and write its file, unless the file exists.

    Returns:
        The size of the block's text, in bytes.
    """
    path = _packer["path_of"](block.name)
    if read_block(path, _packer["spec"].row_dtype.itemsize, verify=True) is None:
        storage.write_bytes(path, pack_to_bytes(block))
    return count_text_bytes(block)


def count_text_bytes(block: Block) -> int:
    """Count the bytes of a block's text."""
    return sum(len(text.encode()) for text in block.texts)


def make_rows(
    block: Block, tokenizer: Tokenizer, marker: words.WordMarker, spec: DataSpec
) -> tuple[npt.NDArray[Any], BlockStats]:
    """Tokenize and pack a block.

    Returns:
        The packed sequences as rows of `spec.row_dtype`, and the counts of the block.

    Raises:
        BadInput: The text contains a lone surrogate, or the tokenizer encodes text as [PAD], [CLS],
            [SEP] or [MASK].
    """
    if spec.strip_markers:
        block = dataclasses.replace(block, texts=tuple(map(remove_markers, block.texts)))
    ids = tokenizer.encode_arrays(block.texts)
    flat = np.concatenate(ids) if ids else np.zeros(0, np.int32)
    _check_no_control(flat, tokenizer)
    starts = marker(block.texts, ids)
    lengths = [len(x) for x in ids]
    if spec.nsp:
        cuts = [
            _find_sentence_starts(t, x, tokenizer) for t, x in zip(block.texts, ids, strict=True)
        ]
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
    ordinary = masking.is_ordinary(tokens, spec.make_rule()).sum(1)
    kept = ordinary > 0
    stats = _compute_stats(lengths, sequences, tokens[kept], ordinary[kept], kept, spec)
    unknown = _count_unknown_characters(block.texts, ids, tokenizer)
    return rows[kept], dataclasses.replace(
        stats, times=block.times, unknown_characters=dict(unknown.most_common(_SHOWN_UNKNOWN))
    )


def _count_unknown_characters(
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


def _compute_stats(
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
    wanted = masking.count_predictions(ordinary, spec.make_rule())
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


def _find_sentence_starts(text: str, ids: npt.NDArray[np.int32], tokenizer: Tokenizer) -> list[int]:
    """Return the indices (above 0) of the tokens that begin a sentence."""
    if not len(ids):
        return []
    surface, offsets = tokenizer.spell_with_offsets(text, ids)
    ends = np.array([0, *find_sentence_boundaries(surface)])
    starts = words.mark_starts(ends, offsets)
    return [int(i) for i in np.flatnonzero(starts) if i]


@dataclass(frozen=True)
class _Header:
    """Header of a block's file.

    The file contains the header's length, the header as JSON, and the rows.
    """

    stats: BlockStats
    crc32c: Count


def _encode_file(rows: npt.NDArray[Any], stats: BlockStats) -> bytes:
    """Return the content of a block's file."""
    data = rows.tobytes()
    header = json.dumps({"stats": vars(stats), "crc32c": google_crc32c.value(data)}).encode()
    return struct.pack("<I", len(header)) + header + data


@dataclass(frozen=True)
class StoredBlock:
    """Block on disk.

    Attributes:
        path: path of the file, relative to the folder of blocks.
        offset: offset of the rows in the file, in bytes.
        stats: counts of the block.
    """

    path: str
    offset: int
    stats: BlockStats

    def read_rows(
        self, folder: str, numbers: npt.NDArray[Any], kind: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """Read the rows with the indices `numbers`, in that order."""
        result = np.empty(len(numbers), kind)
        with open(os.path.join(folder, self.path), "rb", buffering=0) as file:
            for i, number in enumerate(numbers):
                file.seek(self.offset + int(number) * kind.itemsize)
                result[i] = np.frombuffer(file.read(kind.itemsize), kind)[0]
        return result


def read_block(path: str, row_bytes: int, verify: bool = False) -> StoredBlock | None:
    """Read the header of a written block, or return None if the file is missing or damaged.

    Args:
        path: path of the file.
        row_bytes: size of a row in bytes.
        verify: whether to compare the rows with their checksum. A crash of the machine may damage
            the rows. A killed process leaves no partial file, since a file is renamed when it is
            complete.
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
