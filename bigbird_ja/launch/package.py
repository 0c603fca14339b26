"""The code that a machine installs: this package as a zip, stored on the bucket under its hash.

The zip has reproducible bytes, so that a restart months later installs the same code.
"""

import contextlib
import hashlib
import importlib.resources
import io
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import bigbird_ja
from bigbird_ja import storage
from bigbird_ja.accelerators import environment
from bigbird_ja.errors import BadInput
from bigbird_ja.launch.backends import engine_on
from bigbird_ja.launch.launched_run import LaunchedRun

_SUFFIXES = (".py", ".yaml", ".html", ".css", ".js", ".sh", ".json", ".lock", ".typed")
_EPOCH = (2020, 1, 1, 0, 0, 0)  # of every entry, for reproducible bytes


def build() -> bytes:
    """Return the running package as a zip."""
    root = Path(bigbird_ja.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in _SUFFIXES:
                entry = zipfile.ZipInfo(path.relative_to(root.parent).as_posix(), _EPOCH)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def noted(run: LaunchedRun, content: bytes) -> LaunchedRun:
    """Return the record of a run with a package: its hash, and its path on the bucket."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = storage.join(run.bucket, "packages", f"{sha256}.zip")
    return replace(run, package=path, package_sha256=sha256)


def lock(engine: str) -> str:
    """Return the file name of the lock that the machine installs (`scripts/make_locks.sh`).

    TPUEstimator runs on the image's own TensorFlow and Python, everything else in the environment
    that the tests run in.
    """
    return "image.lock" if engine == "estimator" else "machine.lock"


def check_lock() -> None:
    """Check that the lock has the versions that were tested and priced.

    Raises:
        BadInput: another version of TensorFlow, jax or libtpu.
    """
    pins = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", packaged("locks/machine.lock")))
    for name, version in environment.PACKAGES.items():
        if pins.get(name) != version:
            raise BadInput(
                f"launch/locks/machine.lock installs {name} {pins.get(name)}, and this version of"
                f" bigbird-ja was tested and priced with {version}: reinstall bigbird-ja"
            )


def store(run: LaunchedRun, before: LaunchedRun | None) -> LaunchedRun:
    """Return the record with the package that the run keeps; else store the installed one.

    Anyone who writes to the bucket may have written `before`, and the machine runs its package: it
    is kept only if its hash is noted on this disk, as launched from here.

    Raises:
        BadInput: the hash is not noted.
    """
    content = build()
    own = noted(run, content)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    notes = Path(cache, "bigbird-ja", "launched")
    kept = before.package_sha256 if before and before.package else own.package_sha256
    if before and kept != own.package_sha256:
        if not (re.fullmatch("[0-9a-f]{64}", kept) and (notes / kept).exists()):
            raise BadInput(
                f"{run.run_dir} has a package that was never launched from this machine, and that"
                " anybody who writes to the bucket can have put there: --update_package gives the"
                " run the installed code"
            )
        path = storage.join(run.bucket, "packages", f"{kept}.zip")
        if storage.exists(path):
            _check_installable(path, lock(engine_on(run.accelerator, run.engine)))
            return replace(run, package=path, package_sha256=kept)
    with contextlib.suppress(OSError):  # without a note a later version asks for --update_package
        notes.mkdir(parents=True, exist_ok=True)
        (notes / own.package_sha256).touch()
    storage.make_directory(storage.directory_of(own.package))
    storage.write_bytes(own.package, content)
    return own


def _check_installable(package: str, name: str) -> None:
    """Check that the current start-up script can install a stored package.

    Raises:
        BadInput: it is damaged, or of an earlier version without a lock of that name.
    """
    content, fault = storage.read_bytes(package), ""
    if hashlib.sha256(content).hexdigest() not in package:
        fault = "is damaged"
    elif f"locks/{name}" not in "".join(zipfile.ZipFile(io.BytesIO(content)).namelist()):
        fault = f"is of an earlier version, without the {name} that a machine installs today"
    if fault:
        raise BadInput(f"{package} {fault}: --update_package gives the run the installed code")


def packaged(name: str) -> str:
    """Read a file of this package as text."""
    return importlib.resources.files("bigbird_ja.launch").joinpath(name).read_text("utf-8")
