"""What a machine gets: the package as a wheel, the config, and its start-up script (`startup.sh`).

The wheel has reproducible bytes and is kept on the bucket under its hash, so that a restart months
later installs what the first start installed. It is written here and not by a build tool because
it must come out the same from a source tree and from an installed package.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.resources
import io
import json
import os
import re
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import bigbird_ja
from bigbird_ja import storage
from bigbird_ja.launch import watcher
from bigbird_ja.launch.backends import MODULES, engine_on, service_of
from bigbird_ja.launch.run_files import BucketFiles, Run, read_run
from bigbird_ja.launch.services import RUN_DIR_KEY
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_to_yaml, differences
from bigbird_ja.storage import decode

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
_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")
# In the environment of a test: `Vm` as JSON, so that this machine can stand for the rented one.
VM_VARIABLE = "BIGBIRD_JA_EMULATED_VM"
# Compute Engine takes up to 256 KiB for one metadata value.
MAX_BYTES = 256 * 1024


# --- the package ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    file_name: str
    content: bytes
    sha256: str

    def path_on(self, bucket: str) -> str:
        """Where it lies: pip wants its name, so the hash is the folder."""
        return storage.join(bucket, "packages", self.sha256, self.file_name)


def build_wheel() -> Wheel:
    """Packs the running package."""
    root = Path(bigbird_ja.__file__).resolve().parent
    version = bigbird_ja.__version__
    info = f"bigbird_ja-{version}.dist-info"
    paths = [path for path in sorted(root.rglob("*")) if path.suffix in _SUFFIXES]
    files = [(path.relative_to(root.parent).as_posix(), path.read_bytes()) for path in paths]
    files += [
        (f"{info}/METADATA", f"{_METADATA}Version: {version}\n".encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: bigbird-ja\nRoot-Is-Purelib: true\n"
                          b"Tag: py3-none-any\n"),
        (f"{info}/entry_points.txt", b"[console_scripts]\nbigbird-ja = bigbird_ja.__main__:main\n"),
    ]  # fmt: skip
    record = ""
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
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


def upload(bucket: str, wheel: Wheel) -> str:
    """Puts the wheel on the bucket unless it is there; returns its path."""
    path = wheel.path_on(bucket)
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


def store(run: Run, config: Config, update_package: bool) -> Run:
    """Writes what the VM needs to the bucket.

    A run that was launched before keeps its package, unless `update_package`.

    Returns:
        The run with its package.

    Raises:
        BadInput: the run exists with a config that its checkpoints do not accept.
    """
    before = read_run(run.bucket, run.name)
    BucketFiles(run).prepare()
    if before is not None and before.spec.run_id != run.spec.run_id:
        raise BadInput(f"{run.run_dir} was launched meanwhile: run the same command again")
    if before is None:
        run.save()  # the run's id, by which its machines are known
    elif storage.exists(run.config_path):
        changed = differences(read_config(run.config_path), config)
        if changed:
            raise BadInput(
                f"{run.run_dir} was launched with another config: {'; '.join(changed[:5])}: keep"
                " it, or choose another --name"
            )
    if before and not update_package and before.wheel and storage.exists(before.wheel):
        run = replace(run, wheel=before.wheel, wheel_sha256=before.wheel_sha256)
    else:
        package = build_wheel()
        run = replace(run, wheel=upload(run.bucket, package), wheel_sha256=package.sha256)
    storage.write_text(run.config_path, config_to_yaml(config))
    run.save()
    return run


# --- the start-up script --------------------------------------------------------------------------


@dataclass(frozen=True)
class Vm:
    """What the trainer runs on; the defaults are a Cloud TPU VM's, in seconds."""

    device: str = "tpu"  # tpu | cpu
    service_manager: str = "systemd"  # systemd | none: the script itself minds its processes
    installs: bool = True  # what the package needs beside TensorFlow
    api: str = ""  # in place of the services' own addresses
    metadata: str = "http://metadata.google.internal"
    storage: str = "https://storage.googleapis.com"
    poll_seconds: float = 60.0
    ended_seconds: float = 1200.0  # training has ended and nobody came
    stalled_seconds: float = 5400.0  # no new step, from the very start


def vm_from_environment(environ: Mapping[str, str] = os.environ) -> Vm:
    """A Cloud TPU VM, or what a test has set."""
    text = environ.get(VM_VARIABLE)
    return decode.decode_json(text.encode(), Vm, VM_VARIABLE) if text else Vm()


