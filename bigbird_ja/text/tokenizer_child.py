"""The child process that `tokenizer_training` starts: runs SentencePiece on what it reads.

Standard input: one line of JSON with `path` and `arguments`, then the text, a line each. Writes the
model to `path`, or SentencePiece's refusal to `path` + ERROR_SUFFIX, with the exit status REFUSED.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from bigbird_ja.process import children

ERROR_SUFFIX = ".error"
REFUSED = 3


def main() -> int:
    """Trains; returns the exit status."""
    children.be_a_child()
    header = json.loads(sys.stdin.buffer.readline())
    import sentencepiece

    def text() -> Iterator[str]:
        for line in sys.stdin.buffer:
            yield line[:-1].decode()

    try:
        with open(header["path"], "wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=text(), model_writer=model, **header["arguments"]
            )
    except RuntimeError as error:
        with open(header["path"] + ERROR_SUFFIX, "w", encoding="utf-8") as file:
            file.write(str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
