"""Load a tokenizer that is stored with a data set or a run."""

import functools

from bigbird_ja.text import folder_tokenizer
from bigbird_ja.text.tokenizer import SentencePieceTokenizer, Tokenizer

# Name of the file in DATA_DIR and MODEL_DIR.
TOKENIZER_NAME = "tokenizer.model"


@functools.lru_cache(maxsize=1)
def parse_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Load a tokenizer from the content of a `tokenizer.model`.

    The content is a SentencePiece model, or an archive that `folder_tokenizer` describes. The
    result is cached, because the start of training loads the same tokenizer three times. Loading a
    large tokenizer takes a second.

    Raises:
        BadInput: The content is neither a SentencePiece model nor such an archive.
    """
    if data.startswith(folder_tokenizer.FIRST_BYTES):
        return folder_tokenizer.FolderTokenizer(data, source)
    return SentencePieceTokenizer(data, source)
