"""Options: settings and flags, as they are displayed in `--help`, the documentation and messages.

Settings are declared by the types in `settings.schema`, other flags by a command's `define_flags`.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.suggestions import suggest_nearest

# Upper bounds of at least this value are not shown, since no run reaches them.
_ENDLESS = 10**6


@dataclass(frozen=True)
class Option:
    """Setting or flag.

    Attributes:
        key: section.name of a setting, or --name of a flag.
        type: Annotated type of the value, for msgspec.
        default: Default value.
        by: Commands in which a setting has an effect.
        change: Changes that a resumed run accepts: "free" (all), "logged" (explicit ones, which are
            logged), or "fixed" (none).
        only_with: Required values of other settings, by key. The setting exists only if the other
            settings have such values.
    """

    key: str
    type: Any
    default: Any
    by: tuple[str, ...] = ()
    change: str = "fixed"
    only_with: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """Part of a setting's key before the dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Part of a setting's key after the dot."""
        return self.key.partition(".")[2]

    @property
    def kind(self) -> type:
        """Type of a value that is not None: int, float, bool or str."""
        return str if self.choices else _strip_annotations(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed choices, or () if the type is not a list of choices."""
        return get_choices(self.type)

    @property
    def span(self) -> tuple[float, float] | None:
        """Minimum and maximum of a number, or None without a range."""
        for meta in list_metas(self.type):
            if meta.ge is not None and meta.le is not None:
                return meta.ge, meta.le
        return None

    @property
    def meaning(self) -> str:
        """Description as a noun phrase."""
        return next((m.description for m in reversed(list_metas(self.type)) if m.description), "")

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return str(collect_details(self.type).get("unit", ""))

    @property
    def none(self) -> str:
        """Meaning of None, or "" if None is not allowed."""
        return str(collect_details(self.type).get("none", ""))

    @property
    def filled(self) -> bool:
        """Whether the value is a text that must not be empty."""
        return any(meta.min_length for meta in list_metas(self.type))

    @property
    def allowed(self) -> str:
        """Allowed range or choices, or "" for a switch or a free text."""
        return " | ".join(self.choices) or self._format_range(_ENDLESS)

    @property
    def values(self) -> str:
        """Unit, and the allowed range or choices."""
        return ", ".join(filter(None, (self.unit, self.allowed)))

    def _format_range(self, endless: float) -> str:
        """Format the allowed range. An upper bound of at least `endless` is not shown."""
        if self.span is None:
            return ""
        low, high = self.span
        if low <= -(2**63):
            return "any whole number of 64 bits"
        return (
            f"at least {_format_bound(low)}"
            if high >= endless
            else f"{_format_bound(low)} to {_format_bound(high)}"
        )

    @property
    def default_text(self) -> str:
        """Default value as a text, or the meaning of None if the default is None."""
        return (self.none or "none") if self.default is None else format_value(self.default)

    def read(self, value: Any, source: str = "") -> Any:
        """Convert a value from YAML or from a flag's text to the option's type.

        Args:
            value: None, bool, int, float or str.
            source: file or parameter, for the message.

        Raises:
            BadInput: The value has the wrong type, is not finite or out of range, or is not one of
                the choices.
        """
        try:
            # With `strict=False`, msgspec converts 2.0 to int, "1e-4" to float, and 1 to bool.
            return msgspec.convert(value, self.type, strict=False)
        except msgspec.ValidationError as error:
            written = f"{self.key}{' ' if self.key.startswith('--') else '='}{shorten(value)}"
            where = f"{source}: " if source else ""
            raise BadInput(f"{where}{written}{self._format_refusal(value)}") from error

    def _format_refusal(self, value: Any) -> str:
        """Format the reason why a value is invalid."""
        if self.choices:
            hint = suggest_nearest(str(value), self.choices)
            return f"{hint}: must be one of {', '.join(self.choices)}"
        try:
            msgspec.convert(value, self.kind, strict=False)
        except msgspec.ValidationError:
            return f" is not a valid {self.kind.__name__}"
        if self.kind is not str:
            return f": must be {self._format_range(math.inf)}"
        if value == "":
            return " is empty: set a value, or remove it"
        return f": must be {collect_details(self.type)['pattern']}"


def list_metas(hint: Any) -> list[msgspec.Meta]:
    """List the `msgspec.Meta` annotations of a type and of its parts, the innermost first."""
    inner = [meta for part in typing.get_args(hint) for meta in list_metas(part)]
    own = getattr(hint, "__metadata__", ())
    return [*(list_metas(hint.__origin__) if own else inner), *own]


def collect_details(hint: Any) -> dict[str, Any]:
    """Return the values that `schema.about` has added to a type, such as the unit."""
    return {key: value for meta in list_metas(hint) for key, value in (meta.extra or {}).items()}


def get_choices(hint: Any) -> tuple[str, ...]:
    """Return the choices of a type, or () if the type is not a `Literal`."""
    bare = _strip_annotations(hint)
    return typing.get_args(bare) if typing.get_origin(bare) is typing.Literal else ()


def _strip_annotations(hint: Any) -> Any:
    """Return a type without annotations and without None."""
    if typing.get_origin(hint) is Annotated:
        return _strip_annotations(hint.__origin__)
    if type(None) in typing.get_args(hint):
        return _strip_annotations(typing.get_args(hint)[0])
    return hint


def format_value(value: Any) -> str:
    """Format a value as in YAML and on the command line, with all digits of a number."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and 1e3 <= abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value))
    return "null" if value is None else str(value)


def _format_bound(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else format_value(value)


def shorten(value: Any) -> str:
    """Format a value for a message, and truncate long texts and huge numbers."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def summarize_keys(uses: Sequence[str], known: Iterable[str]) -> str:
    """Format the settings that a command uses: keys, or `model.*` for a complete section."""
    words = []
    for section, group in itertools.groupby(known, lambda key: key.partition(".")[0]):
        keys = list(group)
        used = [key for key in keys if key in uses]
        words += [f"{section}.*"] if used == keys else used
    return ", ".join(words)
