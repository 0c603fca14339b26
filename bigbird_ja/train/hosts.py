"""`pretrain` on several hosts: which process this is, and what all of them must share.

On a TPU slice of several hosts every process knows its place from the machine; elsewhere flags or
JAX's variables say it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.data import order
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.errors import BadInput, CommandError, Interrupted, classify
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import write_results
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.engines import devices
from bigbird_ja.train.pod import Alone, Pod

TPU_PORT = 8476  # where the processes of a TPU slice meet, as in JAX
_FLAGS = {
    "address": ("--coordinator_address", "JAX_COORDINATOR_ADDRESS"),
    "count": ("--num_processes", "JAX_NUM_PROCESSES"),
    "index": ("--process_id", "JAX_PROCESS_ID"),
}
_METADATA_SECONDS = 2.0
# Packages that have a part in the program that all processes run together.
_PACKAGES = ("jax", "jaxlib", "libtpu", "tensorflow", "tensorflow-cpu", "numpy")
_SHARED_FLAGS = ("num_processes", "mode", "engine", "use_tpu", "init_from", "overwrite")
# What to do where hosts differ.
_ADVICE = {
    "version": "install the same bigbird-ja on every host",
    "packages": "install the same packages on every host",
    "data": "give the same --data_dir everywhere",
    "MODEL_DIR": "give the same --model_dir everywhere, on gs:// or on a disk that all hosts share",
}


@dataclass(frozen=True)
class Process:
    """A process among those that train together."""

    index: int = 0
    count: int = 1
    address: str = ""  # HOST:PORT at which process 0 serves


@contextlib.contextmanager
def joined(
    args: Any, config: Config, manifest: Manifest, stop: StopRequest, log: Callable[[str], None]
) -> Iterator[Alone]:
    """The pod that this process belongs to, once all are there; `Alone` where it belongs to none.

    Args:
        args: of `pretrain`.
        config, manifest: of the run, which all processes must share.
        stop: of this process; requested when any process of the pod is to stop.
        log: for people.

    Raises:
        BadInput: the processes do not meet, or differ.
    """
    on_tpu = args.use_tpu and args.engine != "estimator" and devices.is_there(devices.TPU_FILES)
    process = find_process(
        (args.coordinator_address, args.num_processes, args.process_id),
        os.environ,
        tpu_metadata if on_tpu else None,
    )
    if process.count == 1:
        yield Alone()
        return
    if args.engine == "estimator":
        raise BadInput("--engine=estimator drives all hosts from one process: leave it out")
    order.check_hosts(
        manifest.num_readers, config.training.global_batch_size, process.count, process.index
    )
    log(f"process {process.index} of {process.count}, which meet at {process.address}")
    pod = Pod(process.index, process.count, socket.gethostname(), stop.ask, leave)

    def check_stop() -> None:
        if stop.is_set():
            stop.answered()
            raise Interrupted("stopped before training: run the same command again")

    try:
        platform = devices.prepare(args.use_tpu)
        pod.connect(process.address, platform, args.pod_wait_seconds, check_stop)
        stop.install()  # JAX takes SIGTERM for itself
        check_same(pod.gather("card", {"name": pod.name, **describe(args, config, manifest)}))
        stop.tell = lambda name: pod.ask(
            "stop", name if "in process" in name else f"{name} in {pod.name}"
        )
        stop.leave = lambda message: _leave_all(pod, Interrupted(message))
        if stop.is_set():
            stop.tell(stop.name)
        yield pod
    except BaseException as error:
        known = classify(error) or pod.explain(error)
        pod.fail(known.reason if known else "bug", str(known or error))
        if known is not None and known is not error:
            raise known from error
        raise
    finally:
        pod.detach()


def describe(args: Any, config: Config, manifest: Manifest) -> dict[str, Any]:
    """What the processes of a pod must have in common."""
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "version": __version__,
        "packages": packages,
        "data": manifest.fingerprint[:16],
        "settings": {key: str(value) for key, value in flatten(config).items()},
        "flags": {f"--{name}": str(getattr(args, name)) for name in _SHARED_FLAGS},
        "MODEL_DIR": args.model_dir,
    }


def check_same(cards: Sequence[Mapping[str, Any]]) -> None:
    """Refuses processes that differ.

    Args:
        cards: of `describe` for each process, with its `name`.

    Raises:
        BadInput: the first that differs from process 0, in what, and what to do.
    """
    for card in cards[1:]:
        for key, ours in cards[0].items():
            theirs = card[key]
            if key == "name" or theirs == ours:
                continue
            if isinstance(ours, dict):
                keys = [k for k in sorted({*ours, *theirs}) if ours.get(k) != theirs.get(k)]
                ours, theirs = (
                    ", ".join(f"{k}={x.get(k)}" for k in keys[:4]) for x in (ours, theirs)
                )
            advice = _ADVICE.get(key, "give the same flags and settings everywhere")
            raise BadInput(
                f"{card['name']} has another {key} ({theirs[:200]}) than {cards[0]['name']}"
                f" ({ours[:200]}): {advice}"
            )


def leave(error: CommandError) -> None:
    """Ends the process at once, from any thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"bigbird-ja: {error}\n".encode())
    write_results({"reason": error.reason, "error": str(error)})
    os._exit(error.status)


