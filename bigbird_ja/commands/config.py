"""Explain the settings that a command would use, and the source of each value.

  bigbird-ja config base-4096
  bigbird-ja config my.yaml --set model.num_layers=6
  bigbird-ja config tiny-cpu > my.yaml

Reads a preset or a file of settings. Without either, it shows the defaults. Writes nothing. The
output is a file of settings, which you can edit and pass to --config. Settings that the data set
determines are null. Takes a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.cli.spelling import spell_flags
from bigbird_ja.settings.variants import OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.settings.explain import ConfigResult

EXAMPLE = "bigbird-ja config base-4096 --set model.num_layers=6"
SETTINGS = tuple(OPTIONS)
POSITIONAL = "config"


def define_flags(flags: Flags) -> None:
    """Define no flags: the command has only the common ones."""


def run(args: Args) -> ConfigResult:
    """Print each setting with its source. A parameter that is a source is printed as its flag."""
    import dataclasses

    from bigbird_ja.process.console import warn
    from bigbird_ja.settings import explain

    result = explain.config(config=args.config, overrides=read_sets(args.set))
    for key, setting in result.settings.items():
        source = spell_flags(setting.source, set(args))
        result.settings[key] = dataclasses.replace(setting, source=source)
    print(explain.format_yaml(result))
    warn(result.warnings)
    return result
