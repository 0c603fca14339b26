"""Load a tokenizer: a SentencePiece model, or one of another project's folder."""

import functools
import os

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import hub
from bigbird_ja.text import folder_tokenizer, model_proto
from bigbird_ja.text.tokenizer import SentencePieceTokenizer, Tokenizer, has_our_tokens


def read_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer: a `.model` file, or a Hugging Face folder, which needs transformers.

    A SentencePiece model with our special tokens in the folder, such as one of `export`, has
    priority.

    Raises:
        BadInput: no tokenizer, or none that can be used.
    """
    if not os.path.isdir(path) and (path.endswith(".model") or not storage.is_remote(path)):
        try:
            return tokenizer_of(storage.read_bytes(path), path)
        except (FileNotFoundError, NotADirectoryError) as error:
            advice = "train one with `bigbird-ja tokenize`, which writes PREFIX.model"
            raise BadInput(f"no tokenizer {path}: {hub.download_advice(path) or advice}") from error
    names = storage.list_files(path)
    for name in (name for name in model_proto.MODEL_NAMES if name in names):
        data = storage.read_bytes(storage.join(path, name))
        if has_our_tokens(data):
            return SentencePieceTokenizer(data, storage.join(path, name))
    if {*folder_tokenizer.WITH_TOKENS} & {*names}:
        return folder_tokenizer.read(path)
    models = [storage.join(path, name) for name in names if name.endswith(".model")]
    raise BadInput(
        f"{path}: a folder: give the model in it, {models[0]}"
        if models
        else f"{path}: no tokenizer in this folder: let transformers write one, by"
        " AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    )


@functools.lru_cache(maxsize=1)
def tokenizer_of(data: bytes, source: str) -> Tokenizer:
    """Load the content of a `tokenizer.model`: a SentencePiece model, or the archive of a folder.

    A start checks the data set's tokenizer, compares it with that of `--init_from`, and evaluates
    with it: these share one object, which takes a second to load for a large vocabulary.

    Raises:
        BadInput: neither of the two.
    """
    if data.startswith(folder_tokenizer.FIRST_BYTES):
        return folder_tokenizer.FolderTokenizer(data, source)
    return SentencePieceTokenizer(data, source)
