"""Load a tokenizer that is stored with a data set or a run."""

import functools

from bigbird_ja.text import folder_tokenizer
from bigbird_ja.text.tokenizer import SentencePieceTokenizer, Tokenizer

TOKENIZER_NAME = "tokenizer.model"  # in DATA_DIR and MODEL_DIR


@functools.lru_cache(maxsize=1)
def tokenizer_of(data: bytes, source: str) -> Tokenizer:
    """Load the content of a `tokenizer.model`: a SentencePiece model, or the archive of a folder.

    A start checks the data set's tokenizer, compares it with that of `--init_from`, and evaluates
    with it: these share one object, which takes a second to load for a large vocabulary.

    Raises:
        BadInput: Neither of the two.
    """
    if data.startswith(folder_tokenizer.FIRST_BYTES):
        return folder_tokenizer.FolderTokenizer(data, source)
    return SentencePieceTokenizer(data, source)
