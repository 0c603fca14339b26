"""Trim the vocabulary of an encoder to the tokens that a corpus uses.

A multilingual encoder has embeddings for 250,000 tokens, and Japanese text uses an eighth of them.
The tokens that a corpus uses most often are kept, with their scores or merges. Rows of the
embeddings are copied unchanged. A text that needs only kept tokens is divided into the same tokens
as before, so its hidden states are unchanged, too:

- Unigram chooses the segmentation with the highest score. This segmentation is still possible, as
  its tokens are kept. The score of an unknown character is the lowest score of all tokens minus a
  penalty, so the token with the lowest score is always kept.
- BPE joins pairs of tokens in the order of the merges. A token is kept together with all tokens
  that are merged to form it.
- WordPiece chooses the longest token that fits. This token is still possible, as it is kept. Only a
  word that was unknown may change. After trimming it may be divided into kept tokens.
"""

from __future__ import annotations

import copy
import difflib
import functools
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, check_is_list
from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.huggingface import hub, state_dict
from bigbird_ja.huggingface.tokenizer import WITH_TOKENS, build_tokenizer, read_folder
from bigbird_ja.process.console import Progress, log
from bigbird_ja.storage import decode, export_folder
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.file_source import AUTO, UTF_8
from bigbird_ja.text.folder_tokenizer import BYTE, CONFIG, DEFINITION, FolderTokenizer
from bigbird_ja.version import VERSION

# Number of lines to encode in one call.
_BATCH = 1000
# One of this many documents is held out, up to a maximum number of held-out documents. The
# tokenizers before and after trimming are compared on these documents.
_HELD_OUT_EVERY, _MAX_HELD_OUT = 20, 2000
# Minimum number of tokens that a corpus must use, as a share of the requested number.
_MIN_USED = 0.5
# Vocabulary file of a tokenizer in Python, with a token in each line.
_TABLE = "vocab.txt"
# Weights with a row for each token: embeddings and the masked-LM head's output layer.
_BY_TOKEN = re.compile(
    r"(.*\.)?((word|tok)_embeddings\.weight|decoder\.(weight|bias)|(predictions|lm_head)\.bias)"
)
_ID = re.compile(r"[a-z]+_token_id")
# Files to copy to a trimmed folder. Weights, tokenizer and config.json are written anew.
_KEPT_FILES = re.compile(
    r"README\.md|LICENSE.*|modules\.json|sentence_bert_config\.json"
    r"|config_sentence_transformers\.json"
)


@dataclass(frozen=True)
class TrimResult:
    """Result of `trim`. Its numbers are None if `output_dir` was finished before the call."""

    output_dir: str
    vocab_size: int | None = None
    vocab_size_before: int | None = None
    parameters: int | None = None
    parameters_before: int | None = None
    changed_share: float | None = None


def trim(
    *,
    encoder: str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str],
    vocab_size: int = 32_000,
    text_fields: Sequence[str] = (),
    encoding: str = UTF_8,
    txt_documents: str = AUTO,
    tfds_data_dir: str | None = None,
    overwrite: bool = False,
) -> TrimResult:
    """Trim an encoder's vocabulary to the tokens that a corpus uses.

    If `output_dir` already contains the result, nothing is done.

    Args:
        encoder: Hugging Face folder, on disk or gs://, or name of a repository on the Hub.
        inputs: corpora, such as paths of text files. The guide lists all supported kinds.
        output_dir: folder to write, on disk or gs://.
        vocab_size: maximum number of tokens to keep, including special tokens and bytes.
        text_fields: fields or columns of text. The first of them that a record contains is read.
        encoding: encoding of .jsonl, .txt, .csv and .tsv files.
        txt_documents: extent of a document in a .txt file: "file", "blank_line", "line" or "auto".
        tfds_data_dir: folder of prepared TFDS data sets.
        overwrite: whether an existing, different folder is renamed to OUTPUT_DIR.replaced-N.

    Raises:
        BadInput: The encoder cannot be trimmed, or `vocab_size` does not suit the encoder or the
            corpus.
    """
    folder, target = os.fspath(encoder), os.fspath(output_dir)
    check_is_list("inputs", inputs)
    sources = [os.fspath(each) for each in inputs]
    read = {f"`inputs` {path}": path for path in sources} | {"`encoder`": folder}
    export_folder.check(target, read)
    source = read_encoder(hub.fetch_model(folder, "`encoder`", weights=True))
    check_size(source, vocab_size)
    corpus = open_corpus(sources, tfds_data_dir, txt_documents, text_fields, encoding)
    record = {
        "format_version": decode.FORMAT_VERSION,
        "bigbird_ja": VERSION,
        "weights": source.checksums,
        "tokenizer_sha256": source.tokenizer.sha256,
        "corpus_fingerprint": corpus.fingerprint,
        "vocab_size": vocab_size,
    }
    if export_folder.is_finished(target, record, overwrite):
        log(f"{target} is finished already: nothing to do")
        return TrimResult(target)
    trimmed = trim_vocabulary(source, corpus.texts(), vocab_size)
    fill_trimmed = functools.partial(fill, encoder=source, trimmed=trimmed)
    export_folder.write(target, record, fill_trimmed)
    return measure(source, trimmed, target)


