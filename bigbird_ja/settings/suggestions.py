"""The nearest known name: by letters, and for settings by meaning too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bigbird_ja.settings.option import Option

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


def near_settings(name: str, options: Mapping[str, Option]) -> list[str]:
    """Keys of the settings that a name may stand for, the likeliest first, at most three.

    A setting is near if its key or name has about the same letters, if one of the other names
    under which people know it (`Option.also`) has, or if its name holds the same words.
    """
    scored = [(_nearness(name, option), key) for key, option in options.items()]
    best = max((score for score, _ in scored), default=0.0)
    near = sorted((-score, key) for score, key in scored if score >= max(0.6, best - 0.15))
    return [key for _, key in near[:_MOST]]


def suggestion(keys: list[str]) -> str:
    """`" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""


def _nearness(name: str, option: Option) -> float:
    """0 to 1: how likely `name` stands for this setting."""
    section, _, last = name.rpartition(".")
    asked = _plain(last)
    names = [_plain(option.name), *map(_plain, option.also)]
    score = max(
        1.0 if asked in names else 0.0,
        0.95 * _ratio(name, option.key),
        *(0.9 * _ratio(asked, known) for known in names),
        0.85 * _shared_words(asked, option),
    )
    # What is asked for in a section that exists is sooner meant there.
    return score + 0.1 * (section == option.section)


def _shared_words(asked: str, option: Option) -> float:
    """Which share of the words asked for are in the setting's names."""
    words = set(asked.split("_"))
    known = {word for text in (option.name, *option.also) for word in _plain(text).split("_")}
    return len(words & known) / len(words)


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
