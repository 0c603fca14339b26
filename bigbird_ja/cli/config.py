"""Conversion of flags for settings to arguments of functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args
from bigbird_ja.errors import BadInput


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Read the values of `--set section.key=value`, which are YAML, by key.

    The last value of a key has priority.

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
    """Return `config`, `overrides` and the arguments that set one setting, for a function."""
    flags = command_flags.own_flags(args)
    named = {flag.name: flag.value for flag in flags if command_flags.declared(flag).setting}
    return {"config": args.config, "overrides": read_sets(args.set), **named}
