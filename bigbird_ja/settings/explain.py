"""Explanation of settings, as YAML that is itself a file of settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from bigbird_ja.process.console import warn
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.config_file import preset_purposes
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import OPTIONS
from bigbird_ja.settings.values import flatten
from bigbird_ja.storage.decode import FORMAT_VERSION

_WIDTH = 79


def explain(config_path: str | None, sets: Iterable[str]) -> dict[str, Any]:
    """Print the presets and every setting with its meaning and source; return the results.

    Args:
        config_path: preset or file of settings; None for the defaults.
        sets: strings `section.key=value`.
    """
    config, overrides = resolve_config(config_path, sets)
    values = flatten(config)
    sources = {override.key: override.source for override in overrides}
    settings = {
        key: {
            "value": values[key],
            "source": sources.get(key, "default"),
            **{name: getattr(option, name) for name in ("default", "meaning", "unit", "allowed")},
        }
        for key, option in OPTIONS.items()
    }
    presets = preset_purposes()
    print("# Presets:")
    for name, purpose in presets.items():
        lines = textwrap.wrap(f"{name}: {purpose}", _WIDTH - 4, subsequent_indent="  ")
        print("\n".join(f"#   {line}" for line in lines))
    print(f"format_version: {FORMAT_VERSION}  # a file that states every setting")
    print(_as_yaml(settings))
    warnings = config_warnings(config)
    warn(warnings)
    return {"settings": settings, "warnings": warnings, "presets": presets}


def _as_yaml(settings: dict[str, dict[str, Any]]) -> str:
    """Format the settings as YAML, with meaning, range and source of each in a comment above it."""
    import yaml

    lines, section = [], ""
    for key, setting in settings.items():
        option, value, source = OPTIONS[key], setting["value"], setting["source"]
        if option.section != section:
            section = option.section
            lines.append(f"{section}:")
        text = "null" if value is None else yaml.safe_dump(value).split("\n")[0]
        if value is None and source == "default":
            source = option.none
        shown = f"{option.meaning} [{option.values}]" if option.values else option.meaning
        about = textwrap.wrap(f"{shown} ({source})", _WIDTH - 4)
        lines += [f"  # {line}" for line in about] + [f"  {option.name}: {text}"]
    return "\n".join(lines)
