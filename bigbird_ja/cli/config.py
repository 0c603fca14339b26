"""Conversion of `--config`, `--set` and the flags of single settings to function arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args
from bigbird_ja.errors import BadInput


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Parse the YAML values of `--set section.key=value`, and return them by key.

    If a key is given twice, its last value counts.

    Raises:
        BadInput: A text does not contain `=`, or a value is not YAML.
    """
    from bigbird_ja.settings.option import shorten
    from bigbird_ja.storage import decode

    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator:
            raise BadInput(f"--set {shorten(text)} must have the form section.key=value")
        values[key] = decode.read_yaml(value, f"--set {key}")
    return values


def collect_setting_parameters(args: Args) -> dict[str, Any]:
    """Convert `--config`, `--set` and the flags of single settings to a function's arguments."""
    flags = command_flags.own_flags(args)
    named = {flag.name: flag.value for flag in flags if command_flags.declared(flag).setting}
    return {"config": args.config, "overrides": read_sets(args.set), **named}
