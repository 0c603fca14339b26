"""What a command says about its settings before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bigbird_ja.settings.option import format_value
from bigbird_ja.settings.resolve import Override
from bigbird_ja.settings.schema import FIXED_BY_DATA, OPTIONS, SECTIONS, Config
from bigbird_ja.settings.suggestions import is_used
from bigbird_ja.settings.values import flatten


def echo(
    config: Config,
    overrides: Iterable[Override],
    uses: Sequence[str] = SECTIONS,
    run: str | None = None,
) -> str:
    """One line per setting that takes effect and differs from the preset, or from the default.

    Args:
        config: the resolved config.
        overrides: what was set, in order.
        uses: sections and keys that the command uses; others take no effect.
        run: the `config.yaml` of a run that goes on with its settings, which then stand in for a
            preset's.
    """
    final = flatten(config)
    last: dict[str, Override] = {}
    preset: dict[str, Override] = {}
    for override in overrides:
        last[override.key] = override
        if override.is_of_preset or override.source == run:
            preset[override.key] = override
    lines = [f"  {source}" for source in dict.fromkeys(o.source for o in preset.values())]
    for key, override in last.items():
        base = preset[key].value if key in preset else OPTIONS[key].default
        by_data = key not in FIXED_BY_DATA and override.is_of_preset and final[key] != base
        if not is_used(key, uses) or (override.value == base and not by_data):
            continue
        whose = "default" if key not in preset else "run" if run else "preset"
        shown = OPTIONS[key].default_text if whose == "default" else format_value(base)
        source = "the data" if by_data else override.source
        lines.append(f"  {key} = {format_value(final[key])}  ({whose} {shown}; from {source})")
    return "\n".join(lines) if lines else "  (all defaults)"
