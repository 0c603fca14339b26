"""Code that a machine installs: this package as a zip, stored on the bucket under its hash.

The zip is reproducible, so that the same code has the same hash.
"""

import hashlib
import importlib.resources
import io
import re
import zipfile
from dataclasses import replace
from pathlib import Path

from bigbird_ja import storage
from bigbird_ja.accelerators import environment
from bigbird_ja.errors import BadInput
from bigbird_ja.launch.launched_run import LaunchedRun

_SUFFIXES = (".py", ".yaml", ".html", ".css", ".js", ".sh", ".json", ".lock", ".typed")
# Time stamp of every entry. It is constant, so that the zip is reproducible.
_EPOCH = (2020, 1, 1, 0, 0, 0)


def build() -> bytes:
    """Return the running package as a zip."""
    root = Path(__file__).resolve().parents[1]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in _SUFFIXES:
                entry = zipfile.ZipInfo(path.relative_to(root.parent).as_posix(), _EPOCH)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def note(run: LaunchedRun, content: bytes) -> LaunchedRun:
    """Add the hash and the path of a zip with code to a run's record, and return the record."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = storage.join(run.bucket, "packages", f"{sha256}.zip")
    return replace(run, package=path, package_sha256=sha256)


def lock(engine: str) -> str:
    """Return the name of the lock file with the packages that the machine installs.

    `scripts/make_locks.sh` writes these files. For the engine `estimator`, the machine uses the
    TensorFlow and the Python of its image. For the engine `pjrt`, it installs the packages with
    which the tests run.
    """
    return "image.lock" if engine == "estimator" else "machine.lock"


def check_lock() -> None:
    """Check that the machine would install the versions with which this package was tested.

    Raises:
        BadInput: A version of TensorFlow, jax or libtpu differs.
    """
    pins = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", read_packaged("locks/machine.lock")))
    for name, version in environment.PACKAGES.items():
        if pins.get(name) != version:
            raise BadInput(
                f"launch/locks/machine.lock installs {name} {pins.get(name)}, but this version of"
                f" bigbird-ja was tested with {version}: reinstall bigbird-ja"
            )


def store(run: LaunchedRun) -> LaunchedRun:
    """Store the installed package on the bucket.

    Every launch uploads the installed code. Code that is already on the bucket is never used, since
    anyone with write access to the bucket may have changed it.

    Returns:
        The record of the run, with the path and the hash of the package.
    """
    content = build()
    noted = note(run, content)
    storage.make_directory(storage.get_directory(noted.package))
    storage.write_bytes(noted.package, content)
    return noted


def read_packaged(name: str) -> str:
    """Read a file of the package `bigbird_ja.launch` as text."""
    return importlib.resources.files("bigbird_ja.launch").joinpath(name).read_text("utf-8")