def _leave_all(pod: Pod, error: CommandError) -> None:
    pod.fail(error.reason, str(error))
    leave(error)


def find_process(
    flags: tuple[str | None, int | None, int | None],
    environ: Mapping[str, str],
    metadata: Callable[[str], str | None] | None,
) -> Process:
    """Which process of how many this is.

    Args:
        flags: address, count and index as the command line gives them, or None.
        environ: variables of the process.
        metadata: gives an attribute of this TPU VM, or None where it has none; None where no TPU
            is used.

    Raises:
        BadInput: a part of it is missing, or makes no sense.
    """
    given = dict(zip(_FLAGS, flags, strict=True))
    known = {
        name: str(environ.get(variable) if given[name] is None else given[name])
        for name, (_, variable) in _FLAGS.items()
        if given[name] is not None or environ.get(variable)
    }
    if not known or known == {"count": "1"}:
        return _of_slice(environ, metadata) if metadata is not None and not known else Process()
    for name, (flag, variable) in _FLAGS.items():
        if name not in known:
            raise BadInput(f"a pod of several processes needs {flag} too (or {variable})")
    index, count = _number(known["index"], "index"), _number(known["count"], "count")
    if count < 1 or index >= count:
        raise BadInput(
            f"--process_id={index}: the {count} processes of this pod (--num_processes) count from"
            f" 0 to {count - 1}: a process too many, or a wrong number"
        )
    host, _, port = known["address"].rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(
            f"--coordinator_address={known['address']}: write it as HOST:PORT, of the host of"
            " process 0 and a port that is free there"
        )
    return Process(index, count, known["address"]) if count > 1 else Process()


def _of_slice(environ: Mapping[str, str], metadata: Callable[[str], str | None]) -> Process:
    """On a TPU slice of several hosts: from GKE's variables, or a TPU VM's metadata."""
    if int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        raise BadInput("several TPU slices in one run are not supported: use one slice")
    hosts, number = environ.get("TPU_WORKER_HOSTNAMES"), environ.get("TPU_WORKER_ID")
    if hosts is None or number is None:
        endpoints = metadata("worker-network-endpoints")
        if not endpoints:
            return Process()
        hosts = ",".join(worker.split(":")[-1] for worker in endpoints.split(","))
        # The Cloud TPU API has the first name, Compute Engine's groups the second.
        number = metadata("agent-worker-number") or metadata("worker-id")
    names = hosts.split(",")
    if len(names) == 1:
        return Process()
    return Process(_number(number or "", "index"), len(names), f"{names[0]}:{TPU_PORT}")


def tpu_metadata(attribute: str) -> str | None:
    """An attribute of this TPU VM; None where there is none, or no metadata server."""
    url = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as reply:
            return str(reply.read().decode().strip()) or None
    except (OSError, urllib.error.URLError, ValueError):
        return None


def _number(text: str, name: str) -> int:
    if not text.isdigit():
        flag, variable = _FLAGS[name]
        raise BadInput(f"{flag} (or {variable}): expected a whole number from 0 on")
    return int(text)
