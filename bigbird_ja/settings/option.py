"""Describe one option of a command or a setting, read its value, and word it for people.

A setting is declared in its field of `settings.schema`, a flag that is no setting in its command's
`define_flags`. Everything else about it (validation, flags, `--help`, `bigbird-ja config`, the
reference of all settings, the echo) is derived from that declaration.
"""

import ast
import difflib
import functools
import inspect
import itertools
import math
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bigbird_ja.process.errors import BadInput

INT64_MAX = 2**63 - 1
LONGEST_RUN = 10**12  # steps: more than anything trains for, and exact in float64
_ENDLESS = 10**6  # an upper bound from here on is there against nonsense, and not shown

# Names of other trainers for our settings and flags.
_ELSEWHERE = {
    "lr": "learning_rate",
    **dict.fromkeys(("batch_size", "train_batch_size"), "global_batch_size"),
    **dict.fromkeys(("steps", "max_steps"), "num_train_steps"),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), "num_train_steps"),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len"), "seq_length"),
}
# Flags that people know from other trainers or from 0.1.0, where none of ours is meant.
EXPECTED = {
    **dict.fromkeys(
        ("resume", "resume_from", "resume_from_checkpoint"),
        "the same command again goes on by itself",
    ),
    **dict.fromkeys(
        ("gpu", "gpus", "use_gpu", "cuda", "device"),
        "a GPU is used without a flag, where JAX finds one: `bigbird-ja doctor` says",
    ),
    "continue_with": "--set training.KEY=VALUE does so on a run that goes on",
    "probe": "`python -m scripts.probe` has it",
    "watch": "`pretrain --mode train_and_eval` evaluates, `report` again draws the page",
    "plot": "the table and --json have its figures",
}


@dataclass(frozen=True)
class Option:
    """One option. Bounds belong to the range unless `above` or `below` states them."""

    key: str  # section.name of a setting, or a flag's name
    kind: type  # int, float, bool or str
    default: Any
    help: str = ""  # of a flag; a setting is explained below its field
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None  # excluded lower bound
    below: float | None = None  # excluded upper bound
    choices: tuple[str, ...] = ()
    none: str = ""  # the meaning of None, where None is a value
    filled: bool = False  # a text that cannot be empty
    # Of settings alone:
    declared_in: type | None = None  # the struct of its field
    by: tuple[str, ...] = ()  # the commands that it has an effect in
    # Values that a MODEL_DIR accepts when it goes on: "free": any; "logged": one that the command
    # line sets, recorded as an event; "fixed": the same.
    change: str = "fixed"
    # "section.key=value|value", several joined by " & ": it has no effect where one is otherwise.
    only_with: str = ""
    needs_flag: str = ""  # a flag, or flag=value; it has no effect in a command without it
    modernbert: Any = None  # another default, where model.architecture=modernbert
    # Of flags alone:
    setting: str = ""  # the setting that it sets
    form: str = ""  # its value's form in `--help`, where that is not the type
    group: str = ""  # the heading of `--help` under which it stands
    many: bool = False  # repeatable
    commas: bool = False  # values separated by commas
    required: bool = False
    unless: str = ""  # a flag with which a required one is not
    needs: str = ""  # a flag, or flag=value, that must be there too
    excludes: tuple[str, ...] = ()  # flags that it cannot go with
    uses: tuple[str, ...] = ()  # of --set and --config: the settings that have an effect

    @property
    def section(self) -> str:
        """Return the part of a setting's key before the dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Return the part of a setting's key after the dot, which is also its flag's name."""
        return self.key.rpartition(".")[2]

    @property
    def meaning(self) -> str:
        """Return what it is for: a flag's help, or the text under the field of a setting."""
        if self.declared_in is None:
            return self.help
        field = (self.setting or self.key).rpartition(".")[2]
        texts = _texts_of_fields(self.declared_in.__module__)
        return texts.get((self.declared_in.__name__, field), "")

    @property
    def conditions(self) -> list[tuple[str, list[str]]]:
        """Return `only_with` as keys with the values that they must have."""
        parts = [part.partition("=") for part in self.only_with.split(" & ") if part]
        return [(key, values.split("|")) for key, _, values in parts]

    @property
    def allowed(self) -> str:
        """Word the range or the choices; empty for a switch or free text."""
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
    def default_text(self) -> str:
        """Word the default; for None, what it stands for."""
        return (self.none or "none") if self.default is None else format_value(self.default)

    def read(self, value: Any, source: str) -> Any:
        """Return a value from YAML or from the text of a flag as the option's type, within range.

        Args:
            value: None, bool, int, float or str.
            source: where it was written, for the message: a file, `--set` or a flag.

        Raises:
            BadInput: another type, not finite, out of range, or no choice.
        """
        if value is None and self.none:
            return None
        prefix = f"{source}: " if source else ""
        written = f"{prefix}{self.key}{' ' if self.key.startswith('--') else '='}{shortened(value)}"
        try:
            # As msgspec does: 2.0 is an int, 1e-4 as text a float; a switch is true or false.
            read: Any = msgspec.convert(value, self.kind, strict=self.kind is bool)
        except msgspec.ValidationError as error:
            raise BadInput(f"{written} is not a valid {self.kind.__name__}") from error
        if self.filled and not read:
            raise BadInput(f"{self.key} is empty: give a value, or leave it out")
        if self.choices and read not in self.choices:
            near = nearest(str(read), self.choices)
            raise BadInput(f"{written}{near}: one of {', '.join(self.choices)}")
        if self.kind in (int, float) and not self._is_inside(read):
            ends = " and ".join(map(_bound, self._bounds))
            excluded = [_bound(x) for x in (self.above, self.below) if x is not None]
            words = f" ({' and '.join(excluded)} excluded)" if excluded else ""
            raise BadInput(f"{written}: must lie between {ends}{words}")
        return read

    def _is_inside(self, value: float) -> bool:  # msgspec's own bounds end at 63 bits
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def has(
    least: float | None = None, most: float | None = None, unit: str = "", **declared: Any
) -> Meta:
    """Declare the range of a number, both ends allowed, its unit, and other fields of `Option`.

    Also for all settings of a section, or for a type that several have.
    """
    return Meta(ge=least, le=most, extra=({"unit": unit} if unit else {}) | declared)


