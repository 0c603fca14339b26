"""Values that were set, where each came from, and their display.

`Override` is one value of one setting with its source; the last override of a setting wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.data_facts import DATA_KEYS, PAD_ID, Data, data_entries
from bigbird_ja.settings.option import format_value, shortened
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.suggestions import nearest
from bigbird_ja.settings.values import flatten

_MAX_LENGTH = 1024  # maximum length of a text, in characters
# Keys that a file of 0.1.0, or one that states every setting, may also hold, with these values.
_UNUSED: dict[str, Any] = {
    "training.first_seq_length": None,
    "training.first_seq_length_steps": None,
    "training.optimizer_sharding": False,
    "training.gradient_sum_dtype": "float32",
    PAD_ID: 0,
}


@dataclass(frozen=True)
class Override:
    """Value of one setting that was set, with its source."""

    key: str
    value: Any
    source: str  # "preset NAME", path of a file, "--set" or "--flag_name"
    is_complete: bool = False  # whether it is of a file that states every setting

    @property
    def is_explicit(self) -> bool:
        """Tell whether it was set on the command line itself."""
        return self.source.startswith("--")

    @property
    def is_of_preset(self) -> bool:
        """Tell whether a preset set it, not the user."""
        return self.source.startswith("preset ")


def read_override(key: str, value: Any, source: str, is_complete: bool = False) -> Override | None:
    """Validate a value by the declaration of its setting; return None for a key without effect.

    Raises:
        BadInput: an unknown setting, or a value of the wrong type.
    """
    if key in _UNUSED and (value == _UNUSED[key] or (key == PAD_ID and is_complete)):
        return None
    if key not in OPTIONS:
        near = nearest(key, OPTIONS)
        raise BadInput(
            f"{source}: unknown setting {shortened(key)}{near}: `bigbird-ja config` lists them"
        )
    value = OPTIONS[key].read(value, source)
    if isinstance(value, str) and (not value.isprintable() or len(value) > _MAX_LENGTH):
        raise BadInput(f"{key}={value[:40]!r}: printable text of at most {_MAX_LENGTH} characters")
    return Override(key, value, source, is_complete)


def echo_settings(
    config: Config,
    overrides: Iterable[Override],
    uses: Sequence[str] = tuple(OPTIONS),
    run: str | None = None,
    data: Data | None = None,
) -> str:
    """Format the settings that take effect and differ from the preset or the default, a line each.

    Args:
        config: resolved config.
        overrides: values that were set, in order.
        uses: keys of the settings that the command uses.
        run: `config.yaml` of a resumed run, whose settings then replace a preset's.
        data: facts of the run's data set, if there is one.
    """
    final = flatten(config, data)
    every = list(overrides)
    last = {o.key: o for o in every}
    preset = {o.key: o for o in every if o.is_of_preset or o.source == run}
    lines = [f"  {source}" for source in dict.fromkeys(o.source for o in preset.values())]
    for key, override in last.items():
        base = preset[key].value if key in preset else OPTIONS[key].default
        by_data = key not in DATA_KEYS and override.is_of_preset and final[key] != base
        if key not in uses or (override.value == base and not by_data):
            continue
        origin = "default" if key not in preset else "run" if run else "preset"
        shown = OPTIONS[key].default_text if origin == "default" else format_value(base)
        source = "the data" if by_data else override.source
        lines.append(f"  {key} = {format_value(final[key])}  ({origin} {shown}; from {source})")
    lines += [f"  {line}" for line in decided_by_data(last.values(), data)] if data else []
    return "\n".join(lines) if lines else "  (all defaults)"


def decided_by_data(overrides: Iterable[Override], data: Data) -> list[str]:
    """Format the values of a preset or file that the data set overrides, a line each."""
    facts, said = data_entries(data), {o.key: o for o in overrides if not o.is_explicit}
    return [
        f"{key} = {format_value(facts[key])}  ({o.source} {format_value(o.value)}; from the data)"
        for key, o in said.items()
        if key in DATA_KEYS and o.value != facts[key]
    ]
