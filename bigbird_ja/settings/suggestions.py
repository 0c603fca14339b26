"""The nearest known name, by letters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_MOST = 3  # suggestions


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the nearest known name, else an empty string."""
    return suggestion(near(name, known))


def near(name: str, known: Iterable[str]) -> list[str]:
    """The nearest known name by letters, or nothing."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)


def is_used(key: str, uses: Sequence[str]) -> bool:
    """Whether a command that uses these sections and keys uses this setting."""
    return key in uses or key.partition(".")[0] in uses


def in_words(uses: Sequence[str], known: Iterable[str]) -> str:
    """Sections and keys that a command uses, as briefly as can be said: `model.*`, a section
    without few of its keys, or the keys.

    Args:
        uses: sections and keys.
        known: the keys of all settings.
    """
    sections: dict[str, list[str]] = {}
    for key in known:
        sections.setdefault(key.partition(".")[0], []).append(key)
    found = []
    for section, keys in sections.items():
        used = [key for key in keys if is_used(key, uses)]
        unused = [key.partition(".")[2] for key in keys if key not in used]
        if len(unused) >= len(used):
            found += used
        else:
            found.append(f"{section}.*" + (f" but {', '.join(unused)}" if unused else ""))
    return "; ".join(found) if any(" but " in text for text in found) else ", ".join(found)


def near_settings(name: str, known: Iterable[str]) -> list[str]:
    """Keys of settings whose name, or whole key, has about the same letters, the likeliest first.

    A name without a section is compared with the names of all sections.
    """
    scored = [(_nearness(name, key), key) for key in known]
    best = max((score for score, _ in scored), default=0.0)
    near = sorted((-score, key) for score, key in scored if score >= max(0.6, best - 0.1))
    return [key for _, key in near[:_MOST]]


def suggestion(keys: list[str]) -> str:
    """`" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""


def _nearness(name: str, key: str) -> float:
    """0 to 1: how alike two keys are, or their names without the sections."""
    asked, known = name.lower().replace("-", "_"), key
    short = _ratio(asked.rpartition(".")[2], known.rpartition(".")[2])
    return max(_ratio(asked, known), 0.95 * short)


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
