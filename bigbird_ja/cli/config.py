"""Config that a command's flags specify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args
from bigbird_ja.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.settings.provenance import Layer, Override
    from bigbird_ja.settings.schema import Config


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """Read the values of `--set section.key=value` as YAML, by key; the last one of a key wins.

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


def setting_arguments(args: Args) -> dict[str, Any]:
    """Return the values of the flags that set one setting, by the setting's key."""
    return {
        command_flags.declared(flag).setting: flag.value
        for flag in command_flags.own_flags(args)
        if command_flags.declared(flag).setting and flag.value is not None
    }


def setting_parameters(args: Args) -> dict[str, Any]:
    """Return `config`, `overrides` and the parameters that set one setting, for a function."""
    flags = command_flags.own_flags(args)
    named = {flag.name: flag.value for flag in flags if command_flags.declared(flag).setting}
    return {"config": args.config, "overrides": read_sets(args.set), **named}


def resolve(args: Args, adopted: Iterable[Layer] = ()) -> tuple[Config, list[Override]]:
    """Resolve the config that a command's flags specify; see `resolve_config`.

    Raises:
        BadInput: As in `resolve_config`; or a setting has no effect without a missing flag.
    """
    from bigbird_ja.settings.resolve import (
        base_layers,
        given_layers,
        refuse_settings,
        resolve_config,
    )
    from bigbird_ja.settings.schema import EVALUATION_KEYS

    uses = command_flags.declared(args["set"]).uses
    layers = [
        *base_layers(args.config or None),
        *adopted,
        *given_layers(read_sets(args.set), setting_arguments(args)),
    ]
    config, overrides = resolve_config(layers, uses)
    if "mode" in args and args.mode != "train_and_eval":
        refuse_settings(overrides, EVALUATION_KEYS, "`mode` train_and_eval")
    if "use_tpu" in args and not args.use_tpu:
        refuse_settings(overrides, ["tpu.name"], "`use_tpu`")
    return config, overrides
