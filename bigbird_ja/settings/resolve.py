"""Resolution of a command's config from defaults, a file, another model and parameters.

The last source of a setting has priority. If there is a data set, its facts (`Data`) replace the
settings of `make_data`, and a parameter that disagrees with a fact is an error (`fit_to_data`). If
there is no data set, `make_data` describes the data set that will be created (`derive_data`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import log
from bigbird_ja.settings.checks import validate_config, validate_on_data
from bigbird_ja.settings.config_file import locate, read_file
from bigbird_ja.settings.data_facts import Data, get_data_entries
from bigbird_ja.settings.option import format_value
from bigbird_ja.settings.provenance import Layer, Override, read_layer
from bigbird_ja.settings.schema import Config, Section
from bigbird_ja.settings.values import flatten, replace_settings
from bigbird_ja.settings.variants import (
    OPTIONS,
    SELECTORS,
    VARIANTS,
    accepts,
    find_conditions,
    get_default,
    get_parameter,
    select,
)

# Name of a preset, path of a file, or a config.
ConfigSource = str | os.PathLike[str] | Config


def base_layers(config: ConfigSource | None) -> list[Layer]:
    """Return the settings of a preset, file or config as `[Layer]`, or [] if `config` is None.

    Raises:
        BadInput: The preset or file does not exist, or is not a file of settings.
    """
    if config is None:
        return []
    if isinstance(config, Config):
        return [Layer("the config", flatten(config), is_complete=True)]
    path, source = locate(os.fspath(config))
    return [read_file(path, source)]


def given_layers(
    overrides: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None = None
) -> list[Layer]:
    """Return a layer for a command's `overrides`, and one for each parameter that sets one setting.

    Args:
        overrides: values of settings by key.
        arguments: values of such parameters, by the setting's key. The value of a parameter that
            was not given is None.
    """
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    return [
        Layer("`overrides`", overrides or {}),
        *(Layer(f"`{get_parameter(key)}`", {key: value}) for key, value in given.items()),
    ]


def resolve_config(
    layers: Iterable[Layer] = (), uses: Sequence[str] = tuple(OPTIONS)
) -> tuple[Config, list[Override]]:
    """Build the config from the defaults and layers of values. Later layers have priority.

    Args:
        layers: values by source, in this order: `base_layers`, settings of another model,
            `given_layers`.
        uses: keys of the settings that the command uses. Parameters cannot set others; a file may
            contain all settings.

    Returns:
        The config, without facts of a data set, and all overrides in order.

    Raises:
        BadInput: A key is unknown, a value has the wrong type or is out of range, or a setting has
            no effect in the command or with the chosen architecture, masks or schedule.
    """
    overrides = [override for layer in layers for override in read_layer(Layer(*layer))]
    for override in overrides:
        if override.is_explicit and override.key not in uses:
            raise BadInput(
                f"{override.source}: {override.key} has no effect in this command, so remove it"
            )
    overrides = _drop_final_rate(overrides)
    sections: dict[str, Any] = {}
    for section in VARIANTS:
        own = [o for o in overrides if o.key.startswith(f"{section}.")]
        left = _list_left_out(section, own)
        overrides = [o for o in overrides if o not in left]
        values = {o.name: o.value for o in own if o not in left}
        sections[section] = select(section, values)(**values)
    config = Config(**sections)
    validate_config(config)
    return config, overrides


def _drop_final_rate(overrides: list[Override]) -> list[Override]:
    """Drop a preset's final mask rate if another source sets the initial mask rate.

    The two rates of a preset belong together.
    """
    first, final = "training.masked_lm_prob", "training.final_masked_lm_prob"
    if not any(o.key == first and not o.is_of_preset for o in overrides):
        return overrides
    return [o for o in overrides if not (o.key == final and o.is_of_preset)]


def _list_left_out(section: str, overrides: list[Override]) -> list[Override]:
    """List and log the overrides to drop because a later source chose another class of settings.

    For example, a preset uses the class `BigBirdModel`, and `--set model.architecture=modernbert`
    replaces this class by `ModernBertModel`. Then two kinds of the preset's values are dropped:
    values of settings that the new class does not contain (`block_size`), and values of settings
    whose default differs between the two classes (`layer_norm_eps`).

    Raises:
        BadInput: A parameter, the source that chose the class, or a later source sets a setting or
            value that the class does not accept.
    """
    last = {override.key: override for override in overrides}
    chosen = select(section, {o.name: o.value for o in last.values()})
    selectors = SELECTORS[section]
    sources = [override.source for override in overrides]
    left: list[Override] = []
    for override in overrides:
        name = override.name
        end = len(sources) - sources[::-1].index(override.source)
        earlier = select(section, {o.name: o.value for o in overrides[:end]})
        is_earlier = not override.is_explicit and earlier is not chosen
        is_last = last[override.key] is override
        if name not in chosen.__struct_fields__ or (
            is_last and not accepts(chosen, name, override.value)
        ):
            if not is_earlier:
                raise _make_no_effect_error(override, chosen, last)
            left.append(override)
        elif (
            is_earlier
            and override.is_of_preset
            and name not in selectors
            and get_default(earlier, name) != get_default(chosen, name)
        ):
            left.append(override)
    if shown := [o for o in left if o.name not in selectors]:
        chosen_by = [o for o in last.values() if o.name in selectors and o not in left]
        by = ", ".join(f"{o.key}={o.value}" for o in chosen_by)
        keys = ", ".join(o.key for o in shown)
        log(f"because of {by}, these settings of {shown[0].source} are ignored: {keys}")
    return left


def _make_no_effect_error(
    override: Override, chosen: type[Section], last: Mapping[str, Override]
) -> BadInput:
    """Return the error for a setting or value that the chosen class does not accept."""
    section, name = override.key.split(".")
    for key, allowed in find_conditions(section, name, override.value).items():
        other = key.partition(".")[2]
        if other not in chosen.__struct_fields__:
            continue
        value = last[key].value if key in last else get_default(chosen, other)
        if value not in allowed:
            where = "" if override.is_explicit else f"{override.source}: "
            return BadInput(
                f"{where}{override.key}={format_value(override.value)} has no effect with"
                f" {key}={value}: remove it, or set {key}={'|'.join(allowed)}"
            )
    raise AssertionError(override.key)


def refuse_settings(overrides: Iterable[Override], keys: Iterable[str], missing: str) -> None:
    """Check that no parameter sets one of `keys`, which have no effect without `missing`.

    Args:
        overrides: values that were set.
        keys: keys of settings.
        missing: parameter in backticks that was not given, with its value if required.

    Raises:
        BadInput: A parameter set one of these settings.
    """
    for override in overrides:
        if override.is_explicit and override.key in keys:
            raise BadInput(
                f"{override.key} has no effect without {missing}: add {missing}, or remove the"
                " setting"
            )


def fit_to_data(
    config: Config, data: Data, overrides: Iterable[Override] = (), data_dir: str = ""
) -> Config:
    """Check a config against its data set, and set the defaults that depend on the data.

    Args:
        config: result of `resolve_config`.
        data: facts of the run's data set. Without a data set, the result of `derive_data`.
        overrides: values that were set.
        data_dir: folder of the data set for the message, or "" without one.

    Raises:
        BadInput: The value of a parameter disagrees with the data set, or has no effect on a run
            with this data set.
    """
    last = {override.key: override for override in overrides}
    for key, value in get_data_entries(data).items():
        stated = last[key].value if key in last and last[key].is_explicit else None
        if data_dir and stated is not None and stated != value:
            raise _make_disagreement_error(key, stated, last[key].source, data_dir, fact=value)
    tokens, rows = data.vocab_size, last.get("model.vocab_size", Override("", None, ""))
    vocab_size = config.model.vocab_size or tokens
    is_other = vocab_size != tokens and rows.is_explicit
    # The embedding table of an encoder may contain more rows than the tokenizer has tokens.
    if data_dir and (is_other or vocab_size < tokens):
        raise _make_disagreement_error(
            "model.vocab_size", vocab_size, rows.source, data_dir, fact=tokens
        )
    rates = [last[key] for key in _RATES if key in last]
    if data.masking != "dynamic":
        _refuse_rates(rates, data)
    follows: dict[str, Any] = {
        "model.vocab_size": vocab_size,
        "model.max_position_embeddings": config.model.max_position_embeddings or data.seq_length,
        "data.mask_unit": config.data.mask_unit or data.mask_unit,
    }
    if data.masking != "dynamic" or data.masked_lm_prob != _USUAL_MASK_RATE:
        follows |= {o.key: None for o in rates if o.is_of_preset}
    config = replace_settings(config, follows)
    validate_on_data(config, data)
    return config


# Mask rates of training. A preset's rates are used only if the data set has dynamic masks and the
# default mask rate.
_RATES = ("training.masked_lm_prob", "training.final_masked_lm_prob")
_USUAL_MASK_RATE = OPTIONS["make_data.masked_lm_prob"].default


def _refuse_rates(rates: Iterable[Override], data: Data) -> None:
    """Check that no parameter sets mask rates for a data set with static masks."""
    for override in rates:
        if override.is_explicit and override.value is not None:
            raise BadInput(
                f"{override.key}={override.value} has no effect with make_data.masking="
                f"{data.masking}: remove it, or set make_data.masking=dynamic"
            )


def _make_disagreement_error(
    key: str, stated: Any, source: str, data_dir: str, fact: Any
) -> BadInput:
    return BadInput(
        f"{key}={stated} ({source}) disagrees with {fact} in {data_dir}/manifest.json: remove the"
        " setting, or make the data again"
    )