def metadata(
    run: Run, vm: Vm, zone: str, attempt: int, limit: float, asked: float = 0.0
) -> dict[str, str]:
    """The metadata of one machine: its start-up script, and whose machine it is.

    Args:
        attempt: which creation of the run it is.
        limit: seconds that the machine may live at most.
        asked: UNIX seconds at which it is asked for; 0: its life begins when it boots.

    Raises:
        BadInput: a value with a line break or a NUL, which no flag of ours needs.
    """
    service = MODULES[service_of(run.spec.accelerator_type)]
    address = service.delete_address(vm.api, run.project, run.spec, zone)
    return {"startup-script": fill(run, vm, attempt, limit, address, asked),
            RUN_DIR_KEY: run.run_dir}  # fmt: skip


def fill(
    run: Run, vm: Vm, attempt: int, limit: float, delete_address: str, asked: float = 0.0
) -> str:
    """The script for one machine, every value quoted for the shell; see `metadata`."""
    engine = engine_on(run.spec.accelerator_type, run.engine)
    supervisor_dir = storage.join(run.run_dir, "supervisor")
    terms = watcher.Terms(
        attempt=attempt,
        limit=limit,
        lease=run.settings.lease,
        ended=vm.ended_seconds,
        stalled=vm.stalled_seconds,
        poll=vm.poll_seconds,
        supervisor_dir=supervisor_dir,
        model_dir=run.model_dir,
        delete=[delete_address],
        metadata=vm.metadata,
        storage=vm.storage,
        asked=asked,
        hosts=run.settings.hosts,
    )
    needed = requirements() if vm.installs else []
    lacking = engine_requirements(engine, run.spec.runtime_version) if vm.installs else ()
    values = {
        "RUN_NAME": run.name,
        "ATTEMPT": attempt,
        "WHEEL": run.wheel,
        "WHEEL_SHA256": run.wheel_sha256,
        "REQUIREMENTS": " ".join(needed),
        "LACKING": " ".join(lacking),
        "PYTHON": run.vm_python,
        "SERVICE_MANAGER": vm.service_manager,
        "HOSTS": run.settings.hosts,
        "TERMS": json.dumps(vars(terms)),
    }
    quote(run.run_dir, "bucket")  # JSON would take a line break; neither path nor person means one
    words = {name: quote(str(value), name) for name, value in values.items()}
    words["PRETRAIN_FLAGS"] = " ".join(
        quote(flag, "PRETRAIN_FLAGS") for flag in pretrain_flags(run, vm)
    )
    words["WATCHER"] = shlex.quote(_packaged("watcher.py"))
    script = substitute(template(), words)
    if len(script.encode()) > MAX_BYTES:
        raise BadInput(f"the start-up script is longer than {MAX_BYTES} bytes: use shorter flags")
    return script


def pretrain_flags(run: Run, vm: Vm) -> list[str]:
    """How the machine calls `pretrain`."""
    pretrain = [
        f"--config={run.config_path}", f"--data_dir={run.data_dir}", f"--model_dir={run.model_dir}",
    ]  # fmt: skip
    pretrain += ["--use_tpu", "--tpu_name=local"] if vm.device == "tpu" else ["--nouse_tpu"]
    if run.engine != "auto":
        pretrain.append(f"--engine={run.engine}")
    if run.settings.hosts > 1:
        # A lost host's successor has as long to come as the supervisor waits for it.
        pretrain.append(f"--pod_wait_seconds={run.settings.create_timeout:.0f}")
    return pretrain


def template() -> str:
    """The script with its places, as it is packaged."""
    return _packaged("startup.sh")


def _packaged(name: str) -> str:
    return importlib.resources.files("bigbird_ja.launch").joinpath(name).read_text("utf-8")


def quote(value: str, name: str) -> str:
    """One shell word.

    Raises:
        BadInput: the value holds a control character.
    """
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise BadInput(f"{name.lower()}={value!r}: control characters are not taken here")
    return shlex.quote(value)


def substitute(text: str, words: Mapping[str, str]) -> str:
    """Puts each word in its place, once; what a word contains is never looked at again.

    Raises:
        ValueError: a place without a word, or a word without a place, which is a programming error.
    """
    # The comment at the top names the marks themselves; places have letters between them.
    places = set(_PLACE.findall(text))
    if places != set(words):
        raise ValueError(f"template and values differ in {sorted(places ^ set(words))}")
    return _PLACE.sub(lambda match: words[match[1]], text)
