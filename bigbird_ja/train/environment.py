"""What a run ran on, for its events: versions and the machine, nothing private."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from bigbird_ja import __version__

_PACKAGES = ("tensorflow", "numpy", "sentencepiece")


def describe(use_tpu: bool, cores: int) -> dict[str, Any]:
    """Versions, machine and device; no host names, paths or variables."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not a package"
    return {
        "bigbird_ja": __version__,
        "python": platform.python_version(),
        **versions,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "device": f"TPU, {cores} cores" if use_tpu else "CPU or GPU",
    }
