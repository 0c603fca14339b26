"""Counts of duplicates, HTML and other problems of a corpus, which `make-data` reports."""

import array
import re
from collections.abc import Iterable, Iterator

import numpy as np

# Maximum number of documents that are searched for duplicates. Each document needs 8 bytes of
# memory.
_MAX_COMPARED = 20_000_000
# Number of characters at the start of a document that are searched for HTML tags.
_SEARCHED = 5000
_TAGS = re.compile(r"<(?:!doctype html|html|head|body)[\s>]|</(?:div|span|p|table|li)>", re.I)
_FULL_WIDTH_SPACE = "\u3000"


class TextCounts:
    """Counts of the documents of a corpus, updated as the documents are read."""

    def __init__(self) -> None:
        self._skipped = self._html = self._spaces = 0
        self._hashes = array.array("q")

    def skip_empty(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the documents that are not empty, and update the counts."""
        for text in texts:
            if not text.strip():
                self._skipped += 1
                continue
            self._html += _TAGS.search(text, 0, _SEARCHED) is not None
            self._spaces += _FULL_WIDTH_SPACE in text
            if len(self._hashes) < _MAX_COMPARED:
                self._hashes.append(hash(text))
            yield text

    def get_statistics(self) -> dict[str, int]:
        """Return the counts, by the field names of the manifest's `Statistics`."""
        different = len(np.unique(np.frombuffer(self._hashes, np.int64)))
        return {
            "skipped": self._skipped,
            "duplicates": len(self._hashes) - different,
            "html_documents": self._html,
            "fullwidth_space_documents": self._spaces,
        }
