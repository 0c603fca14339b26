"""`SRC=WEIGHT`: how many times an epoch takes the documents of a corpus."""

from __future__ import annotations

import os

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import Option, shortened

WEIGHT = Option(
    "weight", float, 1.0, "Times that an epoch takes each document of a corpus.",
    low=0.0001, high=1000.0,
)  # fmt: skip


def split_weight(source: str, suffixes: tuple[str, ...], scheme: str) -> tuple[str, float | None]:
    """A source and the weight that was written after it; None where there is none.

    A path may hold "=" itself. What is there, and what ends as files or folders do, is a path.

    Args:
        source: as the user wrote it.
        suffixes: with which the names of files end.
        scheme: with which sources begin that are no files.

    Raises:
        BadInput: the weight is no number, or out of range.
    """
    place, _, weight = source.rpartition("=")
    if not place or source.endswith((*suffixes, "/")) or os.path.lexists(source):
        return source, None
    try:
        return place, WEIGHT.read(weight, "")
    except BadInput as error:
        is_meant = _is_number(weight) or place.endswith((*suffixes, "/"))
        if not (is_meant or place.startswith(scheme) or os.path.lexists(place)):
            return source, None
        raise BadInput(
            f"--input {shortened(source)}: {error}: write SRC=WEIGHT, such as news.jsonl=0.5 (a"
            " path that ends in = and a number itself: PATH=1)"
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