def options_of(config_class: type) -> dict[str, Option]:
    """List `section.key` -> option, in the order of definition, from a struct of sections."""
    options = {}
    for section, hint in typing.get_type_hints(config_class, include_extras=True).items():
        kind, common = _declared(hint)
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            key = f"{section}.{field.name}"
            value, own = _declared(hints[field.name])
            about = {"declared_in": kind, **common, **own}
            options[key] = Option(key, value, field.default, **about)
    return options


@functools.cache
def _texts_of_fields(module: str) -> dict[tuple[str, str], str]:
    """Read the string literals under fields from a module's source: (class, field) -> one line."""
    try:
        classes = ast.parse(inspect.getsource(sys.modules[module])).body
    except OSError:  # installed without its source
        return {}
    texts: dict[tuple[str, str], str] = {}
    for declared_in in classes:
        for field, below in itertools.pairwise(getattr(declared_in, "body", [])):
            match declared_in, field, below:
                case (
                    ast.ClassDef(name=struct),
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[struct, name] = " ".join(text.split())
    return texts


def _declared(hint: Any) -> tuple[type, dict[str, Any]]:
    """Take a type apart: what stands in it, and what its annotations declare, as an `Option`'s."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return str, {"choices": inner}
    if origin in (typing.Union, types.UnionType):  # of `X | None`
        return _declared(inner[0])
    if origin is not Annotated:
        return hint, {}
    kind, declared = _declared(inner[0])
    for note in hint.__metadata__:
        bounds = {"low": note.ge, "high": note.le, "above": note.gt, "below": note.lt}
        declared |= {name: bound for name, bound in bounds.items() if bound is not None}
        declared |= note.extra or {}
    return kind, declared


def format_value(value: Any) -> str:
    """Write a value as in YAML and on the command line; numbers in full."""
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
    """Write a value for a message, where it may be long or a number that Python does not print."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known names: `" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return suggestion(near(name, known))


def near(name: str, known: Iterable[str]) -> list[str]:
    """Find at most two known names of nearly the same letters, the likeliest first."""
    by_name: dict[str, list[str]] = {}
    for key in known:
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    name = name.rpartition(".")[2]
    meant = _ELSEWHERE.get(name, "")
    close = [meant] if meant in by_name else difflib.get_close_matches(name, by_name)
    return [key for one in close for key in by_name[one]][:2]


def in_words(uses: Sequence[str], known: Iterable[str]) -> str:
    """Word the settings that a command uses: `model.*` for a whole section, else its keys."""
    sections: dict[str, list[str]] = {}
    for key in known:
        sections.setdefault(key.partition(".")[0], []).append(key)
    words = []
    for section, keys in sections.items():
        used = [key for key in keys if key in uses]
        words += [f"{section}.*"] if used == keys else used
    return ", ".join(words)


def suggestion(keys: list[str]) -> str:
    """Word suggestions: `" (did you mean 'a' or 'b'?)"`, or an empty string."""
    return f" (did you mean {' or '.join(map(repr, keys))}?)" if keys else ""
