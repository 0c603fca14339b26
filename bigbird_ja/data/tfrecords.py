"""Write records (`tf.train.Example` in TFRecord files) and read such files, without TensorFlow.

A dynamic record contains `tokens` (bytes: little-endian uint16, or int32 for vocabularies above
65,536) and `word_starts` (bytes: one bit per position, first position in the highest bit). With NSP
it also contains `segment_b` (int64: position where segment B starts) and `next_sentence_labels`.

A static record contains the classic features of BERT's and BigBird's pretraining data as int64 and
float lists of fixed length, `document_ids`, and optionally `input_mask`.

NumPy is used instead of TensorFlow, because NumPy serializes a batch at once. TensorFlow takes
seconds to import, and serializes one integer at a time. `parsing` parses batches with TensorFlow.
Formats: protobuf's encoding guide; TFRecord in tensorflow/core/lib/io/record_writer.h.
"""

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from bigbird_ja.storage.paths import encode_crc32c

# Tags of the fields of the protobuf message `Feature`.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 0x0A, 0x12, 0x1A
# Offset of TFRecord's masked CRC32C.
_MASK_DELTA = 0xA282EAD8


class Summed:
    """File wrapper that counts bytes and updates checksums during reads or writes."""

    def __init__(self, file: BinaryIO, progress: Callable[[int], None] | None = None) -> None:
        """Wrap `file`.

        `progress` is a callback that gets the number of bytes of each read or write.
        """
        self._file, self._progress = file, progress
        self._sha256, self._crc, self._size = hashlib.sha256(), 0, 0

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes, at most 1 GiB in one call, and update the checksums."""
        data = self._file.read(min(size, 1 << 30))
        self._count(data)
        return data

    def write(self, data: bytes) -> None:
        """Write `data` and update the checksums."""
        self._file.write(data)
        self._count(data)

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._size += len(data)
        if self._progress:
            self._progress(len(data))

    def compute_sums(self) -> dict[str, Any]:
        """Return `bytes`, `sha256` (hex) and `crc32c` (base64, as Cloud Storage states it)."""
        crc = encode_crc32c(self._crc)
        return {"bytes": self._size, "sha256": self._sha256.hexdigest(), "crc32c": crc}


class DamagedRecord(Exception):
    """Error for a truncated or damaged TFRecord file. The message names the record."""


def choose_token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of a token in a dynamic record."""
    return np.dtype("<u2" if vocab_size <= 65536 else "<i4")


def encode_dynamic(
    tokens: npt.NDArray[Any],
    packed_starts: npt.NDArray[np.uint8],
    numbers: Mapping[str, npt.NDArray[Any]] | None = None,
) -> list[bytes]:
    """Serialize dynamic records.

    Args:
        tokens: token ids [records, seq_length], of the dtype that `choose_token_dtype` returns.
        packed_starts: uint8 [records, ceil(seq_length / 8)], word starts, one bit per position.
        numbers: features with one number per record, by name: non-negative int [records].
    """
    result = []
    for row in range(len(tokens)):
        features = [
            _encode_feature(b"tokens", _BYTES_LIST, tokens[row].tobytes()),
            _encode_feature(b"word_starts", _BYTES_LIST, packed_starts[row].tobytes()),
        ]
        for name, values in (numbers or {}).items():
            features.append(
                _encode_feature(name.encode(), _INT64_LIST, _encode_varint(int(values[row])))
            )
        result.append(_encode_field(0x0A, b"".join(features)))
    return result


def encode_static(features: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    """Serialize static records.

    Args:
        features: arrays [records, length] by name, of float32 or of integers from 0 to 2**28 - 1.
    """
    columns = []
    for name, values in features.items():
        if np.issubdtype(values.dtype, np.floating):
            rows = [row.tobytes() for row in values.astype("<f4")]
            columns.append([_encode_feature(name.encode(), _FLOAT_LIST, row) for row in rows])
        else:
            columns.append(
                [
                    _encode_feature(name.encode(), _INT64_LIST, row)
                    for row in encode_varint_rows(values)
                ]
            )
    return [_encode_field(0x0A, b"".join(entries)) for entries in zip(*columns, strict=True)]


def encode_varint_rows(values: npt.NDArray[Any]) -> list[bytes]:
    """Encode each row's integers (0 to 2**28 - 1) as protobuf varints, packed."""
    flat = np.ascontiguousarray(values, dtype=np.uint32).ravel()
    sizes = np.ones(len(flat), np.int64)
    most = int(flat.max(initial=0))
    limits = [limit for limit in (1 << 7, 1 << 14, 1 << 21) if most >= limit]
    if not limits:
        return [row.tobytes() for row in values.astype(np.uint8)]
    for limit in limits:
        sizes += flat >= limit
    ends = np.cumsum(sizes)
    packed = np.empty(int(ends[-1]), np.uint8)
    at = ends - sizes
    packed[at] = flat & 0x7F | np.where(sizes > 1, 0x80, 0)
    for i in range(1, len(limits) + 1):
        longer = np.flatnonzero(sizes > i)
        more = np.where(sizes[longer] > i + 1, 0x80, 0)
        packed[at[longer] + i] = flat[longer] >> (7 * i) & 0x7F | more
    bounds = [0, *ends.reshape(len(values), -1)[:, -1].tolist()]
    data = packed.tobytes()
    return [data[first:last] for first, last in itertools.pairwise(bounds)]


def frame_records(records: Sequence[bytes]) -> bytes:
    """Return the content of a TFRecord file: length, CRC, data and CRC of each record."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        crc = struct.pack("<I", compute_masked_crc(record))
        parts += [length, struct.pack("<I", compute_masked_crc(length)), record, crc]
    return b"".join(parts)


def read_frames(stream: BinaryIO | Summed) -> Iterator[bytes]:
    """Yield the records of a TFRecord file after verification, one in memory at a time.

    Raises:
        DamagedRecord: The file is truncated, or a checksum does not match.
    """
    number = 0
    while header := stream.read(12):
        if len(header) < 12:
            raise DamagedRecord(f"truncated in the header of record {number}")
        length, crc = struct.unpack("<QI", header)
        if compute_masked_crc(header[:8]) != crc:
            raise DamagedRecord(f"the length of record {number} does not match its checksum")
        record = stream.read(length)
        tail = stream.read(4)
        if len(record) < length or len(tail) < 4:
            raise DamagedRecord(f"truncated in record {number}")
        if compute_masked_crc(record) != struct.unpack("<I", tail)[0]:
            raise DamagedRecord(f"record {number} does not match its checksum")
        yield record
        number += 1


def compute_masked_crc(data: bytes) -> int:
    """Compute TFRecord's masked CRC32C.

    The checksum is rotated and offset, as TFRecord's format requires.
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _encode_feature(name: bytes, kind: int, payload: bytes) -> bytes:
    feature = _encode_field(kind, _encode_field(0x0A, payload))
    return _encode_field(0x0A, _encode_field(0x0A, name) + _encode_field(0x12, feature))


def _encode_field(tag: int, payload: bytes) -> bytes:
    return bytes((tag,)) + _encode_varint(len(payload)) + payload


def _encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
