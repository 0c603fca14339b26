"""Conversion of the parameter names in messages to flags.

Messages of the package contain parameters in backticks, such as `overwrite`. The command line
prints them as flags, such as --overwrite. Other words in backticks are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Container

_WORD = re.compile(r"`([a-z_]+)`")
_FLAGS = {
    "overrides": "set",
    "chips": "chip",
    "inputs": "input",
    "texts": "text",
    "text_fields": "text_field",
    "model_dirs": "model_dir",
}


def spell_flags(message: str, flags: Container[str]) -> str:
    """Replace parameters in backticks by the flags of a command.

    Args:
        message: message of the package.
        flags: names of the command's flags.
    """

    def spell(match: re.Match[str]) -> str:
        name = match[1] if match[1] in flags else _FLAGS.get(match[1], "")
        return f"--{name}" if name in flags else match[0]

    return _WORD.sub(spell, message)
