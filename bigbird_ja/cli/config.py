"""Settings that a command's flags specify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args
from bigbird_ja.errors import BadInput


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Read the values of `--set section.key=value` as YAML, by key.

    The last value of a key wins.

    Raises:
        BadInput: A text without `=`, or not YAML.
    """
    from bigbird_ja.settings.option import shortened
    from bigbird_ja.storage import decode

    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator:
            raise BadInput(f"--set {shortened(text)}: write it as section.key=value")
        values[key] = decode.read_yaml(value, f"--set {key}")
    return values


def setting_parameters(args: Args) -> dict[str, Any]:
    """Return `config`, `overrides` and the parameters that set one setting, for a function."""
    flags = command_flags.own_flags(args)
    named = {flag.name: flag.value for flag in flags if command_flags.declared(flag).setting}
    return {"config": args.config, "overrides": read_sets(args.set), **named}
