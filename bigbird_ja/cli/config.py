"""Config that a command's flags specify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args
from bigbird_ja.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.settings.provenance import Override
    from bigbird_ja.settings.schema import Config


def resolve(
    args: Args, adopted: Iterable[Override] = (), config_name: str | None = None
) -> tuple[Config, list[Override]]:
    """Resolve the config that a command's flags specify; see `resolve_config`.

    If `--config` is repeatable, `config_name` is the value to use.

    Raises:
        BadInput: as in `resolve_config`; or a setting has no effect without a missing flag.
    """
    from bigbird_ja.settings.provenance import Override
    from bigbird_ja.settings.resolve import resolve_config

    given = [
        Override(command_flags.declared(flag).setting, flag.value, f"--{flag.name}")
        for flag in command_flags.own_flags(args)
        if command_flags.declared(flag).setting and flag.value is not None
    ]
    uses = command_flags.declared(args["set"]).uses
    name = config_name or args.config or None
    config, overrides = resolve_config(name, args.set, given, uses, adopted)
    _check_initializer(config, overrides)
    for override in overrides:
        need = OPTIONS[override.key].needs_flag
        if override.source != "--set" or not need:
            continue
        if need.partition("=")[0] not in args:
            raise BadInput(f"--set {override.key} has no effect in this command: leave it out")
        command_flags.check_given(args, f"--set {override.key}", need)
    return config, overrides


def _check_initializer(config: Config, overrides: Iterable[Override]) -> None:
    """Refuse `subspaces` for a ModernBERT; a run that has begun with it continues.

    Raises:
        BadInput: it is set for a new run.
    """
    last = {override.key: override for override in overrides}.get("model.initializer")
    is_new = last is not None and last.value == "subspaces" and not last.is_complete
    if is_new and config.model.architecture == "modernbert":
        raise BadInput(
            "model.initializer=subspaces has no effect with model.architecture=modernbert: leave it"
            " out"
        )
