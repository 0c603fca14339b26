"""From what the user says to a config: defaults, a file, `--set`, flags; then the data set.

The last wins. What a data set fixes (`DATA_SET_KEYS`) stays None until its manifest is read
(`with_data_set`); a value given explicitly that disagrees with the manifest is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import preset, suggestions
from bigbird_ja.settings.option import shortened
from bigbird_ja.settings.schema import DATA_SET_KEYS, OPTIONS, SECTIONS, Config
from bigbird_ja.settings.validate import validate
from bigbird_ja.settings.values import copy, flatten, get, predictions_of, put

_DATA_RATE = "make_data.masked_lm_prob"


@dataclass(frozen=True)
class Override:
    """One setting that was not left at its default: `key`, `value`, and where it came from."""

    key: str
    value: Any
    source: str  # "preset NAME", the file's path, "--set" or "--flag_name"

    @property
    def is_explicit(self) -> bool:
        """Whether it stands on the command line itself."""
        return self.source.startswith("--")

    @property
    def is_of_preset(self) -> bool:
        """Whether a preset says it, and not the user."""
        return self.source.startswith("preset ")


def resolve(
    config_path: str | None = None,
    sets: Iterable[str] = (),
    flags: Iterable[Override] = (),
    uses: Sequence[str] = SECTIONS,
    changes: Iterable[str] = (),
) -> tuple[Config, list[Override]]:
    """Builds the config from a file, `key=value` strings and flags; the last wins.

    Args:
        config_path: a preset's name, or a YAML file of sections on disk or gs://; None for the
            defaults.
        sets: strings `section.key=value`; the value is read as YAML.
        flags: the settings that flags of their own gave.
        uses: sections, and single keys, that the command uses: `sets` of others are refused. A
            file may hold all sections.
        changes: `key=value` strings of `--continue_with`.

    Returns:
        The config, not yet completed by a data set, and every override in order.

    Raises:
        BadInput: an unknown key (near ones are named), one that the command does not use, a value
            of the wrong type, range or choice.
    """
    overrides: list[Override] = []
    if config_path is not None:
        overrides += _read_file(*preset.locate(config_path))
    for text in sets:
        overrides.append(_read_set(text, uses))
    overrides += flags
    overrides += [_read_set(text, uses, "--continue_with") for text in changes]
    config = Config()
    read = [_read(override) for override in overrides]
    applied = _without_stale_rate(_without_stale_predictions(read))
    for override in applied:
        put(config, override.key, override.value)
    validate(config)
    _check_effective(config, applied)
    return config, applied


def _without_stale_predictions(overrides: list[Override]) -> list[Override]:
    """Leaves out a file's number of predictions where the command line has another length or rate.

    It was meant for the file's own; None computes it (`predictions_of`).
    """
    key = "make_data.max_predictions_per_seq"
    if any(override.key == key and override.is_explicit for override in overrides):
        return overrides
    for other in ("make_data.seq_length", _DATA_RATE):
        values = [OPTIONS[other].default, *(o.value for o in overrides if o.key == other)]
        in_file = [o.value for o in overrides if o.key == other and not o.is_explicit]
        if values[-1] != (in_file[-1] if in_file else values[0]):
            return [override for override in overrides if override.key != key]
    return overrides


def _without_stale_rate(overrides: list[Override]) -> list[Override]:
    """Leaves out the share of predictions that a preset goes to where the user says where to begin.

    It was meant for the preset's own beginning; one share alone is a fixed one.
    """
    first, final = "training.masked_lm_prob", "training.final_masked_lm_prob"
    last = {override.key: override for override in overrides}
    if first not in last or last[first].is_of_preset:
        return overrides
    return [o for o in overrides if not (o.key == final and o.is_of_preset)]


def with_data_set(
    config: Config, fixed: Mapping[str, Any], overrides: Iterable[Override] = (), where: str = ""
) -> Config:
    """Completes a config with what a data set fixes.

    Args:
        config: as `resolve` returns it.
        fixed: a value for each of `DATA_SET_KEYS`, and `make_data.masked_lm_prob`, from the
            manifest.
        overrides: what the user set; one that disagrees is an error.
        where: the manifest's path, for the message.

    Raises:
        BadInput: an explicit value disagrees with the data set.
    """
    overrides = list(overrides)
    config = left_to_data(config, fixed, overrides)
    last = {override.key: override for override in overrides}
    for key, origin in DATA_SET_KEYS.items():
        # A config file says under `origin` how data is to be made; on the command line of a
        # command that reads data it can only be meant for this data.
        asked = [origin] if origin in last and last[origin].is_explicit else []
        if OPTIONS[key].may_differ:
            put(config, key, fixed[key] if get(config, key) is None else get(config, key))
        else:
            asked = [key, *asked]
        for name in asked:
            stated = get(config, name)
            if stated is not None and stated != fixed[key]:
                source = last[name].source if name in last else "config"
                raise BadInput(
                    f"{name}={stated} ({source}) disagrees with"
                    f" {where or 'the data set'}, which has {fixed[key]}:"
                    " leave it out, or make the data again"
                )
        if not OPTIONS[key].may_differ:
            put(config, key, fixed[key])
    _refuse_too_late(last.values(), where)
    _check_effective(config, last.values())
    return _complete(config)


def without_data_set(config: Config, overrides: Iterable[Override] = ()) -> Config:
    """Completes a config where there is no data set, from what it says how one is to be made.

    Args:
        config: as `resolve` returns it.
        overrides: what the user set; one without effect on such data is an error.

    Raises:
        BadInput: settings that contradict each other.
    """
    overrides, config = list(overrides), copy(config)
    config.make_data.max_predictions_per_seq = predictions_of(config.make_data)
    for key, origin in DATA_SET_KEYS.items():
        if get(config, key) is None:
            put(config, key, get(config, origin))
    config = left_to_data(config, flatten(config), overrides)
    _check_effective(config, overrides)
    return _complete(config)


def left_to_data(
    config: Config, made: Mapping[str, Any], overrides: Iterable[Override] = ()
) -> Config:
    """The config without the shares of tokens to predict that a preset says for other data: masks
    drawn while training, at the usual rate.

    What the user says stays, and is refused where such data cannot be trained on in that way.

    Args:
        config, overrides: as `resolve` returns them.
        made: how the data was made, or is to be: `data.masking`, `make_data.masked_lm_prob`.
    """
    config = copy(config)
    last = {override.key: override for override in overrides}
    if made["data.masking"] == "static" or made[_DATA_RATE] != OPTIONS[_DATA_RATE].default:
        for key in ("training.masked_lm_prob", "training.final_masked_lm_prob"):
            if key in last and last[key].is_of_preset:
                put(config, key, None)
    return config


def _complete(config: Config) -> Config:
    length = config.data.seq_length or 0
    positions = config.model.max_position_embeddings or length
    config.model.max_position_embeddings = positions
    if positions < length:
        raise BadInput(
            f"model.max_position_embeddings={positions} is shorter than"
            f" the data's sequences of {length}: raise it or leave it out"
        )
    validate(config)
    return config


def _refuse_too_late(overrides: Iterable[Override], where: str) -> None:
    """How data is made cannot be said of data that is made."""
    for override in overrides:
        making = OPTIONS[override.key].section in ("tokenize", "make_data")
        if making and override.is_explicit and override.key not in DATA_SET_KEYS.values():
            raise BadInput(
                f"{override.key}={override.value} ({override.source}) says how data is to be made,"
                f" and {where or 'the data set'} is made: leave it out, or make the data again"
            )


def _check_effective(config: Config, overrides: Iterable[Override]) -> None:
    """Refuses what the command line says and what has no effect with the other settings."""
    for override in overrides:
        condition = OPTIONS[override.key].only_with
        if not (condition and override.is_explicit):
            continue
        key, _, needed = condition.partition("=")
        value = get(config, key)
        if value is not None and value not in needed.split("|"):
            given = override.key if override.source == "--set" else override.source
            raise BadInput(
                f"{given}={override.value} has no effect with {key}={value}: leave it out, or"
                f" choose {condition}"
            )


def from_dict(values: Mapping[str, Any], source: str = "config") -> Config:
    """A config from nested dictionaries, checked like a file."""
    config = Config()
    for override in map(_read, _overrides_of(values, source)):
        put(config, override.key, override.value)
    return config


def load_resolved(path: str) -> Config:
    """Reads a `config.yaml` that `to_yaml` wrote.

    Raises:
        BadInput: no such file, or not a config.
    """
    config = Config()
    for override in map(_read, _read_file(path, path)):
        put(config, override.key, override.value)
    validate(config)
    return config


def _read_file(path: str, source: str) -> list[Override]:
    from bigbird_ja import storage
    from bigbird_ja.storage import decode

    try:
        text = storage.read_bytes(path, decode.MAX_YAML_BYTES).decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(f"--config {path}: no such file{preset.hint(path)}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--config {path}: not UTF-8 (byte {error.start})") from error
    values = decode.read_yaml(text, path)
    if values is None:  # cut off, or not yet written: nobody means the defaults by it
        raise BadInput(f"{path}: no settings in it: name another file, or leave it out")
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `model:` and `training:`")
    return _overrides_of(values, source)


def _read_set(text: str, uses: Sequence[str], flag: str = "--set") -> Override:
    from bigbird_ja.storage import decode

    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator:
        raise BadInput(f"{flag} {shortened(text)}: write it as section.key=value")
    _check_known(key, flag)
    if not suggestions.is_used(key, uses):
        section = OPTIONS[key].section
        near = suggestions.in_words(
            uses, [other for other in OPTIONS if other.startswith(f"{section}.")]
        )
        used = near or ", ".join(
            f"{name}.*" for name in dict.fromkeys(u.split(".")[0] for u in uses)
        )
        raise BadInput(f"{flag} {key}: this command does not use it; it uses {used}")
    return Override(key, decode.read_yaml(value, f"{flag} {key}"), flag)


def _overrides_of(values: Mapping[str, Any], source: str) -> list[Override]:
    overrides = []
    for section, entries in values.items():
        if section not in SECTIONS:
            near = suggestions.nearest(str(section), SECTIONS)
            raise BadInput(f"{source}: unknown section {shortened(section)}{near}")
        if entries is None:
            continue
        if not isinstance(entries, dict):
            raise BadInput(f"{source}: {section} must hold `key: value` lines")
        overrides += [Override(f"{section}.{key}", value, source) for key, value in entries.items()]
    return overrides


def _read(override: Override) -> Override:
    """The override with its value as the setting's declaration understands it."""
    _check_known(override.key, override.source)
    value = OPTIONS[override.key].read(override.value, override.source)
    return dataclasses.replace(override, value=value)


def _check_known(key: str, source: str) -> None:
    if key not in OPTIONS:
        near = suggestions.suggestion(suggestions.near_settings(key, OPTIONS))
        raise BadInput(
            f"{source}: unknown setting {shortened(key)}{near}: `bigbird-ja config` lists them"
        )
