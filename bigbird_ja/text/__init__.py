"""Read corpora, split sentences and words, and tokenize."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import hub

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer


def read_tokenizer(path: str) -> Tokenizer:
    """Read a tokenizer of whatever project: a `.model` file, or a Hugging Face folder.

    A folder's `tokenizer.json`, or MeCab with WordPiece, is used as it is. Where there is only a
    SentencePiece model, it is given our special pieces; `changes` says how. A folder that `export`
    made of one holds both, and the model counts.

    Raises:
        BadInput: there is no tokenizer, or none that can be used.
    """
    from bigbird_ja.text import folder_files, model_proto, tokenizer

    if path.endswith(".model"):
        return tokenizer_of(_read(path), path)
    stored = model_proto.read_folder(path)
    is_ours = stored is not None and tokenizer.has_our_pieces(stored[0])
    if not is_ours and (files := folder_files.FolderFiles.read(path)):
        return tokenizer_of(files.pack(), path)
    if stored is not None:
        return tokenizer.from_model(*stored)
    if not storage.is_remote(path) and os.path.isdir(path):
        raise BadInput(
            f"{path}: no tokenizer in this folder: neither tokenizer.json, nor MeCab with"
            f" WordPiece, nor a SentencePiece model ({', '.join(model_proto.MODEL_NAMES)}): let"
            " transformers write one, by AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    return tokenizer_of(_read(path), path)


def tokenizer_of(data: bytes, source: str) -> Tokenizer:
    """Load what a `tokenizer.model` holds: a SentencePiece model, or the files of a folder.

    Raises:
        BadInput: neither of the two.
    """
    from bigbird_ja.text import folder_files, folder_tokenizer, tokenizer

    if data.startswith(folder_files.FIRST_BYTES):
        return folder_tokenizer.FolderTokenizer(data, source)
    return tokenizer.from_model(data, source)


def _read(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        advice = "train one with `bigbird-ja tokenize`, which writes PREFIX.model"
        raise BadInput(f"no tokenizer {path}: {hub.download_advice(path) or advice}") from error


def pieces_of(folder: str, sha256: str) -> int | None:
    """Count the pieces of a tokenizer in use that are a Hugging Face folder's, by the same ids.

    Those that `read_tokenizer` added stand behind them.

    Returns:
        None where the tokenizer in use was not made of the folder's.
    """
    try:
        tokenizer = read_tokenizer(folder)
    except BadInput:
        return None
    return tokenizer.vocab_size - tokenizer.added if tokenizer.sha256 == sha256 else None
