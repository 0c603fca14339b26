"""The one typed configuration: what every setting means, its unit, and how overrides are applied.

Order: defaults here, then `--config FILE.yaml`, then `--set section.key=value`, then plain flags;
the last wins. What a data set fixes (`DATA_SET_KEYS`) stays None until its manifest is read
(`with_data_set`); a value given explicitly that disagrees with the manifest is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import pathlib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bigbird_ja import storage
from bigbird_ja.config_schema import CHANGEABLE_KEYS, CHOICES, DATA_SET_KEYS, RANGES, Config
from bigbird_ja.errors import BadInput


@dataclass(frozen=True)
class Override:
    """One setting that was not left at its default: `key`, `value`, and where it came from."""

    key: str
    value: Any
    source: str  # the file's path, "--set" or "--flag_name"


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the nearest known name, else an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def preset_path(name: str) -> str:
    """The path of a preset, from a checkout's configs/ or from where the package installed it.

    Raises:
        BadInput: no such preset; the nearest is named.
    """
    checkout = pathlib.Path(__file__).resolve().parent.parent / "configs"
    installed = pathlib.Path(sys.prefix) / "share" / "bigbird-ja" / "configs"
    for directory in (checkout, installed):
        if (directory / f"{name}.yaml").is_file():
            return str(directory / f"{name}.yaml")
    known = [path.stem for path in [*checkout.glob("*.yaml"), *installed.glob("*.yaml")]]
    raise BadInput(f"no preset {name!r}{nearest(name, known)}: {', '.join(sorted(set(known)))}")


def resolve(
    config_path: str | None = None,
    sets: Iterable[str] = (),
    flag_values: Mapping[str, Any] | None = None,
) -> tuple[Config, list[Override]]:
    """Builds the config from a file, `key=value` strings and flags; the last wins.

    Args:
        config_path: a YAML file of sections, on disk or gs://; None for the defaults.
        sets: strings `section.key=value`; the value is read as YAML.
        flag_values: `section.key` to a value or None (the flag was not given); the source is
            named `--key`.

    Returns:
        The config, not yet completed by a data set, and every override in order.

    Raises:
        BadInput: an unknown key (the nearest is named), a value of the wrong type or choice.
    """
    overrides: list[Override] = []
    if config_path:
        overrides += _read_file(config_path)
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise BadInput(f"--set {text!r}: write it as section.key=value")
        overrides.append(Override(key.strip(), _read_yaml(value, f"--set {key}"), "--set"))
    for key, value in (flag_values or {}).items():
        if value is not None:
            overrides.append(Override(key, value, f"--{key.rpartition('.')[2]}"))
    config = Config()
    applied = [_apply(config, override) for override in overrides]
    validate(config)
    return config, applied


def with_data_set(
    config: Config, fixed: Mapping[str, Any], overrides: Iterable[Override] = (), where: str = ""
) -> Config:
    """Completes a config with what a data set fixes.

    Args:
        config: as `resolve` returns it.
        fixed: a value for each of `DATA_SET_KEYS`, from the manifest; its `data.mask_unit` is
            taken where the user names none.
        overrides: what the user set; one that disagrees is an error.
        where: the manifest's path, for the message.

    Raises:
        BadInput: an explicit value disagrees with the data set.
    """
    config = copy(config)
    sources = {override.key: override.source for override in overrides}
    for key, origin in DATA_SET_KEYS.items():
        # A config file says under `origin` how data is to be made; on the command line of a
        # command that reads data it can only be meant for this data.
        asked = [key, *([origin] if sources.get(origin) == "--set" else [])]
        for name in asked:
            stated = get(config, name)
            if stated is not None and stated != fixed[key]:
                raise BadInput(
                    f"{name}={stated} ({sources.get(name, 'config')}) disagrees with"
                    f" {where or 'the data set'}, which has {fixed[key]}:"
                    " leave it out, or make the data again"
                )
        put(config, key, fixed[key])
    if config.data.mask_unit is None:
        config.data.mask_unit = fixed.get("data.mask_unit")
    return _complete(config)


def without_data_set(config: Config) -> Config:
    """Completes a config where there is no data set, from what it says how one is to be made."""
    config = copy(config)
    for key, origin in DATA_SET_KEYS.items():
        if get(config, key) is None:
            put(config, key, get(config, origin))
    return _complete(config)


def _complete(config: Config) -> Config:
    if config.data.mask_unit is None:
        config.data.mask_unit = config.make_data.mask_unit
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


def validate(config: Config) -> None:
    """Checks choices, ranges and what must divide.

    Raises:
        BadInput: naming the key and what is allowed.
    """
    for key, choices in CHOICES.items():
        value = get(config, key)
        if value is not None and value not in choices:
            raise BadInput(
                f"{key}={value!r}{nearest(str(value), choices)}: one of {', '.join(choices)}"
            )
    for key, low, high in RANGES:
        value = get(config, key)
        if value is not None and not low <= value <= high:
            raise BadInput(f"{key}={value}: must lie between {low} and {high}")
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is not divisible by"
            f" model.num_attention_heads={model.num_attention_heads}"
        )
    if model.initializer == "mimetic" and model.hidden_size % 2:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is odd: model.initializer=mimetic pairs sines"
            " with cosines"
        )
    if config.data.nsp and not model.attend_across_documents:
        raise BadInput(
            "model.attend_across_documents=false hides segment B from segment A: there is no next"
            " sentence to predict: leave it at true, or make the data without --nsp"
        )
    if training.global_batch_size % training.gradient_accumulation_steps:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} is not divisible by"
            f" training.gradient_accumulation_steps={training.gradient_accumulation_steps}"
        )


def flatten(config: Config) -> dict[str, Any]:
    """`section.key` to value, in the order of definition."""
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }


def get(config: Config, key: str) -> Any:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def put(config: Config, key: str, value: Any) -> None:
    """Sets `section.key` in place."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def copy(config: Config) -> Config:
    """A deep copy."""
    return from_dict(dataclasses.asdict(config))


