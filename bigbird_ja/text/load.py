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
    result is cached, as the start of training needs the tokenizer three times, and a large
    tokenizer takes a second to load.

    Raises:
        BadInput: The content is neither of the two.
    """
    if data.startswith(folder_tokenizer.FIRST_BYTES):
        return folder_tokenizer.FolderTokenizer(data, source)
    return SentencePieceTokenizer(data, source)
