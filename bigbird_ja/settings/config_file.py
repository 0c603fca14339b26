"""Files of settings: a user's YAML file, presets, and `MODEL_DIR/config.yaml`."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import msgspec

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.checks import validate_config
from bigbird_ja.settings.data_facts import PAD_ID, Data, derive_data, get_data_entries
from bigbird_ja.settings.option import shorten
from bigbird_ja.settings.provenance import Layer, read_layer
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.suggestions import suggest_nearest
from bigbird_ja.settings.values import replace_settings

_PRESETS = pathlib.Path(__file__).resolve().parent / "presets"
_RESTORE = "restore the file from a copy of the run"


def list_presets() -> list[str]:
    """List the presets in alphabetical order."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def read_preset_purposes() -> dict[str, str]:
    """Return the purpose of each preset, which is the first line of its file."""
    texts = {
        name: pathlib.Path(get_preset_path(name)).read_text("utf-8") for name in list_presets()
    }
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def get_preset_path(name: str) -> str:
    """Return the path of a preset."""
    return str(_PRESETS / f"{name}.yaml")


def locate(config: str) -> tuple[str, str]:
    """Return the path of a preset or of a user's file, and a name for messages.

    A file with the name of a preset must be given as ./NAME.

    Raises:
        BadInput: `config` is empty, or names neither a preset nor a file.
    """
    if not config:
        raise BadInput("`config` is empty: name a preset or a YAML file, or remove the parameter")
    if config in list_presets():
        return get_preset_path(config), f"preset {config}"
    is_name = os.path.basename(config) == config and not os.path.splitext(config)[1]
    if is_name and not os.path.lexists(config):
        presets = list_presets()
        raise BadInput(
            f"`config` {config} is neither a preset{suggest_nearest(config, presets)} nor a file;"
            f" the presets are {', '.join(presets)}"
        )
    if os.path.dirname(os.path.realpath(config)) == str(_PRESETS):
        return config, f"preset {pathlib.Path(config).stem}"
    return config, config


def config_to_yaml(config: Config, data: Data | None = None) -> str:
    """Format the settings of a run as YAML for `MODEL_DIR/config.yaml`."""
    import yaml

    from bigbird_ja.storage.decode import FORMAT_VERSION

    values = msgspec.to_builtins(config)
    for key, value in (get_data_entries(data) if data else {}).items():
        section, _, name = key.partition(".")
        values[section][name] = value
    values = {"format_version": FORMAT_VERSION, **values}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def read_config(path: str) -> tuple[Config, Data]:
    """Read a `config.yaml` that `config_to_yaml` wrote.

    Raises:
        BadInput: The file is missing, is not a config, or has an unsupported format version.
    """
    values, _ = _read(path, path, is_ours=True)
    pad_id = values.pop(PAD_ID, 0)
    stated = {o.key: o.value for o in read_layer(Layer(path, values))}
    try:
        config = replace_settings(Config(), stated)
    except TypeError as error:
        # Raised by msgspec for a setting that the chosen class does not contain.
        raise BadInput(f"{path} is not valid ({error}). {_RESTORE.capitalize()}") from error
    validate_config(config)
    if type(pad_id) is not int or pad_id < 0:
        shown = f"{PAD_ID}={shorten(pad_id)}"
        raise BadInput(f"{path}: {shown} is not a token id. {_RESTORE.capitalize()}")
    return config, derive_data(config, pad_id)


def read_file(path: str, source: str) -> Layer:
    """Read a file of settings.

    Args:
        path: file, on disk or gs://.
        source: name of the file, for messages.

    Raises:
        BadInput: The file is missing, or not a file of settings.
    """
    values, is_complete = _read(path, source)
    if is_complete:
        values.pop(PAD_ID, None)
    return Layer(source, values, is_complete)


def _read(path: str, source: str, is_ours: bool = False) -> tuple[dict[str, Any], bool]:
    """Read a file of settings.

    Args:
        path: file, on disk or gs://.
        source: name of the file, for messages.
        is_ours: whether the file must be the `config.yaml` of a run, which contains a format
            version.

    Returns:
        The values by key, and whether the file contains all settings, as a `config.yaml` does.
    """
    from bigbird_ja import storage
    from bigbird_ja.storage import decode

    try:
        text = storage.read_text(path, decode.MAX_YAML_BYTES)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        why = f"{path} is missing: {_RESTORE}" if is_ours else f"`config` {path}: no such file"
        raise BadInput(why) from error
    values = decode.read_yaml(text, path)
    # An empty file is an error, as it may be truncated.
    if values is None:
        raise BadInput(f"{path} contains no settings: name another file")
    if not isinstance(values, dict):
        raise BadInput(f"{path} must contain sections such as `model:` and `training:`")
    version = str(values.pop("format_version", ""))
    if version or is_ours:
        decode.check_format(version, path, "start a new run, or use the version that wrote it")
    for section, entries in values.items():
        if not isinstance(entries, dict | None):
            raise BadInput(f"{source}: {section} must contain a key and a value on each line")
    return {
        f"{section}.{key}": value
        for section, entries in values.items()
        for key, value in (entries or {}).items()
    }, bool(version)
