"""Presets: files of settings that come with the package."""

import os
import pathlib

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.suggestions import nearest

_PRESETS = pathlib.Path(__file__).resolve().parent / "presets"


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


def locate(config: str) -> tuple[str, str]:
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