@dataclass(frozen=True)
class TrimmableEncoder:
    """Encoder whose vocabulary can be trimmed.

    Attributes:
        folder: path on disk or gs://.
        config: content of config.json.
        tokenizer: tokenizer, loaded by transformers.
        definition: content of tokenizer.json, or {} for a slow tokenizer (in Python).
        weights: weights by their names in the folder.
        checksums: SHA-256 of each file of weights.
    """

    folder: str
    config: dict[str, Any]
    tokenizer: FolderTokenizer
    definition: dict[str, Any]
    weights: dict[str, np.ndarray]
    checksums: dict[str, str]

    @functools.cached_property
    def scores(self) -> list[float]:
        """Scores of a Unigram model's tokens by id, or [] for other models."""
        vocabulary = self.definition.get("model", {}).get("vocab")
        return [score for _, score in vocabulary] if isinstance(vocabulary, list) else []


@dataclass(frozen=True)
class Trimmed:
    """Trimmed encoder.

    Attributes:
        config: content of config.json.
        tokenizer: content of the tokenizer's files by name.
        weights: weights by their names in the source's folder.
        changed: share of the tokens in held-out text that trimming changes, or None without
            held-out text.
    """

    config: dict[str, Any]
    tokenizer: dict[str, bytes]
    weights: dict[str, np.ndarray]
    changed: float | None


def read_encoder(folder: str) -> TrimmableEncoder:
    """Read an encoder, and check that its vocabulary can be trimmed.

    Raises:
        BadInput: Weights or tokenizer are missing or damaged, a run cannot start from the encoder's
            class, or the vocabulary cannot be trimmed.
    """
    hf_config.read_config(folder)
    if not set(WITH_TOKENS) & set(storage.list_files(folder)):
        raise BadInput(f"`encoder` {folder} contains no tokenizer. Copy the whole folder")
    weights, checksums = state_dict.read(folder)
    config = decode.read_json(storage.join(folder, "config.json"), dict[str, Any])
    tokenizer = read_folder(folder)
    definition = json.loads(tokenizer.files.get(DEFINITION, b"{}"))
    if problem := _find_obstacle(tokenizer.files, definition.get("model")):
        raise BadInput(
            f"`encoder` {folder}: its vocabulary cannot be trimmed ({problem}). Supported are"
            " Unigram, WordPiece, and BPE without prefixes or suffixes of a word's parts"
        )
    for name, value in weights.items():
        if _BY_TOKEN.fullmatch(name) and len(value) < tokenizer.vocab_size:
            raise BadInput(
                f"`encoder` {folder}: {name} has {len(value):,} rows, but the tokenizer has"
                f" {tokenizer.vocab_size:,} tokens. The folder's files do not belong together"
            )
    return TrimmableEncoder(folder, config, tokenizer, definition, weights, checksums)


