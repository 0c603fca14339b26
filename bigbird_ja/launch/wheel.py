"""The package as a wheel of reproducible bytes, kept on the bucket under its hash.

A restart months later installs what the first start installed. The wheel is written here and not
by a build tool because it must come out the same from a source tree and from an installed package.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.resources
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

import bigbird_ja
from bigbird_ja import storage

_SUFFIXES = (".py", ".yaml", ".html", ".css", ".js", ".sh", ".json", ".typed")
# What `pretrain` needs on a TPU VM beyond the image's TensorFlow (and what comes with that).
_NEEDED = (
    "absl-py",
    "cloud-tpu-client",
    "google-cloud-storage",
    "google-crc32c",
    "msgspec",
    "pyyaml",
    "sentencepiece",
)
# For the engine of JAX's runtime, as in pyproject.toml's extras: beside TensorFlow 2.15, or newer.
_BESIDE_TENSORFLOW_2_15 = ("jax==0.4.34", "jaxlib==0.4.34", "libtpu>=0.0.2,<0.0.12")
_NEWER = ("tensorflow-cpu>=2.15", "jax>=0.4.34", "libtpu>=0.0.2")
_METADATA = "Metadata-Version: 2.1\nName: bigbird-ja\n"
_EPOCH = (2020, 1, 1, 0, 0, 0)  # of every entry: time is no part of the content


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    file_name: str
    content: bytes
    sha256: str


def build(package_dir: str | None = None) -> Wheel:
    """Packs the running package.

    Args:
        package_dir: another copy of it, for tests.
    """
    root = package_dir or os.path.dirname(os.path.abspath(bigbird_ja.__file__))
    version = bigbird_ja.__version__
    info = f"bigbird_ja-{version}.dist-info"
    files = [(f"bigbird_ja/{name}", _read(os.path.join(root, name))) for name in _files(root)]
    files += [
        (f"{info}/METADATA", f"{_METADATA}Version: {version}\n".encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: bigbird-ja\nRoot-Is-Purelib: true\n"
                          b"Tag: py3-none-any\n"),
        (f"{info}/entry_points.txt", b"[console_scripts]\nbigbird-ja = bigbird_ja.__main__:main\n"),
    ]  # fmt: skip
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    content = buffer.getvalue()
    return Wheel(
        f"bigbird_ja-{version}-py3-none-any.whl", content, hashlib.sha256(content).hexdigest()
    )


def location(bucket: str, wheel: Wheel) -> str:
    """Where a wheel lies: pip wants its name, so the hash is the folder."""
    return storage.join(bucket, "packages", wheel.sha256, wheel.file_name)


def upload(bucket: str, wheel: Wheel) -> str:
    """Puts the wheel on the bucket unless it is there; returns its path."""
    path = location(bucket, wheel)
    if not storage.exists(path):
        storage.make_directory(storage.directory_of(path))
        storage.write_bytes(path, wheel.content)
    return path


def requirements() -> list[str]:
    """What the VM installs beside the image's TensorFlow, pinned to what runs here."""
    pins = []
    for name in _NEEDED:
        try:
            pins.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pins.append(name)
    return pins


def engine_requirements(engine: str, runtime_version: str) -> tuple[str, ...]:
    """What the VM installs of which its image has no version at all.

    Args:
        engine: "estimator" or "pjrt".
        runtime_version: of the VM's image.
    """
    if engine == "estimator":
        return ()
    return _BESIDE_TENSORFLOW_2_15 if "tf-2.15" in runtime_version else _NEWER


def _files(root: str) -> Iterator[str]:
    for directory, _, names in sorted(os.walk(root)):
        if "__pycache__" not in directory:
            paths = (os.path.relpath(os.path.join(directory, name), root) for name in names)
            yield from sorted(p.replace(os.sep, "/") for p in paths if p.endswith(_SUFFIXES))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
