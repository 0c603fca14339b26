"""The child process that `training` starts: runs SentencePiece on what it reads.

Standard input: one line of JSON with `path` and `arguments`, then the text, a line each. Writes the
model to `path`, or SentencePiece's refusal to `path` + ERROR_SUFFIX, with the exit status REFUSED.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Iterator

ERROR_SUFFIX = ".error"
REFUSED = 3
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Trains; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which stops this process
    _die_with_parent()
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


def _die_with_parent() -> None:
    """Where Linux offers it: a parent that is killed leaves no training behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