def _find_obstacle(files: Mapping[str, bytes], model: Mapping[str, Any] | None) -> str | None:
    """Return the reason why a tokenizer's vocabulary cannot be trimmed, or None if it can."""
    if model is None:
        others = {name for name in files if not name.endswith(".py")} - {CONFIG, _TABLE}
        return ", ".join(sorted(others)) or (None if _TABLE in files else f"no {_TABLE}")
    if model["type"] not in ("Unigram", "WordPiece", "BPE"):
        return str(model["type"])
    marks = ("continuing_subword_prefix", "end_of_word_suffix")
    found = [mark for mark in marks if model.get(mark) and model["type"] == "BPE"]
    return f"BPE with {found[0]}" if found else None


def check_size(encoder: TrimmableEncoder, size: int) -> None:
    """Check the size of the new vocabulary, before the corpus is read.

    Raises:
        BadInput: The size is not below the number of tokens, or is below the number of special
            tokens and bytes.
    """
    most, least = encoder.tokenizer.vocab_size, len(_find_needed_ids(encoder))
    if size >= most:
        raise BadInput(
            f"`vocab_size` {size}: {encoder.folder} has only {most:,} tokens. Give a smaller number"
        )
    if size < least:
        raise BadInput(
            f"`vocab_size` {size}: {encoder.folder} needs {least:,} special tokens and bytes. Give"
            " a larger number"
        )


def trim_vocabulary(encoder: TrimmableEncoder, documents: Iterable[str], size: int) -> Trimmed:
    """Trim the vocabulary to the tokens that a corpus uses most often.

    Args:
        encoder: encoder before trimming.
        documents: documents of the corpus, in order.
        size: maximum size of the new vocabulary, checked by `check_size`.

    Raises:
        BadInput: The corpus uses fewer than half of the requested number of tokens.
    """
    held_out: list[str] = []
    counts = np.zeros(encoder.tokenizer.vocab_size, np.int64)
    with Progress(0, "documents") as progress:
        lines = _split_lines(documents, held_out, progress)
        while batch := list(itertools.islice(lines, _BATCH)):
            tokens = np.concatenate(encoder.tokenizer.encode_arrays(batch))
            counts += np.bincount(tokens, minlength=len(counts))
    kept = _choose_tokens(encoder, counts, size)
    new = {old: place for place, old in enumerate(kept)}
    tokenizer = _trim_tokenizer(encoder, new)
    ids = {key: new[old] for key, old in _read_stated_ids(encoder).items()}
    weights: dict[str, np.ndarray] = {
        name: value[kept] if _BY_TOKEN.fullmatch(name) else value
        for name, value in encoder.weights.items()
    }
    changed = _measure_changed_share(encoder.tokenizer, tokenizer, held_out)
    return Trimmed(encoder.config | ids | {"vocab_size": len(kept)}, tokenizer, weights, changed)


def _choose_tokens(encoder: TrimmableEncoder, counts: np.ndarray, size: int) -> list[int]:
    """Return the old ids of the kept tokens, ascending. A token's index in this list is its new id.

    Args:
        encoder: encoder before trimming.
        counts: int64 [old vocabulary], number of each token's occurrences in the corpus.
        size: maximum size of the new vocabulary.
    """
    kept = _find_needed_ids(encoder)
    used = int(np.count_nonzero(counts))
    if used < _MIN_USED * (size - len(kept)):
        raise BadInput(
            f"`vocab_size` {size}: the corpus uses only {used:,} tokens. Give a larger corpus or a"
            " smaller number"
        )
    with_parts = _make_part_finder(encoder)
    for token in (
        *np.argsort(-counts, kind="stable")[:used].tolist(),
        *_rank_unused_tokens(encoder, counts),
    ):
        more = with_parts(token) - kept
        if len(kept) + len(more) <= size:
            kept |= more
    return sorted(kept)


