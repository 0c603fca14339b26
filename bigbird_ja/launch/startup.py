"""Fills in the start-up script of a TPU VM (`startup.sh`)."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.launch import watcher, wheel
from bigbird_ja.launch.backends import MODULES, engine_on, service_of
from bigbird_ja.launch.run_files import Run
from bigbird_ja.launch.services import RUN_DIR_KEY
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")
# In the environment of a test: `Vm` as JSON, so that this machine can stand for the rented one.
VM_VARIABLE = "BIGBIRD_JA_EMULATED_VM"
# Compute Engine takes up to 256 KiB for one metadata value.
MAX_BYTES = 256 * 1024


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
    requirements = wheel.requirements() if vm.installs else []
    lacking = wheel.engine_requirements(engine, run.spec.runtime_version) if vm.installs else ()
    values = {
        "RUN_NAME": run.name,
        "ATTEMPT": attempt,
        "WHEEL": run.wheel,
        "WHEEL_SHA256": run.wheel_sha256,
        "REQUIREMENTS": " ".join(requirements),
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
    # Every machine gets them, and the first one changes the run, which then has these values.
    changes = run.continue_with.items()
    return [*pretrain, *(f"--continue_with={key}={json.dumps(value)}" for key, value in changes)]


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
