"""Fills in the start-up script of a TPU VM (`startup.sh`)."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigbird_ja.launch import watcher
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")
# In the environment of a test: `Vm` as JSON, so that this machine can stand for the rented one.
VM_VARIABLE = "BIGBIRD_JA_EMULATED_VM"
# Compute Engine takes up to 256 KiB for one metadata value.
MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class Vm:
    """The machine around the trainer; the defaults are a Cloud TPU VM's, in seconds."""

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
    """A Cloud TPU VM, or what a test says."""
    text = environ.get(VM_VARIABLE)
    return decode.decode_json(text.encode(), Vm, VM_VARIABLE) if text else Vm()


@dataclass(frozen=True)
class Startup:
    """What the script is told, by the names of its places."""

    run_name: str
    supervisor_dir: str
    model_dir: str
    wheel: str
    wheel_sha256: str
    pretrain_flags: Sequence[str]
    requirements: Sequence[str] = ()
    lacking: Sequence[str] = ()  # installed where the image has no version of them
    python: str = "python3"
    lease_seconds: float = 43_200.0
    hosts: int = 1  # of the slice; the script runs on each
    vm: Vm = Vm()


def fill(
    startup: Startup, attempt: int, limit: float, delete: Sequence[str], asked: float = 0.0
) -> str:
    """The script for one machine, every value quoted for the shell.

    Args:
        startup: what is the same for every machine of the run.
        attempt: which creation it is.
        limit: seconds that the machine may live at most.
        delete: addresses whose deletion deletes it.
        asked: UNIX seconds at which it is asked for; 0: its life begins when it boots.

    Raises:
        BadInput: a value with a line break or a NUL, which no flag of ours needs.
    """
    vm = startup.vm
    told = watcher.Told(
        attempt=attempt,
        limit=limit,
        lease=startup.lease_seconds,
        ended=vm.ended_seconds,
        stalled=vm.stalled_seconds,
        poll=vm.poll_seconds,
        supervisor_dir=startup.supervisor_dir,
        model_dir=startup.model_dir,
        delete=list(delete),
        metadata=vm.metadata,
        storage=vm.storage,
        asked=asked,
        hosts=startup.hosts,
    )
    values = {
        "RUN_NAME": startup.run_name,
        "ATTEMPT": attempt,
        "WHEEL": startup.wheel,
        "WHEEL_SHA256": startup.wheel_sha256,
        "REQUIREMENTS": " ".join(startup.requirements),
        "LACKING": " ".join(startup.lacking),
        "PYTHON": startup.python,
        "SERVICE_MANAGER": vm.service_manager,
        "HOSTS": startup.hosts,
        "TOLD": json.dumps(vars(told)),
    }
    # JSON would take a line break in a path; neither the bucket nor a person means one.
    for name in ("supervisor_dir", "model_dir"):
        quote(getattr(startup, name), name)
    quoted = {name: quote(str(value), name) for name, value in values.items()}
    flags = " ".join(quote(flag, "PRETRAIN_FLAGS") for flag in startup.pretrain_flags)
    code = shlex.quote(_packaged("watcher.py"))
    script = substitute(template(), {**quoted, "PRETRAIN_FLAGS": flags, "WATCHER": code})
    if len(script.encode()) > MAX_BYTES:
        raise BadInput(f"the start-up script is longer than {MAX_BYTES} bytes: use shorter flags")
    return script


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
