"""Counts of duplicates, HTML and other problems of a corpus, which `make-data` reports."""

import array
import re
from collections.abc import Iterable, Iterator

import numpy as np

# Maximum number of documents that are compared, by hashes of 8 bytes each.
_MAX_COMPARED = 20_000_000
# Number of characters that are searched in a document.
_SEARCHED = 5000
_TAGS = re.compile(r"<(?:!doctype html|html|head|body)[\s>]|</(?:div|span|p|table|li)>", re.I)
_FULL_WIDTH_SPACE = "\u3000"


class TextCounts:
    """Counts of documents, updated while they are read."""

    def __init__(self) -> None:
        self._skipped = self._html = self._spaces = 0
        self._hashes = array.array("q")

    def skip_empty(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the documents that contain text, and count all."""
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
        """Return the counts by their names in `statistics` of a manifest."""
        different = len(np.unique(np.frombuffer(self._hashes, np.int64)))
        return {
            "skipped": self._skipped,
            "duplicates": len(self._hashes) - different,
            "html_documents": self._html,
            "fullwidth_space_documents": self._spaces,
        }
