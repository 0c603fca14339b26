"""The config of a command: defaults, a file, `--set`, flags; then the data set.

The last wins. Each value is read once, here, or by the parser of its flag. How a run's data were
made is known from its data set (`Data`), and a value given explicitly that disagrees with it is an
error (`fit_to_data`). Without a data set, the config's `make_data` describes one to be made
(`requested_data`).
"""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import DATA_KEYS, PAD_ID, Data, data_entries, requested_data
from bigbird_ja.settings.option import nearest, shortened
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import flatten, validate_config, validate_on_data, varied

_LONGEST = 1024  # characters of a text
# What else a file of 0.1.0, or one that states every setting, may hold, and at which value.
_UNUSED: dict[str, Any] = {
    "training.first_seq_length": None,
    "training.first_seq_length_steps": None,
    "training.optimizer_sharding": False,
    "training.gradient_sum_dtype": "float32",
    PAD_ID: 0,
}
_PRESETS = pathlib.Path(__file__).resolve().parent / "presets"


@dataclass(frozen=True)
class Override:
    """One setting that was not left at its default: `key`, `value`, and where it came from."""

    key: str
    value: Any
    source: str  # "preset NAME", the file's path, "--set" or "--flag_name"
    is_complete: bool = False  # of a file that states every setting, as `bigbird-ja config` does

    @property
    def is_explicit(self) -> bool:
        """Tell whether it stands on the command line itself."""
        return self.source.startswith("--")

    @property
    def is_of_preset(self) -> bool:
        """Tell whether a preset states it, and not the user."""
        return self.source.startswith("preset ")


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
        uses: settings that the command uses: `sets` of others are refused. A file may hold all
            sections.
        adopted: settings of the model that `--init_from` names.

    Returns:
        The config, not yet fitted to a data set, and every override in order.

    Raises:
        BadInput: an unknown key (near ones are named), one that the command does not use, a value
            of the wrong type, range or choice.
    """
    given: list[Override | None] = []
    if config_path is not None:
        path, source = _locate(config_path)
        given = [_read(*entry, source) for entry in _entries(path, source)]
    given += [_read(o.key, o.value, o.is_complete, o.source) for o in adopted]
    given += [_read_set(text, uses) for text in sets]
    overrides = [*(override for override in given if override), *flags]
    overrides = _of_architecture(_without_final_rate(overrides))
    config = varied(Config(), {override.key: override.value for override in overrides})
    validate_config(config)
    _check_effective(flatten(config), [o for o in overrides if not _depends_on_data(o.key)])
    return config, overrides


def _without_final_rate(overrides: list[Override]) -> list[Override]:
    """Drop a preset's final mask rate where the user sets the first one: they are a pair."""
    first, final = "training.masked_lm_prob", "training.final_masked_lm_prob"
    if not any(o.key == first and not o.is_of_preset for o in overrides):
        return overrides
    return [o for o in overrides if not (o.key == final and o.is_of_preset)]


def _of_architecture(overrides: list[Override]) -> list[Override]:
    """Give a ModernBERT its own defaults, and drop what a preset states for a BigBird."""
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
    """Tell whether a setting is for BigBird alone, or has another default for it."""
    option = OPTIONS[key]
    conditions = option.conditions
    return option.modernbert is not None or ("model.architecture", ["bigbird"]) in conditions


def _depends_on_data(key: str) -> bool:
    option = OPTIONS[key]
    depends = any(other in DATA_KEYS for other, _ in option.conditions)
    return option.section != "make_data" and depends


def fit_to_data(
    config: Config, data: Data, overrides: Iterable[Override] = (), data_dir: str = ""
) -> Config:
    """Check a config against its data set, and settle the defaults that follow the data.

    Args:
        config: as `resolve_config` returns it.
        data: of the run; `requested_data` where there is no data set.
        overrides: what the user set; one that disagrees is an error.
        data_dir: of the data set, for the message; empty without one.

    Raises:
        BadInput: an explicit value disagrees with the data set, or has no effect on it.
    """
    last = {override.key: override for override in overrides}
    for key, value in data_entries(data).items():
        stated = last[key].value if key in last and last[key].is_explicit else None
        if data_dir and stated is not None and stated != value:
            raise _disagrees(key, stated, last[key].source, data_dir, value)
    pieces, rows = data.vocab_size, last.get("model.vocab_size", Override("", None, ""))
    vocab_size = config.model.vocab_size or pieces
    is_other = vocab_size != pieces and rows.is_explicit
    if data_dir and (is_other or vocab_size < pieces):  # an encoder may have rows to spare
        raise _disagrees("model.vocab_size", vocab_size, rows.source, data_dir, pieces)
    follows = {
        "model.vocab_size": vocab_size,
        "model.max_position_embeddings": config.model.max_position_embeddings or data.seq_length,
        "data.mask_unit": config.data.mask_unit or data.mask_unit,
    }
    config = varied(config, follows | _without_preset_rates(data, last))
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
    """Refuse what the command line says and what has no effect with the other settings."""
    for override in overrides:
        if not override.is_explicit:
            continue
        for key, needed in OPTIONS[override.key].conditions:
            value = values[key]
            if value not in needed:
                raise BadInput(
                    f"{override.key}={override.value} has no effect with {key}={value}: leave it"
                    f" out, or choose {key}={'|'.join(needed)}"
                )