def _rank_unused_tokens(encoder: TrimmableEncoder, counts: np.ndarray) -> list[int]:
    """Rank the tokens that a corpus does not use, by their likelihood in similar text.

    The likelihood of a token is the product of its characters' frequencies in the corpus and, in a
    Unigram model, its own probability. A token is left out if it contains a character that the
    corpus does not use.
    """
    written = encoder.tokenizer.written
    characters: Counter[str] = Counter()
    for token in np.flatnonzero(counts).tolist():
        for character in written[token]:
            characters[character] += int(counts[token])
    total = characters.total()
    likelihood = {
        token: sum(math.log(characters[c] / total) for c in written[token])
        + (encoder.scores[token] if encoder.scores else 0.0)
        for token in np.flatnonzero(counts == 0).tolist()
        if all(c in characters for c in written[token])
    }
    return sorted(likelihood, key=lambda token: -likelihood[token])


def _split_lines(
    documents: Iterable[str], held_out: list[str], progress: Progress
) -> Iterator[str]:
    """Yield the lines of all documents that are not held out.

    The lines of held-out documents are appended to `held_out`.
    """
    for number, text in enumerate(documents):
        progress.update()
        lines = [line for line in text.split("\n") if line]
        place = number // _HELD_OUT_EVERY
        if number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 and place < _MAX_HELD_OUT:
            held_out += lines
        else:
            yield from lines


def _read_stated_ids(encoder: TrimmableEncoder) -> dict[str, int]:
    """Return the token ids in config.json by key, except lists and ids outside the vocabulary."""
    size = encoder.tokenizer.vocab_size
    return {
        key: value
        for key, value in encoder.config.items()
        if _ID.fullmatch(key) and isinstance(value, int) and 0 <= value < size
    }


def _find_needed_ids(encoder: TrimmableEncoder) -> set[int]:
    """Return the ids of the tokens that every trimmed vocabulary of this encoder must contain."""
    tokenizer = encoder.tokenizer
    needed = {*_read_stated_ids(encoder).values(), *tokenizer.special.to_dict().values()}
    needed |= {token["id"] for token in encoder.definition.get("added_tokens", ())}
    # RoBERTa counts positions from its padding id on, so the padding id must not change.
    if encoder.config["model_type"] in hf_config.ROBERTAS:
        needed |= set(range(tokenizer.special.pad + 1))
    for i, name in enumerate(tokenizer.names):
        if BYTE.fullmatch(name) or (tokenizer.is_byte_level and len(name) == 1):
            needed.add(i)
    if encoder.scores:
        needed.add(int(np.argmin(encoder.scores)))
        needed |= {encoder.definition["model"]["unk_id"]} - {None}
    return needed


def _make_part_finder(encoder: TrimmableEncoder) -> Callable[[int], set[int]]:
    """Return a function that maps a token's id to the ids of all tokens that it needs.

    These are the token itself and, in a BPE model, all tokens that are merged, directly or
    indirectly, to form it.
    """
    model = encoder.definition.get("model", {})
    if model.get("type") != "BPE":
        return lambda token: {token}
    names = encoder.tokenizer.names
    ids = {name: i for i, name in enumerate(names)}
    ranks = {pair: rank for rank, pair in enumerate(_list_merges(model))}

    def find_parts(token: int) -> set[int]:
        symbols = list(names[token])
        found = {names[token], *symbols}
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            place = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], math.inf))
            if pairs[place] not in ranks:
                break
            symbols[place : place + 2] = ["".join(pairs[place])]
            found.add(symbols[place])
        return {ids[name] for name in found if name in ids}

    return find_parts


