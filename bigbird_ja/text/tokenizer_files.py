"""Read and write PREFIX.model, PREFIX.vocab and PREFIX.json, a tokenizer of `tokenize`.

PREFIX.json is the record: settings, the corpus's fingerprint, statistics, and the model's SHA-256.
The mark of the folder (`storage.ownership`) proves which of the three are ours to replace.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bigbird_ja import storage
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import TokenizeConfig
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.lease import Lease, held
from bigbird_ja.storage.ownership import FILES, Owned
from bigbird_ja.text import model_proto
from bigbird_ja.text.tokenizer import SentencePieceTokenizer, Tokenizer

_FLAG = "--output_prefix"


@dataclass(frozen=True)
class ModelRecord:
    """PREFIX.json."""

    settings: dict[str, int | float | str]
    corpus_fingerprint: decode.Sha256
    vocab_size: decode.Count
    special_ids: dict[str, int]
    normalization: str
    lines: decode.Count  # trained on
    model_sha256: decode.Sha256
    sentencepiece: str  # version
    characters_per_token: decode.Amount
    unknown_rate: decode.Amount
    longest_piece: str
    seconds: decode.Amount
    format_version: str


class ModelFiles:
    """The three files of a prefix, on disk or gs://."""

    def __init__(self, prefix: str) -> None:
        """Name the files; nothing is read."""
        self.prefix = prefix
        self.model = f"{prefix}.model"  # SentencePiece's
        self.vocab = f"{prefix}.vocab"  # its pieces and scores, as text
        self.record = f"{prefix}.json"

    def read_record(self) -> ModelRecord | None:
        """Read the record; None where none of ours is."""
        if not storage.exists(self.record):
            return None
        try:
            data = storage.read_bytes(self.record)
            return decode.decode_versioned(data, ModelRecord, self.record, "train it again")
        except BadInput:
            return None

    def check(self, replaces: bool) -> None:
        """Refuses places that cannot be written to, and files of another make; changes nothing.

        Args:
            replaces: whether what is there will be replaced, and so has to be ours.

        Raises:
            BadInput: at one of the three is a file that `tokenize` did not make or that was
                changed, a link, a folder or something special, or nothing can be written there.
        """
        for path in (self.record, self.model, self.vocab):
            outputs.check_output_file(path, _FLAG, replaces)

    def finished(
        self, settings: TokenizeConfig, corpus_fingerprint: str, overwrite: bool
    ) -> ModelRecord | None:
        """Return the record of a whole model of these settings; None where one is to be trained.

        Raises:
            BadInput: there is one of other settings, which is not to be overwritten.
        """
        there = self.read_record()
        if there is None or overwrite:
            return None
        differing = [
            f"{key} was {there.settings.get(key)}, is {value}"
            for key, value in structs.asdict(settings).items()
            if there.settings.get(key) != value
        ]
        if there.corpus_fingerprint != corpus_fingerprint:
            differing.append("the corpus is another one")
        if differing:
            raise BadInput(
                f"{self.record} exists already, with other settings ({'; '.join(differing)}):"
                f" choose another {_FLAG}, or replace it with --overwrite"
            )
        if not (storage.exists(self.vocab) and storage.exists(self.model)):
            return None
        sha256 = hashlib.sha256(storage.read_bytes(self.model)).hexdigest()
        return there if sha256 == there.model_sha256 else None

    def write(self, tokenizer: SentencePieceTokenizer, record: Mapping[str, Any]) -> ModelRecord:
        """Writes all three; `record` is a `ModelRecord` but for what the model says of itself."""
        made = ModelRecord(
            format_version=decode.FORMAT_VERSION,
            **record,
            vocab_size=tokenizer.vocab_size,
            special_ids=tokenizer.special_ids,
            normalization=model_proto.settings(tokenizer.model_bytes).normalization,
            model_sha256=tokenizer.sha256,
        )
        scores = [piece.score for piece in model_proto.pieces(tokenizer.model_bytes)]
        rows = "".join(f"{p}\t{s:g}\n" for p, s in zip(tokenizer.pieces, scores, strict=True))
        text = json.dumps(dataclasses.asdict(made), ensure_ascii=False, indent=2) + "\n"
        owned = Owned.create(self._folder, FILES)
        for path, content in (
            (self.record, text.encode()),
            (self.vocab, rows.encode()),
            (self.model, tokenizer.model_bytes),
        ):
            owned.write(storage.base_name(path), content)
        return made

    def check_model(self, tokenizer: Tokenizer) -> None:
        """Refuses a model other than the one that its record, if there is one, describes.

        A flipped bit seldom makes a model unreadable: it makes another tokenizer.
        """
        there = self.read_record()
        if there is not None and there.model_sha256 != tokenizer.sha256:
            raise BadInput(
                f"{self.model}: not the model that {self.record} describes: restore it from a copy,"
                f" or remove {self.record} where you have put another model there"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[Lease]:
        """Hold the prefix: one `tokenize` at a time; see `lease.held`.

        Raises:
            BadInput: another process is at work on it.
        """
        busy = (
            f"{self.prefix}: {{owner}} is training a tokenizer there: wait for it to end, or choose"
            f" another {_FLAG}"
        )
        lock = storage.join(self._folder, f".{storage.base_name(self.prefix)}.tokenize.lock")
        with outputs.new_folder(self._folder), held(Lease(lock, busy, log)) as lease:
            yield lease

    @property
    def _folder(self) -> str:
        return storage.directory_of(self.prefix)
