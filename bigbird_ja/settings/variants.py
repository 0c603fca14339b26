"""Classes of each section of settings, and the choice of a class by the values of settings."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from typing import Any

from bigbird_ja.settings.option import Option, collect_details, get_choices
from bigbird_ja.settings.schema import Config, Section

_HINTS = typing.get_type_hints(Config, include_extras=True)


def _list_variants(hint: Any) -> tuple[type[Section], ...]:
    """List the classes in the type of a section, which is a class or a union of classes."""
    bare = hint.__origin__
    return typing.get_args(bare) or (bare,)


# Classes by section. The first one is the default.
VARIANTS: dict[str, tuple[type[Section], ...]] = {k: _list_variants(v) for k, v in _HINTS.items()}


@functools.cache
def _get_types(variant: type[Section]) -> dict[str, Any]:
    """Return the annotated types of a class's settings."""
    return typing.get_type_hints(variant, include_extras=True)


def _merge_types(section: str) -> dict[str, Any]:
    """Return the type of each setting of a section.

    If classes declare a setting differently, the declaration in their base class is used, since it
    is the most general one.
    """
    types: dict[str, Any] = {}
    for variant in VARIANTS[section]:
        for base in reversed(variant.__mro__):
            if issubclass(base, Section):
                types = {**_get_types(base), **types}
    names = [name for variant in VARIANTS[section] for name in variant.__struct_fields__]
    return {name: types[name] for name in dict.fromkeys(names)}


def _find_selectors(section: str) -> dict[str, tuple[str, ...]]:
    """Return the settings that select a section's class, with all their choices."""
    widest = {name: get_choices(hint) for name, hint in _merge_types(section).items()}
    return {
        name: choices
        for name, choices in widest.items()
        if all(get_choices(_get_types(v).get(name)) != choices for v in VARIANTS[section])
    }


SELECTORS = {section: _find_selectors(section) for section in VARIANTS}


def select(section: str, values: Mapping[str, Any]) -> type[Section]:
    """Return the first class of a section that accepts these values.

    A value that none of the remaining classes accepts is ignored.
    """
    left = VARIANTS[section]
    for name in SELECTORS[section]:
        if name in values:
            left = tuple(v for v in left if values[name] in _get_choices(v, name)) or left
    return left[0]


def _get_choices(variant: type[Section], name: str) -> tuple[str, ...]:
    """Return the choices that a class accepts for a setting, or () if it lacks the setting."""
    return get_choices(_get_types(variant).get(name))


def accepts(variant: type[Section], name: str, value: Any) -> bool:
    """Return whether a class accepts a value of a setting."""
    choices = _get_choices(variant, name)
    return name in _get_types(variant) and (not choices or value is None or value in choices)


def find_conditions(section: str, name: str, value: Any = None) -> dict[str, tuple[str, ...]]:
    """Return the conditions under which a setting exists.

    If `value` is given, return the conditions under which the setting accepts this value.

    Returns:
        Allowed values of other settings, by key.
    """
    all_choices = SELECTORS[section]
    having = [
        variant
        for variant in VARIANTS[section]
        if (name in _get_types(variant) if value is None else accepts(variant, name, value))
    ]
    result = {}
    for other, choices in all_choices.items():
        found = {choice for variant in having for choice in _get_choices(variant, other)}
        if other != name and found and found != {*choices}:
            result[f"{section}.{other}"] = tuple(c for c in choices if c in found)
    return result


def get_default(variant: type[Section], name: str) -> Any:
    """Return a setting's default in a class."""
    return getattr(variant(), name)


def get_default_of(config: Config, key: str) -> Any:
    """Return the default of a setting in the class that a config uses for its section."""
    section, _, name = key.partition(".")
    return get_default(type(getattr(config, section)), name)


def _make_options() -> dict[str, Option]:
    options = {}
    for section, hint in _HINTS.items():
        for name, of_setting in _merge_types(section).items():
            first = next(v for v in VARIANTS[section] if name in v.__struct_fields__)
            about = {**collect_details(hint), **collect_details(of_setting)}
            options[f"{section}.{name}"] = Option(
                key=f"{section}.{name}",
                type=of_setting,
                default=get_default(first, name),
                by=about["by"],
                change=about["change"],
                only_with=find_conditions(section, name),
            )
    return options


OPTIONS: dict[str, Option] = _make_options()


def list_used_settings(command: str) -> tuple[str, ...]:
    """List the settings that have an effect in a command."""
    return tuple(key for key, option in OPTIONS.items() if command in option.by)


# Names of commands' parameters by key of a setting, if the two names differ.
PARAMETERS = {"training.global_batch_size": "batch_size", "tpu.name": "tpu_name"}


def get_parameter(key: str) -> str:
    """Return the name of the parameter that sets a setting."""
    return PARAMETERS.get(key, key.partition(".")[2])
