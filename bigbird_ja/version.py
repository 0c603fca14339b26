"""The version of this package, and the commit of a checkout."""

import functools
import subprocess
from pathlib import Path

# pyproject.toml reads this version. CITATION.cff and the changelog must contain the same
# version (tests/test_version.py).
VERSION = "0.2.0.dev0"


@functools.cache
def find_version(package: Path = Path(__file__).parent) -> str:
    """Return the version, with the commit if the package is in a git checkout.

    Args:
        package: folder of the package.

    Returns:
        `0.2.0.dev0+g1a2b3c4d5e` in a checkout, else `0.2.0.dev0`.
    """
    root = package.resolve().parent
    if not (root / ".git").exists():
        return VERSION
    command = ["git", "-C", str(root), "rev-parse", "--short=10", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return VERSION
    return f"{VERSION}+g{done.stdout.strip()}"
