"""Explain the settings that a command would use, and where each came from.

  bigbird-ja config base-4096
  bigbird-ja config my.yaml --set model.num_layers=6
  bigbird-ja config tiny-cpu > my.yaml

Reads a preset or a file of settings (none: the defaults); writes nothing. What it prints is such a
file itself: change it and give it to --config. What the data set fixes is null until there is one.
Takes a moment. docs/settings.md lists all settings with their ranges.
"""

import textwrap
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.settings.schema import OPTIONS

EXAMPLE = "bigbird-ja config base-4096 --set model.num_layers=6"
SETTINGS = tuple(OPTIONS)
POSITIONAL = "config"

_WIDTH = 79


def define_flags(flags: Flags) -> None:
    """The command has no flags of its own."""


def run(args: Args) -> dict[str, Any]:
    """Prints the settings."""
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.checks import config_warnings
    from bigbird_ja.settings.preset_files import preset_purposes
    from bigbird_ja.settings.resolve import resolve_config
    from bigbird_ja.settings.values import flatten
    from bigbird_ja.storage.decode import FORMAT_VERSION

    config, overrides = resolve_config(args.config, args.set)
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
    for warning in warnings:
        log(f"warning: {warning}")
    return {"settings": settings, "warnings": warnings, "presets": presets}


def _as_yaml(settings: dict[str, dict[str, Any]]) -> str:
    """The settings as a file for --config, meaning and source of each in a comment above it."""
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
        about = textwrap.wrap(f"{option.meaning} ({source})", _WIDTH - 4)
        lines += [f"  # {line}" for line in about] + [f"  {option.name}: {text}"]
    return "\n".join(lines)
