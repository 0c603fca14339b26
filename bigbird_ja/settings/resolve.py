"""Config of a command: defaults, a file, `--set`, flags; then the data set.

The last one wins. Each value is validated once, here or by the parser of its flag. The data set
determines its own facts (`Data`): an explicit value that disagrees is an error (`fit_to_data`).
Without a data set, the config's `make_data` describes one to be made (`requested_data`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import log
from bigbird_ja.settings.checks import validate_config, validate_on_data
from bigbird_ja.settings.config_file import locate, read_overrides
from bigbird_ja.settings.data_facts import DATA_KEYS, Data, data_entries
from bigbird_ja.settings.option import shortened
from bigbird_ja.settings.provenance import Override, read_override
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import flatten, replace_settings

# From settings of another model to the config that a command's flags specify, and all overrides.
Resolve = Callable[[Iterable[Override]], tuple[Config, list[Override]]]


def resolve_config(
    config_path: str | None = None,
    sets: Iterable[str] = (),
    flags: Iterable[Override] = (),
    uses: Sequence[str] = tuple(OPTIONS),
    adopted: Iterable[Override] = (),
) -> tuple[Config, list[Override]]:
    """Build the config from a file, another model, `key=value` strings and flags; the last wins.

    Args:
        config_path: a preset's name, or a YAML file of sections on disk or gs://; None for the
            defaults.
        sets: strings `section.key=value`; the value is read as YAML.
        flags: settings given by flags of their own, already read.
        uses: keys of the settings that the command uses: `sets` of others are refused. A file may
            hold all sections.
        adopted: settings of the model that `--init_from` names.

    Returns:
        The config, not yet fitted to a data set, and every override in order.

    Raises:
        BadInput: an unknown key (near ones are named), one that the command does not use, a value
            of the wrong type, range or choice.
    """
    given: list[Override | None] = []
    if config_path is not None:
        given += read_overrides(*locate(config_path))
    given += [read_override(o.key, o.value, o.source, o.is_complete) for o in adopted]
    given += [_read_set(text, uses) for text in sets]
    overrides = [*(override for override in given if override), *flags]
    overrides = _of_architecture(_without_final_rate(overrides))
    config = replace_settings(Config(), {override.key: override.value for override in overrides})
    validate_config(config)
    _check_effective(flatten(config), [o for o in overrides if not _depends_on_data(o.key)])
    return config, overrides


def _without_final_rate(overrides: list[Override]) -> list[Override]:
    """Drop a preset's final mask rate if the user sets the first one: they are a pair."""
    first, final = "training.masked_lm_prob", "training.final_masked_lm_prob"
    if not any(o.key == first and not o.is_of_preset for o in overrides):
        return overrides
    return [o for o in overrides if not (o.key == final and o.is_of_preset)]


def _of_architecture(overrides: list[Override]) -> list[Override]:
    """Add the defaults of a ModernBERT, and drop a preset's settings for a BigBird."""
    key = "model.architecture"
    architecture = next((o for o in reversed(overrides) if o.key == key), None)
    if architecture is None or architecture.value == OPTIONS[key].default:
        return overrides
    source, is_presets = f"{key}={architecture.value}", architecture.is_of_preset
    left = [o for o in overrides if o.is_of_preset and _is_of_bigbird(o.key) and not is_presets]
    if left:
        log(f"{source}: left out of {left[0].source}: {', '.join(o.key for o in left)}")
    own = {k: o.modernbert for k, o in OPTIONS.items() if o.modernbert is not None}
    defaults = [Override(k, value, source) for k, value in own.items()]
    return defaults + [o for o in overrides if o not in left]


def _is_of_bigbird(key: str) -> bool:
    """Tell whether a setting is for BigBird only, or has another default for it."""
    option = OPTIONS[key]
    is_conditional = option.only_with.get("model.architecture") == ["bigbird"]
    return option.modernbert is not None or is_conditional


def _depends_on_data(key: str) -> bool:
    option = OPTIONS[key]
    return option.section != "make_data" and any(other in DATA_KEYS for other in option.only_with)


def fit_to_data(
    config: Config, data: Data, overrides: Iterable[Override] = (), data_dir: str = ""
) -> Config:
    """Check a config against its data set, and set the defaults that follow the data.

    Args:
        config: result of `resolve_config`.
        data: facts of the run's data set; `requested_data` without one.
        overrides: values that were set; an explicit one that disagrees is an error.
        data_dir: folder of the data set, for the message; empty without one.

    Raises:
        BadInput: an explicit value disagrees with the data set, or has no effect on it.
    """
    last = {override.key: override for override in overrides}
    for key, value in data_entries(data).items():
        stated = last[key].value if key in last and last[key].is_explicit else None
        if data_dir and stated is not None and stated != value:
            raise _disagrees(key, stated, last[key].source, data_dir, value)
    tokens, rows = data.vocab_size, last.get("model.vocab_size", Override("", None, ""))
    vocab_size = config.model.vocab_size or tokens
    is_other = vocab_size != tokens and rows.is_explicit
    if data_dir and (is_other or vocab_size < tokens):  # an encoder may have more rows
        raise _disagrees("model.vocab_size", vocab_size, rows.source, data_dir, tokens)
    follows = {
        "model.vocab_size": vocab_size,
        "model.max_position_embeddings": config.model.max_position_embeddings or data.seq_length,
        "data.mask_unit": config.data.mask_unit or data.mask_unit,
    }
    config = replace_settings(config, follows | _without_preset_rates(data, last))
    _check_effective(flatten(config, data), [o for o in overrides if _depends_on_data(o.key)])
    validate_on_data(config, data)
    return config


def _disagrees(key: str, stated: Any, source: str, data_dir: str, value: Any) -> BadInput:
    return BadInput(
        f"{key}={stated} ({source}) disagrees with {data_dir}/manifest.json, which has {value}:"
        " leave it out, or make the data again"
    )


def _without_preset_rates(data: Data, last: Mapping[str, Override]) -> dict[str, None]:
    """Drop a preset's mask rates, meant for dynamic masks at the usual rate, for other data."""
    usual = OPTIONS["make_data.masked_lm_prob"].default
    if data.masking == "dynamic" and data.masked_lm_prob == usual:
        return {}
    rates = ("training.masked_lm_prob", "training.final_masked_lm_prob")
    return {key: None for key in rates if key in last and last[key].is_of_preset}


def _check_effective(values: Mapping[str, Any], overrides: Iterable[Override]) -> None:
    """Refuse explicit values that have no effect with the other settings."""
    for override in overrides:
        if not override.is_explicit:
            continue
        for key, needed in OPTIONS[override.key].only_with.items():
            value = values[key]
            if value not in needed:
                raise BadInput(
                    f"{override.key}={override.value} has no effect with {key}={value}: leave it"
                    f" out, or choose {key}={'|'.join(needed)}"
                )


def _read_set(text: str, uses: Sequence[str]) -> Override | None:
    from bigbird_ja.storage import decode

    flag = "--set"
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator:
        raise BadInput(f"{flag} {shortened(text)}: write it as section.key=value")
    if key in OPTIONS and key not in uses:
        raise BadInput(f"{flag} {key}: this command does not use it: --help lists what it uses")
    return read_override(key, decode.read_yaml(value, f"{flag} {key}"), flag)
