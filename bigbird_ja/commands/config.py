"""the settings that a command would use, each with its meaning and where it came from

  bigbird-ja config base-4096
  bigbird-ja config my.yaml --set model.num_layers=6 --command pretrain
  bigbird-ja config tiny-cpu > my.yaml

Reads a preset or a file of settings (none: the defaults); writes nothing. What it prints is such a
file itself: change it and give it to --config. What the data set fixes is null until there is one.
Takes a moment. docs/settings.md lists all settings with their ranges.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import OPTIONS, SECTIONS

if TYPE_CHECKING:
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja config base-4096 --set model.num_layers=6"
SETTINGS = SECTIONS
POSITIONAL = "config"

COMMANDS = ("tokenize", "make-data", "plan", "preflight", "pretrain", "launch")
_WIDTH = 44  # where the comments begin


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.choice(
        "command", COMMANDS, "Shows only what this command uses.", default=None, none="all settings"
    )


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Prints the settings."""
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.option import is_used
    from bigbird_ja.settings.resolve import preset_names, resolve_config
    from bigbird_ja.settings.values import config_warnings
    from bigbird_ja.storage.decode import FORMAT_VERSION

    uses = settings_of(args.command) if args.command else SECTIONS
    config, overrides = resolve_config(args.config, args.set, uses=uses)
    sources = {override.key: override.source for override in overrides}
    shown = [key for key in OPTIONS if is_used(key, uses)]
    print(f"# Presets: {', '.join(preset_names())}.")
    print(f"format_version: {FORMAT_VERSION}  # a file that states every setting")
    print(as_yaml(config, shown, sources))
    found = config_warnings(config)
    for warning in found:
        log(f"warning: {warning}")
    return {"settings": _as_json(config, shown, sources), "warnings": found}


def settings_of(command: str) -> tuple[str, ...]:
    """The sections and single keys that a command uses."""
    module = importlib.import_module(f"bigbird_ja.commands.{command.replace('-', '_')}")
    return module.SETTINGS


def as_yaml(config: Config, keys: list[str], sources: dict[str, str]) -> str:
    """The settings as a file for --config, with a comment on each.

    Args:
        config: what to show.
        keys: which settings.
        sources: where those come from that are not at their default.
    """
    import yaml

    from bigbird_ja.settings.values import get_value

    lines, section = [], ""
    for key in keys:
        option = OPTIONS[key]
        if option.section != section:
            section = option.section
            lines.append(f"{section}:")
        value = get_value(config, key)
        text = "null" if value is None else yaml.safe_dump(value).split("\n")[0]
        source = sources.get(key, "default" if value is not None else option.none)
        line = f"  {option.name}: {text}"
        lines.append(f"{line:<{_WIDTH}}  # {option.help} ({source})")
    return "\n".join(lines)


def _as_json(config: Config, keys: list[str], sources: dict[str, str]) -> dict[str, Any]:
    from bigbird_ja.settings.values import get_value

    return {
        key: {
            "value": get_value(config, key),
            "source": sources.get(key, "default"),
            "default": OPTIONS[key].default,
            "meaning": OPTIONS[key].help,
            "unit": OPTIONS[key].unit,
            "allowed": OPTIONS[key].allowed,
        }
        for key in keys
    }