def _list_merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the merges of a BPE model, as pairs of tokens.

    In older files a merge is one text, with a space between the two tokens.
    """
    pairs = (each.split(" ") if isinstance(each, str) else each for each in model["merges"])
    return [(first, second) for first, second in pairs]


def _trim_tokenizer(encoder: TrimmableEncoder, new: Mapping[int, int]) -> dict[str, bytes]:
    """Return the files of a tokenizer with only the ids in `new`, a map from old to new ids."""
    files = dict(encoder.tokenizer.files)
    names = encoder.tokenizer.names
    if not encoder.definition:
        return files | {_TABLE: "".join(f"{names[i]}\n" for i in new).encode()}
    definition = copy.deepcopy(encoder.definition)
    model = definition["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][i] for i in new if i < len(model["vocab"])]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {name: new[i] for name, i in model["vocab"].items() if i in new}
    if model["type"] == "BPE":
        known = model["vocab"]
        model["merges"] = [
            [a, b] for a, b in _list_merges(model) if a in known and b in known and a + b in known
        ]
    for token in definition["added_tokens"]:
        token["id"] = new[token["id"]]
    after = definition.get("post_processor") or {}
    for processor in after.get("processors", [after]):
        for special in processor.get("special_tokens", {}).values():
            special["ids"] = [new[i] for i in special["ids"]]
        for part in {"sep", "cls"} & set(processor):
            name, old = processor[part]
            processor[part] = [name, new[old]]
    return files | {DEFINITION: json.dumps(definition, ensure_ascii=False).encode()}


def _measure_changed_share(
    theirs: FolderTokenizer, files: Mapping[str, bytes], lines: list[str]
) -> float | None:
    """Return the share of the tokens in `lines` that trimming changes, or None without tokens.

    `theirs` is the tokenizer before trimming. `files` contains the trimmed tokenizer's files.
    """
    ours = build_tokenizer(files, "the trimmed tokenizer")
    changed = total = 0
    for start in range(0, len(lines), _BATCH):
        batch = lines[start : start + _BATCH]
        for old, new in zip(theirs.encode_batch(batch), ours.encode_batch(batch), strict=True):
            before, after = [theirs.names[i] for i in old], [ours.names[i] for i in new]
            total += len(before)
            if before != after:
                matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
                changed += len(before) - sum(part.size for part in matcher.get_matching_blocks())
    return changed / total if total else None


def measure(encoder: TrimmableEncoder, trimmed: Trimmed, output_dir: str = "") -> TrimResult:
    """Return the sizes before and after trimming, and the share of changed tokens."""
    return TrimResult(
        output_dir,
        vocab_size=trimmed.config["vocab_size"],
        vocab_size_before=encoder.tokenizer.vocab_size,
        parameters=sum(value.size for value in trimmed.weights.values()),
        parameters_before=sum(value.size for value in encoder.weights.values()),
        changed_share=trimmed.changed,
    )


def summarize(result: TrimResult) -> str:
    """Format a result as one sentence without a period, for the log and the model card."""
    changed = "no document was held out"
    if result.changed_share is not None:
        changed = f"{result.changed_share:.3%} of the tokens of held-out documents change"
    return (
        f"{result.vocab_size:,} of {result.vocab_size_before:,} tokens, {result.parameters:,} of"
        f" {result.parameters_before:,} parameters; {changed}"
    )


def fill(directory: str, encoder: TrimmableEncoder, trimmed: Trimmed) -> None:
    """Write the trimmed encoder's files into an empty local directory.

    Args:
        directory: output folder.
        encoder: source, whose model card and sentence-transformers' files are copied.
        trimmed: result of `trim_vocabulary`.
    """
    from safetensors.numpy import save_file

    files = trimmed.tokenizer | _read_copied_files(encoder.folder)
    card = f"\n## Trimmed vocabulary\n\nKept: {summarize(measure(encoder, trimmed))}.\n"
    files["README.md"] = files.get("README.md", b"") + card.encode()
    files["config.json"] = f"{json.dumps(trimmed.config, ensure_ascii=False, indent=2)}\n".encode()
    for name, data in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        storage.write_bytes(path, data)
    weights = {name: np.ascontiguousarray(value) for name, value in trimmed.weights.items()}
    save_file(weights, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})


def _read_copied_files(folder: str) -> dict[str, bytes]:
    """Read the files of an encoder's folder that are copied to the trimmed folder, by name.

    Their names match `_KEPT_FILES`, or they are in a folder that sentence-transformers'
    modules.json lists.
    """
    tree = storage.list_tree(folder)
    modules: list[dict[str, Any]] = []
    if "modules.json" in tree:
        modules = decode.read_json(storage.join(folder, "modules.json"), list[dict[str, Any]])
    folders = tuple(f"{module['path']}/" for module in modules if module.get("path"))
    names = [name for name in tree if _KEPT_FILES.fullmatch(name) or name.startswith(folders)]
    return {name: storage.read_bytes(storage.join(folder, name), 1 << 30) for name in names}
