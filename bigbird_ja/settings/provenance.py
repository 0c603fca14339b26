"""Values of settings with their sources, and functions that format them for the user.

A `Layer` is a source with its values. The last layer that contains a setting has priority. An
`Override` is one value of one setting with its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.data_facts import DATA_KEYS, Data, get_data_entries
from bigbird_ja.settings.option import format_value, shorten
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.suggestions import suggest_nearest
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import OPTIONS, get_default_of


class Layer(NamedTuple):
    """Values of settings from one source.

    Attributes:
        source: "preset NAME", the path of a file, or a parameter's name in backticks.
        values: Values of settings by key.
        is_complete: Whether the source contains all settings. A value from such a source is not
            necessarily a choice of the user.
    """

    source: str
    values: Mapping[str, Any]
    is_complete: bool = False


@dataclass(frozen=True)
class Override:
    """Value of one setting with its source."""

    key: str
    value: Any
    source: str
    is_complete: bool = False

    @property
    def name(self) -> str:
        """Name of the setting in its section."""
        return self.key.partition(".")[2]

    @property
    def is_explicit(self) -> bool:
        """Whether a parameter of the command set the value."""
        return self.source.startswith("`")

    @property
    def is_of_preset(self) -> bool:
        """Whether a preset set the value."""
        return self.source.startswith("preset ")


def read_layer(layer: Layer) -> list[Override]:
    """Validate and convert the values of a layer.

    Raises:
        BadInput: A setting is unknown, or a value has the wrong type or is out of range.
    """
    source, values, is_complete = layer
    for key in values:
        if key not in OPTIONS:
            raise BadInput(
                f"{source}: unknown setting {shorten(key)}{suggest_nearest(str(key), OPTIONS)};"
                " `bigbird-ja config` lists all settings"
            )
    return [
        Override(key, OPTIONS[key].read(value, source), source, is_complete)
        for key, value in values.items()
    ]


def echo_settings(
    config: Config,
    overrides: Iterable[Override],
    uses: Sequence[str] = tuple(OPTIONS),
    run: str | None = None,
    data: Data | None = None,
) -> str:
    """Format the settings that differ from the preset or the default, one line each.

    Args:
        config: resolved config.
        overrides: values that were set, in order.
        uses: keys of the settings that the command uses; others are not shown.
        run: path of a resumed run's `config.yaml`, or None. If it is given, values are compared
            with this file's values instead of a preset's.
        data: facts of the run's data set, if there is one.
    """
    final = flatten(config, data)
    every = list(overrides)
    last = {o.key: o for o in every}
    preset = {o.key: o for o in every if o.is_of_preset or o.source == run}
    lines = [f"  {source}" for source in dict.fromkeys(o.source for o in preset.values())]
    for key, override in last.items():
        base = preset[key].value if key in preset else get_default_of(config, key)
        by_data = key not in DATA_KEYS and override.is_of_preset and final[key] != base
        if key not in uses or (override.value == base and not by_data):
            continue
        origin = "default" if key not in preset else "run" if run else "preset"
        shown = (base is None and OPTIONS[key].none) or format_value(base)
        source = "the data" if by_data else override.source
        lines.append(f"  {key} = {format_value(final[key])}  ({origin} {shown}; from {source})")
    lines += [f"  {line}" for line in list_decided_by_data(last.values(), data)] if data else []
    return "\n".join(lines) if lines else "  (all defaults)"


def list_decided_by_data(overrides: Iterable[Override], data: Data) -> list[str]:
    """Format the settings whose value in a preset or file is replaced by the data set's value."""
    facts, said = get_data_entries(data), {o.key: o for o in overrides if not o.is_explicit}
    return [
        f"{key} = {format_value(facts[key])}  ({o.source} {format_value(o.value)}; from the data)"
        for key, o in said.items()
        if key in DATA_KEYS and o.value != facts[key]
    ]
