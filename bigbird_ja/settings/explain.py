"""The function `config`, which explains settings, and its result as a valid YAML settings file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.config_file import read_preset_purposes
from bigbird_ja.settings.resolve import ConfigSource, base_layers, given_layers, resolve_config
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import OPTIONS, get_default_of
from bigbird_ja.storage.decode import FORMAT_VERSION

_WIDTH = 79


@dataclass(frozen=True)
class ExplainedSetting:
    """One setting with its value and its source.

    Attributes:
        value: Value that a command would use.
        source: Preset, file or parameter that set the value, or "default".
        default: Default for the chosen architecture, masks and schedule.
        meaning: Description.
        unit: Unit of the value, or "".
        allowed: Range or choices.
    """

    value: Any
    source: str
    default: Any
    meaning: str
    unit: str
    allowed: str


@dataclass(frozen=True)
class ConfigResult:
    """Settings that a command would use.

    Attributes:
        settings: Settings by key.
        warnings: Warnings about unusual values.
        presets: Purpose of each preset.
    """

    settings: dict[str, ExplainedSetting]
    warnings: list[str]
    presets: dict[str, str]


def config(
    *, config: ConfigSource | None = None, overrides: Mapping[str, Any] | None = None
) -> ConfigResult:
    """Explain the settings that a command would use, and the source of each value.

    Args:
        config: name of a preset, YAML file of settings, or a `Config`; None for the defaults.
        overrides: values of settings by key.

    Raises:
        BadInput: A setting is unknown, or a value has the wrong type or is out of range.
    """
    resolved, given = resolve_config([*base_layers(config), *given_layers(overrides)])
    sources = {override.key: override.source for override in given}
    settings = {
        key: ExplainedSetting(
            value,
            sources.get(key, "default"),
            get_default_of(resolved, key),
            OPTIONS[key].meaning,
            OPTIONS[key].unit,
            OPTIONS[key].allowed,
        )
        for key, value in flatten(resolved).items()
    }
    return ConfigResult(settings, list_config_warnings(resolved), read_preset_purposes())


def format_yaml(result: ConfigResult) -> str:
    """Format the settings as YAML, with presets, meanings, ranges and sources as comments."""
    import yaml

    lines, section = ["# Presets:"], ""
    for name, purpose in result.presets.items():
        about = textwrap.wrap(f"{name}: {purpose}", _WIDTH - 4, subsequent_indent="  ")
        lines += [f"#   {line}" for line in about]
    lines.append(f"format_version: {FORMAT_VERSION}  # a file that contains every setting")
    for key, setting in result.settings.items():
        option, value, source = OPTIONS[key], setting.value, setting.source
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