def read_config(path: str) -> tuple[Config, Data]:
    """Read a `config.yaml` that `config_to_yaml` wrote.

    Raises:
        BadInput: no such file, not a config, or one of another format.
    """
    entries = _entries(path, path, is_ours=True)
    stated = {o.key: o.value for entry in entries if (o := _read(*entry, path))}
    config = varied(Config(), stated)
    validate_config(config)
    pad_id = next((value for key, value, _ in entries if key == PAD_ID), 0)
    if type(pad_id) is not int or pad_id < 0:
        raise BadInput(f"{path}: {PAD_ID}={shortened(pad_id)} is no token id: {_RESTORE}")
    return config, requested_data(config, pad_id)


_RESTORE = "restore the file from a copy of the run"


def _entries(path: str, source: str, is_ours: bool = False) -> list[tuple[str, Any, bool]]:
    """Read a file's `section.key`s and values, and whether it states every setting.

    A file that we wrote (`is_ours`) must state its format.
    """
    from bigbird_ja import storage
    from bigbird_ja.storage import decode

    try:
        text = storage.read_text(path, decode.MAX_YAML_BYTES)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        why = f"{path}: missing: {_RESTORE}" if is_ours else f"--config {path}: no such file"
        raise BadInput(why) from error
    values = decode.read_yaml(text, path)
    if values is None:  # cut off, or not yet written: nobody means the defaults by it
        raise BadInput(f"{path}: no settings in it: name another file, or leave it out")
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `model:` and `training:`")
    version = str(values.pop("format_version", ""))
    if version or is_ours:
        decode.check_format(version, path, "start again, or use the version that wrote it")
    for section, entries in values.items():
        if not isinstance(entries, dict | None):
            raise BadInput(f"{source}: {section} must hold `key: value` lines")
    return [
        (f"{section}.{key}", value, bool(version))
        for section, entries in values.items()
        for key, value in (entries or {}).items()
    ]


def _read_set(text: str, uses: Sequence[str]) -> Override | None:
    from bigbird_ja.storage import decode

    flag = "--set"
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator:
        raise BadInput(f"{flag} {shortened(text)}: write it as section.key=value")
    if key in OPTIONS and key not in uses:
        raise BadInput(f"{flag} {key}: this command does not use it: --help lists what it uses")
    return _read(key, decode.read_yaml(value, f"{flag} {key}"), False, flag)


def _read(key: str, value: Any, is_complete: bool, source: str) -> Override | None:
    """Read a value as its setting declares it; None for what has no effect.

    Raises:
        BadInput: an unknown setting, or a value of the wrong type.
    """
    if key in _UNUSED and (value == _UNUSED[key] or (key == PAD_ID and is_complete)):
        return None
    if key not in OPTIONS:
        near = nearest(key, OPTIONS)
        raise BadInput(
            f"{source}: unknown setting {shortened(key)}{near}: `bigbird-ja config` lists them"
        )
    value = OPTIONS[key].read(value, source)
    if isinstance(value, str) and (not value.isprintable() or len(value) > _LONGEST):
        raise BadInput(f"{key}={value[:40]!r}: printable text of at most {_LONGEST} characters")
    return Override(key, value, source, is_complete)


def preset_names() -> list[str]:
    """List the presets, in alphabetical order."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def preset_purposes() -> dict[str, str]:
    """Map each preset to its purpose, the first line of its file."""
    texts = {name: pathlib.Path(preset_path(name)).read_text("utf-8") for name in preset_names()}
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def preset_path(name: str) -> str:
    """Return the path of a preset."""
    return str(_PRESETS / f"{name}.yaml")


def _locate(config: str) -> tuple[str, str]:
    """Find the preset or file that `--config` names: its path, and its name for messages.

    A name without a folder and an ending is a preset's; a file of such a name is ./NAME.

    Raises:
        BadInput: an empty name, or no such preset.
    """
    if not config:
        raise BadInput("--config is empty: name a preset or a YAML file, or leave it out")
    if config in preset_names():
        return preset_path(config), f"preset {config}"
    is_name = os.path.basename(config) == config and not os.path.splitext(config)[1]
    if is_name and not os.path.lexists(config):
        raise BadInput(
            f"--config {config}: no such preset{nearest(config, preset_names())}, and no such file:"
            f" the presets are {', '.join(preset_names())}"
        )
    if os.path.dirname(os.path.realpath(config)) == str(_PRESETS):
        return config, f"preset {pathlib.Path(config).stem}"
    return config, config
