"""Explain the settings that a command would use, and the source of each value.

  bigbird-ja config base-4096
  bigbird-ja config my.yaml --set model.num_layers=6
  bigbird-ja config tiny-cpu > my.yaml

Reads a preset or a file of settings (none: the defaults); writes nothing. The output is a file of
settings: edit it and pass it to --config. Settings that the data set determines are null. Takes a
moment.
"""

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.settings.schema import OPTIONS

EXAMPLE = "bigbird-ja config base-4096 --set model.num_layers=6"
SETTINGS = tuple(OPTIONS)
POSITIONAL = "config"


def define_flags(flags: Flags) -> None:
    """Define no flags: the command has only the common ones."""


def run(args: Args) -> dict[str, Any]:
    """Print the settings."""
    from bigbird_ja.settings.explain import explain

    return explain(args.config, args.set)
