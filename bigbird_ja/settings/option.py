"""What one option is: its type, default, range, choices, unit and meaning, declared once.

A setting is declared in its field of `settings.schema`, a flag that is no setting in its command's
`define_flags`. Everything else about it (validation, flags, `--help`, `bigbird-ja config`, the
reference of all settings, the echo) is derived from that declaration.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process.errors import BadInput

INT64_MAX = 2**63 - 1
LONGEST_RUN = 10**12  # steps: more than anything trains for, and exact in float64
_ENDLESS = 10**6  # an upper bound from here on is there against nonsense, and not shown


@dataclass(frozen=True)
class Option:
    """One option. Bounds belong to the range unless `above` or `below` states them."""

    key: str  # section.name of a setting, or a flag's name
    kind: type  # int, float, bool or str
    default: Any
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None  # excluded lower bound
    below: float | None = None  # excluded upper bound
    choices: tuple[str, ...] = ()
    none: str = ""  # what None stands for, where None is a value
    fixed_by_data: bool = False  # of a run, its data set's manifest says it
    changeable: bool = False  # a MODEL_DIR accepts another value when it goes on
    # "section.key=value|value", several joined by " & ": it has no effect where one is otherwise.
    only_with: str = ""
    needs_flag: str = ""  # a flag, or flag=value; it has no effect in a command without it
    filled: bool = False  # a text that cannot be empty
    # Of flags alone:
    setting: str = ""  # the setting that it sets
    form: str = ""  # what `--help` writes for its value, where that is not the type
    group: str = ""  # the heading of `--help` under which it stands
    many: bool = False  # repeatable
    commas: bool = False  # values separated by commas
    required: bool = False
    unless: tuple[str, ...] = ()  # flags with which a required one is not
    needs: tuple[str, ...] = ()  # flags, or flag=value, of which one must be there too
    excludes: tuple[str, ...] = ()  # flags that it cannot go with
    uses: tuple[str, ...] = ()  # of --set and --config: the sections and keys that have an effect

    @property
    def section(self) -> str:
        """The part of a setting's key before the dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """The part of a setting's key after the dot, which is also its flag's name."""
        return self.key.rpartition(".")[2]

    @property
    def conditions(self) -> list[tuple[str, list[str]]]:
        """`only_with` as keys with the values that they must have."""
        parts = [part.partition("=") for part in self.only_with.split(" & ") if part]
        return [(key, values.split("|")) for key, _, values in parts]

    @property
    def allowed(self) -> str:
        """The range or the choices in words; empty for a switch or free text."""
        if self.choices:
            return " | ".join(self.choices)
        least, most = self._bounds
        if least is None or most is None:
            return ""
        if least <= -(2**63):
            return "any whole number of 64 bits"
        lower = f"above {self.above:g}" if self.above is not None else _bound(least)
        if most >= _ENDLESS:
            return lower if self.above is not None else f"at least {lower}"
        upper = f"below {self.below:g}" if self.below is not None else f"to {_bound(most)}"
        return f"{lower} {upper}"

    @property
    def _bounds(self) -> tuple[float | None, float | None]:
        return (
            self.low if self.above is None else self.above,
            self.high if self.below is None else self.below,
        )

    @property
    def _range(self) -> str:
        """Both bounds, for a message."""
        excluded = [_bound(x) for x in (self.above, self.below) if x is not None]
        words = f" ({' and '.join(excluded)} excluded)" if excluded else ""
        return " and ".join(map(_bound, self._bounds)) + words

    @property
    def default_text(self) -> str:
        """The default for people; for None, what it stands for."""
        return (self.none or "none") if self.default is None else format_value(self.default)

    def read(self, value: Any, source: str) -> Any:
        """A value of the option's type from YAML or from the text of a flag, within its range.

        Args:
            value: None, bool, int, float or str.
            source: where it was written, for the message: a file, `--set` or a flag.

        Raises:
            BadInput: another type, not finite, out of range, or no choice.
        """
        if value is None and self.none:
            return None
        converted = _convert(value, self.kind)
        if converted is None:
            prefix, kind = f"{source}: " if source else "", self.kind.__name__
            raise BadInput(f"{prefix}{self._written(value)} is not a valid {kind}")
        if self.filled and not converted:
            raise BadInput(f"{self.key} is empty: give a value, or leave it out")
        self.check(converted, source)
        return converted

    def check(self, value: Any, source: str = "") -> None:
        """Checks range and choices of a value that has the option's type.

        Raises:
            BadInput: naming the option and what is allowed.
        """
        if value is None:
            return
        prefix = f"{source}: " if source else ""
        if self.choices and value not in self.choices:
            raise BadInput(
                f"{prefix}{self._written(value)}{nearest(str(value), self.choices)}:"
                f" one of {', '.join(self.choices)}"
            )
        if self.kind in (int, float) and not self._is_inside(value):
            raise BadInput(f"{prefix}{self._written(value)}: must lie between {self._range}")

    def _written(self, value: Any) -> str:
        """`--flag value` or `key=value`, as a person writes it."""
        return f"{self.key}{' ' if self.key.startswith('--') else '='}{shortened(value)}"

    def _is_inside(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def option(default: Any, help: str, **declared: Any) -> Any:
    """A dataclass field that declares an option; `declared` are fields of `Option`."""
    return dataclasses.field(default=default, metadata={"help": help, **declared})


def options_of(config_class: type) -> dict[str, Option]:
    """`section.key` -> option, in the order of definition, from a dataclass of sections."""
    options = {}
    for section, kind in typing.get_type_hints(config_class).items():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            key, hint = f"{section}.{field.name}", hints[field.name]
            kinds = typing.get_args(hint)  # of `int | None`
            options[key] = Option(key, kinds[0] if kinds else hint, field.default, **field.metadata)
    return options


def _convert(value: Any, kind: type) -> Any:
    """The value as `kind`, or None where it is none: 2.0 is an int, 1e-4 as text a float."""
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else None
    if kind is str:
        return value if isinstance(value, str) else None
    if isinstance(value, str):  # a flag, or 1e-4, which YAML 1.1 reads as text
        value = _number(value)
    if not isinstance(value, (int, float)):
        return None
    if kind is float:
        return float(value) if isinstance(value, float) or abs(value) < 1e300 else math.inf
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value


def _number(text: str) -> int | float | None:
    if len(text) > 100 or not text.isascii() or "_" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def format_value(value: Any) -> str:
    """A value as it is written in YAML and on the command line; numbers in full."""
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
    """A value for a message, which need not be long or a number that Python prints."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'a' or 'b'?)"` for the nearest known names, or an empty string."""
    return suggestion(near(name, known))


def near(name: str, known: Iterable[str]) -> list[str]:
    """At most two known names of about the same letters after the section, the likeliest first."""
    by_name: dict[str, list[str]] = {}
    for key in known:
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    close = difflib.get_close_matches(name.rpartition(".")[2], by_name)
    return [key for one in close for key in by_name[one]][:2]


def is_used(key: str, uses: Sequence[str]) -> bool:
    """Whether a command that uses these sections and keys uses this setting."""
    return key in uses or key.partition(".")[0] in uses


def in_words(uses: Sequence[str], known: Iterable[str]) -> str:
    """The sections and keys that a command uses: `model.*` for a whole section, else its keys."""
    sections: dict[str, list[str]] = {}
    for key in known:
        sections.setdefault(key.partition(".")[0], []).append(key)
    words = []
    for section, keys in sections.items():
        used = [key for key in keys if is_used(key, uses)]
        words += [f"{section}.*"] if used == keys else used
    return ", ".join(words)


def suggestion(keys: list[str]) -> str:
    """`" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""
