"""Fills in the start-up script of a TPU VM (`startup.sh`)."""

from __future__ import annotations

import importlib.resources
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigbird_ja.errors import BadInput

_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")
# Compute Engine takes up to 256 KiB for one metadata value.
MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class Startup:
    """What the script is told, by the names of its places.

    Device and service manager are here so that tests run the same script on a CPU; the defaults are
    a Cloud TPU VM's.
    """

    run_name: str
    supervisor_dir: str
    model_dir: str
    wheel: str
    wheel_sha256: str
    pretrain_flags: Sequence[str]
    requirements: Sequence[str] = ()
    lacking: Sequence[str] = ()  # installed where the image has no version of them
    python: str = "python3"
    service_manager: str = "systemd"  # systemd | none: the script itself minds its processes
    api: str = "https://tpu.googleapis.com/v2"
    metadata: str = "http://metadata.google.internal"
    poll_seconds: int = 60
    ended_seconds: int = 1200
    stalled_seconds: int = 5400


def fill(startup: Startup, project: str, zone: str, attempt: int, queued: bool) -> str:
    """The script for one TPU, every value quoted for the shell.

    Raises:
        BadInput: a value with a line break or a NUL, which no flag of ours needs.
    """
    parent = f"projects/{project}/locations/{zone}"
    values: dict[str, object] = {name.upper(): value for name, value in vars(startup).items()}
    values |= {
        "ATTEMPT": attempt,
        "NODE": f"{parent}/nodes/{startup.run_name}",
        "QUEUED": f"{parent}/queuedResources/{startup.run_name}" if queued else "",
        "REQUIREMENTS": " ".join(startup.requirements),
        "LACKING": " ".join(startup.lacking),
    }
    quoted = {name: quote(str(value), name) for name, value in values.items()}
    flags = " ".join(quote(flag, "PRETRAIN_FLAGS") for flag in startup.pretrain_flags)
    script = substitute(template(), {**quoted, "PRETRAIN_FLAGS": flags})
    if len(script.encode()) > MAX_BYTES:
        raise BadInput(f"the start-up script is longer than {MAX_BYTES} bytes: use shorter flags")
    return script


def template() -> str:
    """The script with its places, as it is packaged."""
    return importlib.resources.files("bigbird_ja.cloud").joinpath("startup.sh").read_text("utf-8")


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