def from_dict(values: Mapping[str, Any], source: str = "config") -> Config:
    """A config from nested dictionaries, checked like a file."""
    config = Config()
    for override in _overrides_of(values, source):
        _apply(config, override)
    return config


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, as `MODEL_DIR/config.yaml` holds it."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def load_resolved(path: str) -> Config:
    """Reads a `config.yaml` that `to_yaml` wrote.

    Raises:
        BadInput: no such file, or not a config.
    """
    config = Config()
    for override in _read_file(path):
        _apply(config, override)
    validate(config)
    return config


def fingerprint(config: Config) -> str:
    """SHA-256 (hex) of all that must not change between restarts of one run."""
    kept = {key: value for key, value in flatten(config).items() if not _is_free(key)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def differences(old: Config, new: Config) -> list[str]:
    """`key: old -> new` for every setting that a `model_dir` does not accept a change of."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and not _is_free(key)
    ]


def _is_free(key: str) -> bool:
    # The sections `tokenize` and `make_data` say how data is made; a run depends on its manifest.
    return key in CHANGEABLE_KEYS or key.startswith(("tokenize.", "make_data."))


def echo(config: Config, overrides: Iterable[Override]) -> str:
    """One line per override: `key = value  (default ..., from source)`.

    What a file repeats of the defaults is left out; what the command line says is always shown.
    """
    defaults, final = flatten(Config()), flatten(config)
    last = {override.key: override for override in overrides}
    lines = [
        f"  {key} = {final[key]}  (default {defaults[key]}; from {override.source})"
        for key, override in last.items()
        if final[key] != defaults[key] or override.source.startswith("--")
    ]
    return "\n".join(lines) if lines else "  (all defaults)"


def _read_file(path: str) -> list[Override]:
    try:
        text = storage.read_bytes(path).decode("utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BadInput(f"--config {path}: no such file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--config {path}: not UTF-8 (byte {error.start})") from error
    values = _read_yaml(text, path)
    if values is None:
        return []
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `model:` and `training:`")
    return _overrides_of(values, path)


def _read_yaml(text: str, where: str) -> Any:
    from bigbird_ja import typed

    return typed.read_yaml(text, where)


def _overrides_of(values: Mapping[str, Any], source: str) -> list[Override]:
    sections = [f.name for f in dataclasses.fields(Config)]
    overrides = []
    for section, entries in values.items():
        if section not in sections:
            raise BadInput(
                f"{source}: unknown section {section!r}{nearest(str(section), sections)}"
            )
        if entries is None:
            continue
        if not isinstance(entries, dict):
            raise BadInput(f"{source}: {section} must hold `key: value` lines")
        overrides += [Override(f"{section}.{key}", value, source) for key, value in entries.items()]
    return overrides


def _apply(config: Config, override: Override) -> Override:
    """Sets one value in place; returns the override with the value as it was understood."""
    known = flatten(config)
    if override.key not in known:
        raise BadInput(
            f"{override.source}: unknown setting {override.key!r}{nearest(override.key, known)}"
        )
    section, _, name = override.key.partition(".")
    hints = typing.get_type_hints(type(getattr(config, section)))
    value = _coerce(override.value, hints[name], override)
    put(config, override.key, value)
    return dataclasses.replace(override, value=value)


def _coerce(value: Any, hint: Any, override: Override) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is float and isinstance(value, str):
        value = _number(value)  # YAML 1.1 reads 1e-4 as a string
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if hint is int and isinstance(value, str):
        number = _number(value)
        value = int(number) if isinstance(number, float) and number.is_integer() else value
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise BadInput(
            f"{override.source}: {override.key}={override.value!r} is not a valid {hint.__name__}"
        )
    return value


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
