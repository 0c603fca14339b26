"""Presets by name: short YAML files that come with the package."""

from __future__ import annotations

import os
import pathlib

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.suggestions import nearest

_DIRECTORY = pathlib.Path(__file__).resolve().parent / "presets"


def names() -> list[str]:
    """The presets there are, in alphabetical order."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))


def preset_path(name: str) -> str:
    """The path of a preset.

    Raises:
        BadInput: no such preset; the nearest is named.
    """
    if name not in names():
        raise BadInput(f"no preset {name!r}{nearest(name, names())}: {', '.join(names())}")
    return str(_DIRECTORY / f"{name}.yaml")


def locate(config: str) -> tuple[str, str]:
    """The path and the name for messages of what `--config` says: a preset or a file.

    A name without a folder and an ending is a preset's; a file of such a name is ./NAME.

    Raises:
        BadInput: an empty name, or no such preset.
    """
    if not config:
        raise BadInput("--config is empty: name a preset or a YAML file, or leave it out")
    if config in names():
        return preset_path(config), f"preset {config}"
    is_name = os.path.basename(config) == config and not os.path.splitext(config)[1]
    if is_name and not os.path.lexists(config):
        raise BadInput(
            f"--config {config}: no such preset{nearest(config, names())}, and no such file:"
            f" the presets are {', '.join(names())}"
        )
    if _is_preset_file(config):
        return config, f"preset {pathlib.Path(config).stem}"
    return config, config


def hint(config: str) -> str:
    """What to say where a file is not there: the preset of that name, or an empty string."""
    stem = pathlib.PurePath(config).stem
    return f" (the preset of that name: --config {stem})" if stem in names() else ""


def _is_preset_file(config: str) -> bool:
    try:
        return pathlib.Path(config).resolve().parent == _DIRECTORY
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
        return False
