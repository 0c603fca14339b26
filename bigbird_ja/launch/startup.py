"""Composes what a machine gets: the package as a zip, the config, and its start-up script.

The zip has reproducible bytes and is kept on the bucket under its hash, so that a restart months
later installs what the first start installed.
"""

import contextlib
import hashlib
import importlib.resources
import io
import json
import os
import re
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import bigbird_ja
from bigbird_ja import storage
from bigbird_ja.accelerators import environment
from bigbird_ja.launch import RUN_DIR_KEY, LaunchedRun, Machine, watcher
from bigbird_ja.launch.backends import MODULES, engine_on
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.state import CREATE_TIMEOUT, RunState
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import changes
from bigbird_ja.storage import decode

_SUFFIXES = (".py", ".yaml", ".html", ".css", ".js", ".sh", ".json", ".lock", ".typed")
_EPOCH = (2020, 1, 1, 0, 0, 0)  # of every entry: time is no part of the content
_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")
# In the environment of a test: `Emulation` as JSON, so that this machine can stand for the rented.
VM_VARIABLE = "BIGBIRD_JA_EMULATED_VM"


# --- the package ----------------------------------------------------------------------------------


def build_package() -> bytes:
    """Pack the running package as a zip."""
    root = Path(bigbird_ja.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in _SUFFIXES:
                entry = zipfile.ZipInfo(path.relative_to(root.parent).as_posix(), _EPOCH)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def with_package(run: LaunchedRun, content: bytes) -> LaunchedRun:
    """Note a package in the record of a run: its hash, and its place on the bucket."""
    sha256 = hashlib.sha256(content).hexdigest()
    path = storage.join(run.bucket, "packages", f"{sha256}.zip")
    return replace(run, package=path, package_sha256=sha256)


def lock(engine: str) -> str:
    """Name the lock of the packages that the machine installs, one of `scripts/make_locks.sh`.

    TPUEstimator runs on the image's own TensorFlow and Python, everything else in the environment
    that the tests run in.
    """
    return "image.lock" if engine == "estimator" else "machine.lock"


def check_lock() -> None:
    """Refuse a lock that differs from what this version was tested and priced with.

    Raises:
        BadInput: another version of TensorFlow, jax or libtpu.
    """
    pins = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", _packaged("locks/machine.lock")))
    for name, version in environment.PACKAGES.items():
        if pins.get(name) != version:
            raise BadInput(
                f"launch/locks/machine.lock installs {name} {pins.get(name)}, and this version of"
                f" bigbird-ja was tested and priced with {version}: reinstall bigbird-ja"
            )


def store(run: LaunchedRun, config: Config, data: Data, update_package: bool) -> LaunchedRun:
    """Write what the VM needs to the bucket.

    A run that was launched before keeps its package, unless `update_package`.

    Returns:
        The run with its package.

    Raises:
        BadInput: the run exists with a config that its checkpoints do not accept, nothing says what
            it has spent, or its package is nobody's who launches here.
    """
    before, files = read_run(run.bucket, run.name), RunFiles(run)
    path, state = run.supervisor("state.json"), files.load_state()
    if before is None and state is None:  # before the record: one without the other is a loss
        files.prepare()
        files.save_state(RunState())
    if before is not None:
        _check_unchanged(run, before, config, data)
    if before is not None and state is None:
        raise BadInput(
            f"{path} is lost, and so is what the run has spent: restore it from a copy, or remove"
            f" {run.run_dir}/supervisor: then the same command counts anew, from the checkpoint"
        )
    if before is not None and state is not None and state.attempt and state.machine is None:
        files.save_state(replace(state, machine=Machine.of(before)))  # of 0.1.0
    run = _store_package(run, None if update_package else before)
    storage.write_text(run.config_path, config_to_yaml(config, data))
    RunFiles(run).save_run()
    return run


def _check_unchanged(run: LaunchedRun, before: LaunchedRun, config: Config, data: Data) -> None:
    """Refuse another model or config than a run was launched with.

    Raises:
        BadInput: they differ, or the run was launched meanwhile.
    """
    if before.run_id != run.run_id:
        raise BadInput(f"{run.run_dir} was launched meanwhile: run the same command again")
    if before.init_from != run.init_from:
        raise BadInput(
            f"{run.run_dir} was launched with --init_from {before.init_from or '(none)'}, not"
            f" {run.init_from or '(none)'}: keep it, or choose another --name"
        )
    different = {}
    if storage.exists(run.config_path):
        different = changes(read_config(run.config_path), (config, data))
    if changed := [f"{key}: {old} -> {new}" for key, (old, new) in different.items()]:
        raise BadInput(
            f"{run.run_dir} was launched with another config: {'; '.join(changed[:5])}: keep"
            " it, or choose another --name"
        )


def _store_package(run: LaunchedRun, before: LaunchedRun | None) -> LaunchedRun:
    """Note in a run the package that it keeps, or the installed one, which is stored.

    Whoever writes to the bucket may have written `before`, and what it names runs on the machine:
    a package is kept only if its hash is noted on this disk, as launched from here.

    Raises:
        BadInput: it is another.
    """
    content = build_package()
    own = with_package(run, content)
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
            _check_installable(path, lock(engine_on(run.accelerator_type, run.engine)))
            return replace(run, package=path, package_sha256=kept)
    with contextlib.suppress(OSError):  # without a note a later version asks for --update_package
        notes.mkdir(parents=True, exist_ok=True)
        (notes / own.package_sha256).touch()
    stored = b""
    with contextlib.suppress(FileNotFoundError, BadInput):  # absent, or too large to be it
        stored = storage.read_bytes(own.package, len(content))
    if stored != content:
        storage.make_directory(storage.directory_of(own.package))
        storage.write_bytes(own.package, content)
    return own


def _check_installable(package: str, name: str) -> None:
    """Refuse a stored package that today's start-up script cannot install.

    Raises:
        BadInput: it is damaged, or of an earlier version that has no lock of that name.
    """
    content, fault = storage.read_bytes(package), ""
    if hashlib.sha256(content).hexdigest() not in package:
        fault = "is damaged"
    elif f"locks/{name}" not in "".join(zipfile.ZipFile(io.BytesIO(content)).namelist()):
        fault = f"is of an earlier version, without the {name} that a machine installs today"
    if fault:
        raise BadInput(f"{package} {fault}: --update_package gives the run the installed code")


# --- the start-up script --------------------------------------------------------------------------


@dataclass(frozen=True)
class Emulation:
    """Differences between a Cloud TPU VM, which the defaults describe, and a test's machine."""

    device: str = "tpu"  # tpu | cpu
    service_manager: str = "systemd"  # systemd | none: the script itself minds its processes
    installs: bool = True  # Python and the packages of the lock; else the image has them
    api: str = ""  # in place of the services' own addresses
    terms: dict[str, Any] = field(default_factory=dict)  # of `watcher.Terms`, in place of its own


def emulation(environ: Mapping[str, str] = os.environ) -> Emulation:
    """Return a Cloud TPU VM, or what a test has set."""
    text = environ.get(VM_VARIABLE)
    return decode.decode_json(text.encode(), Emulation, VM_VARIABLE) if text else Emulation()


def metadata(run: LaunchedRun, vm: Emulation, state: RunState) -> dict[str, str]:
    """Make the metadata of one machine: its start-up script, and whose machine it is.

    Args:
        run: the record of the run.
        vm: what it is rented as, or emulated by.
        state: with the machine's zone, attempt and limit.
    """
    requested = state.machine.requested if state.machine else 0.0
    service = MODULES[run.service]
    terms = watcher.Terms(
        attempt=state.attempt,
        limit=state.machine_limit,
        lease=run.lease,
        supervisor_dir=storage.join(run.run_dir, "supervisor"),
        model_dir=run.model_dir,
        delete=service.delete_addresses(vm.api, run, state.zone),
        requested=0.0 if run.queued else requested,  # waiting in line is no part of its life
        hosts=run.hosts,
        **vm.terms,
    )
    return {"startup-script": fill(run, vm, terms), RUN_DIR_KEY: run.run_dir}


def fill(run: LaunchedRun, vm: Emulation, terms: watcher.Terms) -> str:
    """Fill in the script for one machine, every value quoted for the shell; see `metadata`."""
    engine = engine_on(run.accelerator_type, run.engine)
    values = {
        "RUN_NAME": run.name,
        "ATTEMPT": terms.attempt,
        "PACKAGE": run.package,
        "PACKAGE_SHA256": run.package_sha256,
        "LOCK": lock(engine) if vm.installs else "",
        "PYTHON": run.vm_python,
        "SERVICE_MANAGER": vm.service_manager,
        "HOSTS": run.hosts,
        "TERMS": json.dumps(vars(terms)),
        "WATCHER": _packaged("watcher.py"),
    }
    words = {name: shlex.quote(str(value)) for name, value in values.items()}
    words["PRETRAIN_FLAGS"] = shlex.join(pretrain_flags(run, vm))
    # The text of a word is not searched for other words.
    return _PLACE.sub(lambda match: words[match[1]], _packaged("startup.sh"))


def pretrain_flags(run: LaunchedRun, vm: Emulation) -> list[str]:
    """Compose the flags with which the machine calls `pretrain`."""
    places = {"config": run.config_path, "data_dir": run.data_dir, "model_dir": run.model_dir}
    flags = [f"--{name}={place}" for name, place in places.items()]
    flags += ["--use_tpu", "--tpu_name=local"] if vm.device == "tpu" else ["--nouse_tpu"]
    if run.engine != "auto":
        flags.append(f"--engine={run.engine}")
    flags += [f"--init_from={run.init_from}"] if run.init_from else []
    flags += [f"--mode={run.mode}"] if run.mode != "train" else []
    if run.hosts > 1:
        # A host that reboots has as long to come as the supervisor waits for it.
        flags.append(f"--pod_wait_seconds={CREATE_TIMEOUT:.0f}")
    return flags


def _packaged(name: str) -> str:
    return importlib.resources.files("bigbird_ja.launch").joinpath(name).read_text("utf-8")
