"""What a run ran on, for its events: versions and the machine, nothing private."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from typing import Any

from bigbird_ja import __version__

_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "libtpu", "numpy", "sentencepiece")


def describe(device: str) -> dict[str, Any]:
    """Versions of the packages that are there, machine and device; no host names, paths or
    variables."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "bigbird_ja": __version__,
        "python": platform.python_version(),
        **versions,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "device": device,
    }
