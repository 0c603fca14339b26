"""Trains a SentencePiece model.

Reads `--input` (repeatable), streaming: tfds:wiki40b/ja[:split], .jsonl[.gz], .txt, globs, gs://.
Writes PREFIX.model, PREFIX.vocab and PREFIX.json (settings, corpus fingerprint, statistics), on
disk or gs://. About a minute and a half for 35 MB of text on two cores; hours for all of Wiki40b
without --max_sentences.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.command_flags import Flags
from bigbird_ja.config.schema import OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.config import TokenizeConfig
    from bigbird_ja.text.corpus import Corpus
    from bigbird_ja.text.tokenizer_training import Trained

EXAMPLE = "bigbird-ja tokenize --input=tfds:wiki40b/ja --output_prefix=out/ja --vocab_size=32000"
SETTINGS = ("tokenize",)


def define_flags(flags: Flags) -> None:
    """This command's flags."""
    flags.path(
        "input", "A source: tfds:wiki40b/ja[:split], a .jsonl[.gz] or .txt file, a glob, gs://.",
        many=True, required=True,
    )  # fmt: skip
    flags.path("tfds_data_dir", "Where TFDS data sets lie prepared.")
    flags.path("output_prefix", "PREFIX of .model, .vocab and .json.", required=True)
    for key, option in OPTIONS.items():
        if option.section == "tokenize":
            flags.setting(key)
    flags.switch("overwrite", "Replaces a model of other settings.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Trains, or finds that the model is there already."""
    from bigbird_ja.console import human_time, log
    from bigbird_ja.text import tokenizer_training

    started = time.monotonic()
    settings = _settings(args)
    corpus, about = _open(args, settings)
    there = _existing(args.output_prefix, about, args.overwrite)
    if there is not None:
        print(f"finished already: {args.output_prefix}.model")
        return _results(args.output_prefix, there)
    _check_writable(args.output_prefix)
    log(f"training a {settings.model_type} model of {settings.vocab_size:,} pieces")
    trained = tokenizer_training.train(corpus, settings)
    record = {
        **about,
        **_describe(trained),
        **tokenizer_training.statistics(trained),
        "seconds": round(time.monotonic() - started, 3),
    }
    _write(args.output_prefix, trained, record)
    print(
        f"wrote {args.output_prefix}.model: {record['vocab_size']:,} pieces,"
        f" {record['characters_per_token']} characters per token,"
        f" {record['unknown_rate']:.4%} unknown, in {human_time(record['seconds'])}"
    )
    return _results(args.output_prefix, record)


def _settings(args: absl_flags.FlagValues) -> TokenizeConfig:
    from bigbird_ja import command_flags

    config, _ = command_flags.resolve(args)
    return config.tokenize


def _open(args: absl_flags.FlagValues, settings: TokenizeConfig) -> tuple[Corpus, dict[str, Any]]:
    """The corpus, and what decides whether a model that is there is the one asked for."""
    import dataclasses

    from bigbird_ja.text.corpus import open_corpus

    corpus = open_corpus(args.input, args.tfds_data_dir)
    return corpus, {
        "settings": dataclasses.asdict(settings),
        "corpus_fingerprint": corpus.fingerprint,
    }


def _existing(prefix: str, about: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """The record of a finished model of these settings, or None where one must be trained.

    The record is written before the model, so a model without one is somebody else's.
    """
    import hashlib

    from bigbird_ja import storage
    from bigbird_ja.errors import BadInput

    model, record = f"{prefix}.model", f"{prefix}.json"
    if overwrite or not (storage.exists(model) or storage.exists(record)):
        return None
    there = _read_record(record) if storage.exists(record) else {}
    # A setting that the record does not know is younger, and had its default.
    before = {key: OPTIONS[f"tokenize.{key}"].default for key in about["settings"]}
    before |= there.get("settings", {})
    differing = [
        f"{key} was {before[key]}, is {value}"
        for key, value in about["settings"].items()
        if before[key] != value
    ]
    if there.get("corpus_fingerprint") != about["corpus_fingerprint"]:
        differing.append("the corpus is another one")
    if differing:
        what = "; ".join(differing) if there else "not written by this command"
        raise BadInput(
            f"{model if not there else record} exists already, with other settings ({what}): choose"
            " another --output_prefix, or replace it with --overwrite"
        )
    is_whole = (
        storage.exists(model)
        and storage.exists(f"{prefix}.vocab")
        and hashlib.sha256(storage.read_bytes(model)).hexdigest() == there.get("model_sha256")
    )
    return there if is_whole else None


def _read_record(path: str) -> dict[str, Any]:
    from bigbird_ja import storage

    try:
        record = json.loads(storage.read_bytes(path))
    except ValueError:
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("settings"), dict) else {}


def _check_writable(prefix: str) -> None:
    """Finds out before hours of training, not after, that nothing can be written there."""
    from bigbird_ja import storage

    directory = storage.directory_of(prefix)
    storage.make_directory(directory)
    probe = storage.join(directory, f"{storage.TEMPORARY_PREFIX}probe-{os.getpid()}")
    storage.write_bytes(probe, b"")
    storage.delete(probe)


def _describe(trained: Trained) -> dict[str, Any]:
    import dataclasses

    import sentencepiece

    tokenizer = trained.tokenizer
    return {
        "vocab_size": tokenizer.vocab_size,
        "special_ids": dataclasses.asdict(tokenizer.special),
        "normalization": tokenizer.normalization,
        "lines": trained.lines,
        "model_sha256": tokenizer.sha256,
        "sentencepiece": sentencepiece.__version__,
    }


def _write(prefix: str, trained: Trained, record: dict[str, Any]) -> None:
    from bigbird_ja import storage

    text = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
    storage.write_bytes(f"{prefix}.json", text.encode())
    storage.write_bytes(f"{prefix}.vocab", trained.tokenizer.vocabulary_text().encode())
    storage.write_bytes(f"{prefix}.model", trained.tokenizer.model_bytes)


def _results(prefix: str, record: dict[str, Any]) -> dict[str, Any]:
    keys = ("vocab_size", "characters_per_token", "unknown_rate", "longest_piece", "lines")
    return {**{key: record[key] for key in (*keys, "seconds")}, "model": f"{prefix}.model"}
