"""Types, ranges and meanings of settings and flags, and the validation of their values.

A setting is declared by its field in `settings.schema`, any other flag in its command's
`define_flags` (`cli.command_flags`). Validation, `--help`, `bigbird-ja config`, the site's page
and the echo follow from the declaration.
"""

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.suggestions import nearest

INT64_MAX = 2**63 - 1
MAX_STEPS = 10**12  # steps: more than anything trains for, and exact in float64
_ENDLESS = 10**6  # a larger upper bound only excludes nonsense, and is not shown


@dataclass(frozen=True)
class Option:
    """Setting or flag that a user can give, with an inclusive range from `low` to `high`."""

    key: str  # section.name of a setting, or --name of a flag
    kind: type  # int, float, bool or str
    default: Any
    meaning: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    none: str = ""  # meaning of None, if None is allowed
    filled: bool = False  # whether a text must not be empty

    @property
    def allowed(self) -> str:
        """Format the allowed range or choices; empty for a switch or free text."""
        return " | ".join(self.choices) or self._range(_ENDLESS)

    @property
    def values(self) -> str:
        """Format the unit, and the allowed range or choices."""
        return ", ".join(filter(None, (self.unit, self.allowed)))

    def _range(self, endless: float) -> str:
        """Format the range, without an upper bound from `endless` on."""
        if self.low is None or self.high is None:
            return ""
        if self.low <= -(2**63):
            return "any whole number of 64 bits"
        lower = _bound(self.low)
        return f"at least {lower}" if self.high >= endless else f"{lower} to {_bound(self.high)}"

    @property
    def default_text(self) -> str:
        """Format the default; for None, its meaning."""
        return (self.none or "none") if self.default is None else format_value(self.default)

    def read(self, value: Any, source: str = "") -> Any:
        """Return a value from YAML or from a flag's text as the option's type, within its range.

        Args:
            value: None, bool, int, float or str.
            source: file or `--set`, for the message.

        Raises:
            BadInput: another type, not finite, out of range, or not one of the choices.
        """
        if value is None and self.none:
            return None
        prefix = f"{source}: " if source else ""
        written = f"{prefix}{self.key}{' ' if self.key.startswith('--') else '='}{shortened(value)}"
        try:
            # As msgspec does: 2.0 is an int, 1e-4 as text a float, true and 1 a switch.
            read: Any = msgspec.convert(value, self.kind, strict=False)
        except msgspec.ValidationError as error:
            raise BadInput(f"{written} is not a valid {self.kind.__name__}") from error
        if self.filled and not read:
            raise BadInput(f"{self.key} is empty: give a value, or leave it out")
        if self.choices and read not in self.choices:
            near = nearest(str(read), self.choices)
            raise BadInput(f"{written}{near}: one of {', '.join(self.choices)}")
        # msgspec's own bounds end at 63 bits, and let NaN pass.
        if self.low is not None and self.high is not None and not self.low <= read <= self.high:
            raise BadInput(f"{written}: must be {self._range(math.inf)}")
        return read


@dataclass(frozen=True)
class Setting(Option):
    """Setting of a run, `section.name`."""

    by: tuple[str, ...] = ()  # commands in which it has an effect
    # Changes that a resumed run accepts. "free": any; "logged": one on the command line, recorded
    # as an event; "fixed": none.
    change: str = "fixed"
    # Conditions without which it has no effect: values by the key of another setting.
    only_with: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs_flag: str = ""  # flag, or flag=value, without which it has no effect in a command
    modernbert: Any = None  # default with model.architecture=modernbert, if another

    @property
    def section(self) -> str:
        """Return the part of the key before the dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Return the part of the key after the dot, which is also its flag's name."""
        return self.key.partition(".")[2]


def setting(
    default: Any,
    meaning: str,
    span: tuple[float, float] | None = None,
    unit: str = "",
    **declared: Any,
) -> Any:
    """Declare a field that is a setting.

    Args:
        default: value if none is given.
        meaning: noun phrase for `--help`.
        span: lowest and highest value, unless the field's `Annotated` type states them.
        unit: unit of the value, with `span`.
        declared: other fields of `Setting`. Common ones of a section are declared by its field in
            `Config`.
    """
    if span is not None:
        declared |= {"low": span[0], "high": span[1], "unit": unit}
    return field(default=default, metadata={"meaning": meaning, **declared})


def settings_of(config_class: type) -> dict[str, Setting]:
    """Collect the settings by key, in the order of definition, from a dataclass of sections."""
    settings = {}
    kinds = typing.get_type_hints(config_class)
    for section in dataclasses.fields(config_class):
        hints = typing.get_type_hints(kinds[section.name], include_extras=True)
        for declared in dataclasses.fields(kinds[section.name]):
            key = f"{section.name}.{declared.name}"
            kind, bounds = _kind(hints[declared.name])
            about = {**section.metadata, **bounds, **declared.metadata}
            settings[key] = Setting(key, kind, declared.default, **about)
    return settings


def _kind(hint: Any) -> tuple[type, dict[str, Any]]:
    """Split a field's type into the type of a value, and its range or choices."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return str, {"choices": inner}
    if origin in (typing.Union, types.UnionType):  # of `X | None`
        return _kind(inner[0])
    if origin is not Annotated:
        return hint, {}
    (bounds,) = hint.__metadata__
    return inner[0], {"low": bounds.ge, "high": bounds.le, **(bounds.extra or {})}


def format_value(value: Any) -> str:
    """Format a value as in YAML and on the command line; numbers in full."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and 1e3 <= abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value))
    return "null" if value is None else str(value)


def _bound(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else format_value(value)


def shortened(value: Any) -> str:
    """Format a value for a message; long texts and huge numbers are cut."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def in_words(uses: Sequence[str], known: Iterable[str]) -> str:
    """Format the settings that a command uses: `model.*` for a whole section, else its keys."""
    words = []
    for section, group in itertools.groupby(known, lambda key: key.partition(".")[0]):
        keys = list(group)
        used = [key for key in keys if key in uses]
        words += [f"{section}.*"] if used == keys else used
    return ", ".join(words)
