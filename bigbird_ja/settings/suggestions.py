"""Suggestions for misspelled names of settings, flags, commands and presets."""

import difflib
from collections.abc import Iterable

# Names of settings, by the names that other trainers use for them.
_ELSEWHERE = {
    "lr": "learning_rate",
    **dict.fromkeys(("batch_size", "train_batch_size"), "global_batch_size"),
    **dict.fromkeys(
        ("steps", "max_steps", "epochs", "num_epochs", "num_train_epochs"), "num_train_steps"
    ),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len"), "seq_length"),
}


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names: `" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return format_suggestion(find_nearest(name, known))


def find_nearest(name: str, known: Iterable[str]) -> list[str]:
    """Find at most two known names with a similar spelling, the most similar first."""
    by_name: dict[str, list[str]] = {}
    for key in known:
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    name = name.rpartition(".")[2]
    meant = _ELSEWHERE.get(name, "")
    close = [meant] if meant in by_name else difflib.get_close_matches(name, by_name)
    return [key for one in close for key in by_name[one]][:2]


def format_suggestion(keys: list[str]) -> str:
    """Format suggestions: `" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""
