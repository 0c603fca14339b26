"""Training of a SentencePiece model, stored as PREFIX.model, PREFIX.vocab and PREFIX.json.

SentencePiece trains in a child process, which can be killed at once. SentencePiece's C++ code
ignores signals, so without a child process Ctrl-C might have to wait for hours.

PREFIX.json is the record of the model: settings, the corpus's fingerprint, statistics, and the
model's SHA-256. The ownership manifest in the same folder lists the files that bigbird-ja has
written there, since only these may be replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import msgspec
import sentencepiece

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, check_is_list
from bigbird_ja.process import workers
from bigbird_ja.process.classify import classify
from bigbird_ja.process.console import Progress, log, show_waiting
from bigbird_ja.settings.resolve import ConfigSource, base_layers, given_layers, resolve_config
from bigbird_ja.settings.schema import TokenizeConfig
from bigbird_ja.settings.variants import list_used_settings
from bigbird_ja.storage import decode, outputs
from bigbird_ja.text import model_proto
from bigbird_ja.text.corpus import Corpus, open_corpus
from bigbird_ja.text.file_source import AUTO, UTF_8
from bigbird_ja.text.markers import MARKERS
from bigbird_ja.text.sentences import split_sentences
from bigbird_ja.text.tokenizer import (
    CONTROL_TOKENS,
    SPECIAL_TOKENS,
    SentencePieceTokenizer,
    Tokenizer,
)

# Approximate number of training lines that are sampled for the statistics.
_STATISTICS_LINES = 5000
_SAMPLING_SEED = 12345
# Text with at most this many different characters counts as written in an alphabet. Korean and
# Chinese text contains more.
_MAX_ALPHABET = 500
# Characters to replace by spaces, as SentencePiece skips lines that contain them.
_REFUSED = str.maketrans({"\0": " ", "\u2585": " "})
_PREFIX = "`output_prefix`"


@dataclass(frozen=True)
class TokenizerResult:
    """Path and statistics of a trained model."""

    model: str
    vocab_size: int
    characters_per_token: float
    unknown_rate: float
    longest_piece: str
    lines: int
    seconds: float


def tokenize(
    *,
    inputs: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    model_type: str | None = None,
    character_coverage: float | None = None,
    max_sentence_length: int | None = None,
    max_sentences: int | None = None,
    text_fields: Sequence[str] = (),
    encoding: str = UTF_8,
    txt_documents: str = AUTO,
    tfds_data_dir: str | None = None,
    overwrite: bool = False,
) -> TokenizerResult:
    """Train a SentencePiece model and write its files, unless they exist.

    Worker processes import the main script again, so a script must call `tokenize` below
    `if __name__ == "__main__":`.

    Args:
        inputs: paths or names of corpora. The guide lists the supported ones.
        output_prefix: path of the output files without their suffixes, on disk or gs://.
        config: preset, file or `Config`.
        overrides: settings by key.
        vocab_size: number of tokens, including special ones.
        model_type: unigram or bpe.
        character_coverage: share of the text's characters that become tokens.
        max_sentence_length: maximum length of a line, in bytes.
        max_sentences: maximum number of lines drawn from the corpus.
        text_fields: fields or columns of text. The first of them that a record contains is read.
        encoding: encoding of .jsonl, .txt, .csv and .tsv files.
        txt_documents: unit of a document in a .txt file.
        tfds_data_dir: folder of prepared TFDS data sets.
        overwrite: whether to replace an existing model. Its files are renamed to NAME.replaced-N.

    Raises:
        BadInput: The output files exist, but were made with other settings, from another text or by
            another program. Or the vocabulary size does not suit the text.
    """
    check_is_list("inputs", inputs)
    corpus = open_corpus(
        [os.fspath(each) for each in inputs], tfds_data_dir, txt_documents, text_fields, encoding
    )
    arguments = {
        "tokenize.vocab_size": vocab_size,
        "tokenize.model_type": model_type,
        "tokenize.character_coverage": character_coverage,
        "tokenize.max_sentence_length": max_sentence_length,
        "tokenize.max_sentences": max_sentences,
    }
    layers = [*base_layers(config), *given_layers(overrides, arguments)]
    settings = resolve_config(layers, list_used_settings("tokenize"))[0].tokenize
    files = ModelFiles(os.fspath(output_prefix))
    record = make_model(corpus, settings, files, overwrite)
    return TokenizerResult(
        model=files.model,
        vocab_size=record.vocab_size,
        characters_per_token=record.characters_per_token,
        unknown_rate=record.unknown_rate,
        longest_piece=record.longest_piece,
        lines=record.lines,
        seconds=record.seconds,
    )


def make_model(
    corpus: Corpus, settings: TokenizeConfig, files: ModelFiles, overwrite: bool
) -> ModelRecord:
    """Train a model and write its files, unless they exist, and return its record.

    Raises:
        BadInput: The output files exist, but were made with other settings, from another text or by
            another program. Or the vocabulary size does not suit the text.
    """
    started = time.monotonic()
    files.check(replaces=overwrite or files.read_record() is None)
    fingerprint = corpus.fingerprint
    record = None if overwrite else files.read_finished(settings, fingerprint)
    if record is not None:
        log(f"{files.model} is finished already: nothing to do")
        return record
    tokenizer, figures = train(corpus, settings)
    corpus.check_unchanged()
    return files.write(
        tokenizer,
        settings=msgspec.structs.asdict(settings),
        corpus_fingerprint=fingerprint,
        seconds=round(time.monotonic() - started, 3),
        **figures,
    )


def make_trainer_arguments(settings: TokenizeConfig) -> dict[str, Any]:
    """Return the arguments of SentencePiece's trainer.

    The special tokens have the first ids, in the order of SPECIAL_TOKENS.
    """
    pad, bos, eos, unk, *control = CONTROL_TOKENS
    return {
        "vocab_size": settings.vocab_size,
        "model_type": settings.model_type,
        "character_coverage": settings.character_coverage,
        "max_sentence_length": settings.max_sentence_length,
        "control_symbols": control,
        "user_defined_symbols": list(MARKERS),
        "minloglevel": 2,  # Only errors are logged.
        **{f"{name}_id": i for i, name in enumerate(("pad", "bos", "eos", "unk"))},
        **{"pad_piece": pad, "bos_piece": bos, "eos_piece": eos, "unk_piece": unk},
    }


def train(
    corpus: Corpus, settings: TokenizeConfig
) -> tuple[SentencePieceTokenizer, dict[str, Any]]:
    """Train a model on a corpus.

    The corpus is read twice. This function counts the lines, then a child process samples them.

    Returns:
        The tokenizer, and figures for the `ModelRecord`: the number of training lines, and
        statistics of a sample of these lines.

    Raises:
        BadInput: The vocabulary size does not suit the text.
    """
    total = 0
    with Progress(0, "lines counted") as progress:
        for _ in split_lines(corpus, settings):
            total += 1
            progress.update()
    wanted = min(total, settings.max_sentences or total)
    spawn = multiprocessing.get_context("spawn")  # A fork of a process with threads may hang.
    pool = ProcessPoolExecutor(1, spawn, workers.init_child)
    what = f"training a {settings.model_type} model of {settings.vocab_size:,} tokens"
    try:
        with show_waiting(what, seconds=60.0):
            model, sample = pool.submit(_train_in_child, corpus, settings, total, wanted).result()
    except BrokenProcessPool as error:
        most = settings.max_sentences or "all"
        advice = f"train on less text with a smaller `max_sentences` (now {most})"
        raise workers.make_pool_error(pool, "SentencePiece", advice) from error
    except RuntimeError as error:
        raise classify(error) or _convert_refusal(str(error), settings) from error
    finally:
        for child in multiprocessing.active_children():
            child.kill()
        pool.shutdown()
    tokenizer = SentencePieceTokenizer(model_proto.round_scores(model), "the trained model")
    if tokenizer.vocab_size != settings.vocab_size:
        raise _make_size_error(settings, tokenizer.vocab_size)
    if advice := _advise_coverage(settings, sample):
        log(advice)
    return tokenizer, {"lines": wanted, **_compute_statistics(tokenizer, sample)}


def _train_in_child(
    corpus: Corpus, settings: TokenizeConfig, total: int, wanted: int
) -> tuple[bytes, list[str]]:
    """Train a model in this child process, and return it with a sample of its training lines."""
    kept: list[str] = []
    draw = random.Random(_SAMPLING_SEED + 1).random

    def feed() -> Iterator[str]:
        for line in draw_sample(split_lines(corpus, settings), total, wanted):
            if draw() * wanted < _STATISTICS_LINES:
                kept.append(line)
            yield line.translate(_REFUSED)

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=feed(), model_writer=model, **make_trainer_arguments(settings)
    )
    return model.getvalue(), kept


def split_lines(corpus: Corpus, settings: TokenizeConfig) -> Iterator[str]:
    """Yield the training lines, which are the lines of all documents.

    Lines of more than `max_sentence_length` bytes are cut. Blank lines are skipped, and so are
    lines that contain only one of Wiki40b's markers, which are tokens in any case.
    """
    for text in corpus.texts():
        for line in text.split("\n"):
            if line and not line.isspace() and line not in MARKERS:
                yield from cut(line, settings.max_sentence_length)


def cut(line: str, max_bytes: int) -> Iterator[str]:
    """Cut a line into parts of up to `max_bytes` of UTF-8, if possible at ends of sentences.

    The joined parts equal the line. SentencePiece would skip a line of more than `max_bytes`.
    """
    if len(line) * 4 <= max_bytes or len(line.encode()) <= max_bytes:
        yield line
        return
    pending: list[str] = []
    size = 0
    for sentence in split_sentences(line):
        for part in _cut_characters(sentence, max_bytes):
            length = len(part.encode())
            if pending and size + length > max_bytes:
                yield "".join(pending)
                pending, size = [], 0
            pending.append(part)
            size += length
    yield "".join(pending)


def _cut_characters(text: str, max_bytes: int) -> Iterator[str]:
    if len(text.encode()) <= max_bytes:
        yield text
        return
    characters = max(1, max_bytes // 4)
    for start in range(0, len(text), characters):
        yield text[start : start + characters]


def draw_sample(items: Iterable[str], total: int, wanted: int) -> Iterator[str]:
    """Yield `wanted` random items, in their original order, out of `total` items.

    The sample is reproducible. The algorithm is selection sampling (Knuth, The Art of Computer
    Programming 2, algorithm 3.4.2 S), with one pass and constant memory. A sample of every n-th
    line would be biased, since headings and paragraphs alternate in an article.
    """
    draw = random.Random(_SAMPLING_SEED).random
    left = wanted
    for seen, item in enumerate(items):
        if draw() * (total - seen) < left:
            left -= 1
            yield item


def _advise_coverage(settings: TokenizeConfig, sample: list[str]) -> str:
    """Return advice to set `character_coverage` to 1 if the sample has few characters, else ""."""
    characters = len(set("".join(sample)))
    if settings.character_coverage == 1 or characters > _MAX_ALPHABET:
        return ""
    return (
        f"the text contains only {characters:,} different characters: with `character_coverage` 1"
        f" none of them is unknown (now {settings.character_coverage:g}, which suits thousands of"
        " characters)"
    )


def _compute_statistics(tokenizer: SentencePieceTokenizer, sample: list[str]) -> dict[str, Any]:
    """Compute statistics of the model on a sample of its training lines."""
    unknown = tokenizer.tokens.index("<unk>")
    tokens = [i for ids in tokenizer.encode_batch(sample) for i in ids]
    return {
        "characters_per_token": round(sum(map(len, sample)) / max(1, len(tokens)), 4),
        "unknown_rate": round(tokens.count(unknown) / max(1, len(tokens)), 6),
        "longest_piece": max((t for t in tokenizer.tokens if t not in SPECIAL_TOKENS), key=len),
    }


def _convert_refusal(message: str, settings: TokenizeConfig) -> BadInput:
    """Convert an error message of SentencePiece to a BadInput with advice."""
    if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return _make_size_error(settings, match[1])
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return BadInput(
            f"`vocab_size` {settings.vocab_size} is too small, as the corpus's characters and the"
            f" special tokens need {match[1]}: use {match[1]} or more, or a lower"
            " `character_coverage`"
        )
    return BadInput(
        f"SentencePiece cannot train on this corpus with `vocab_size` {settings.vocab_size}:"
        f" {' '.join(message.split())}"
    )


def _make_size_error(settings: TokenizeConfig, most: object) -> BadInput:
    return BadInput(
        f"`vocab_size` {settings.vocab_size} is too large for this corpus: use"
        f" `vocab_size` {most} or less, or give more text"
    )


@dataclass(frozen=True)
class ModelRecord:
    """Content of PREFIX.json."""

    settings: dict[str, int | float | str]
    corpus_fingerprint: decode.Sha256
    vocab_size: decode.Count
    special_ids: dict[str, int]
    normalization: str
    lines: decode.Count
    model_sha256: decode.Sha256
    sentencepiece: str
    characters_per_token: decode.Amount
    unknown_rate: decode.Amount
    longest_piece: str
    seconds: decode.Amount
    format_version: str


class ModelFiles:
    """Files of a model: PREFIX.model, PREFIX.vocab and PREFIX.json, on disk or gs://."""

    def __init__(self, prefix: str) -> None:
        """Set the paths of the files, without reading them."""
        self.prefix = prefix
        self.model = f"{prefix}.model"
        self.vocab = f"{prefix}.vocab"
        self.record = f"{prefix}.json"

    def read_record(self) -> ModelRecord | None:
        """Read PREFIX.json, or return None if it is missing or invalid."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, BadInput):
            data = storage.read_bytes(self.record)
            return decode.decode_versioned(data, ModelRecord, self.record, "train it again")
        return None

    def check(self, replaces: bool) -> None:
        """Check that the three files can be written, without changing anything.

        Args:
            replaces: whether existing files will be replaced.

        Raises:
            BadInput: A path is not writable, or is a link, a folder or a special file. Or a file
                that will be replaced was not written by bigbird-ja.
        """
        for path in (self.record, self.model, self.vocab):
            outputs.check_output_file(path, _PREFIX, replaces)

    def read_finished(
        self, settings: TokenizeConfig, corpus_fingerprint: str
    ) -> ModelRecord | None:
        """Return the record of the model, or None if the files are not a complete model.

        Raises:
            BadInput: The model was trained with other settings, or on another corpus.
        """
        stored = self.read_record()
        if stored is None:
            return None
        differing = [
            f"{key} was {stored.settings.get(key)}, is {value}"
            for key, value in msgspec.structs.asdict(settings).items()
            if stored.settings.get(key) != value
        ]
        if stored.corpus_fingerprint != corpus_fingerprint:
            differing.append("another corpus")
        if differing:
            raise BadInput(
                f"{self.record} is the record of a model with other settings"
                f" ({'; '.join(differing)}): choose another {_PREFIX}, or use `overwrite`"
            )
        if not (storage.exists(self.vocab) and storage.exists(self.model)):
            return None
        sha256 = hashlib.sha256(storage.read_bytes(self.model)).hexdigest()
        return stored if sha256 == stored.model_sha256 else None

    def write(self, tokenizer: SentencePieceTokenizer, **record: Any) -> ModelRecord:
        """Write PREFIX.json, PREFIX.vocab and PREFIX.model, and return the content of PREFIX.json.

        `record` contains the fields of `ModelRecord` that `tokenizer` does not determine: settings,
        fingerprint of the corpus, duration and statistics.
        """
        made = ModelRecord(
            format_version=decode.FORMAT_VERSION,
            sentencepiece=sentencepiece.__version__,
            **record,
            vocab_size=tokenizer.vocab_size,
            special_ids=tokenizer.special_ids,
            normalization=model_proto.read_settings(tokenizer.model_bytes).normalization,
            model_sha256=tokenizer.sha256,
        )
        scores = [piece.score for piece in model_proto.read_pieces(tokenizer.model_bytes)]
        rows = "".join(f"{p}\t{s:g}\n" for p, s in zip(tokenizer.tokens, scores, strict=True))
        text = json.dumps(dataclasses.asdict(made), ensure_ascii=False, indent=2) + "\n"
        outputs.write(self.record, text.encode())
        outputs.write(self.vocab, rows.encode())
        outputs.write(self.model, tokenizer.model_bytes)
        return made

    def check_model(self, tokenizer: Tokenizer) -> None:
        """Compare the model with PREFIX.json, if that file exists.

        SentencePiece usually loads a file with a flipped bit without an error, but as a different
        tokenizer.

        Raises:
            BadInput: The record describes another model.
        """
        stored = self.read_record()
        if stored is not None and stored.model_sha256 != tokenizer.sha256:
            raise BadInput(
                f"{self.model} is not the model that {self.record} describes. Restore it from a"
                f" copy, or remove {self.record} if you have put another model there"
            )
