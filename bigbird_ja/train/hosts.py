"""Find out which process of a pod this is, and refuse processes that differ.

On a TPU slice of several hosts every process knows its place from the machine; elsewhere
JAX's variables say it.
"""

import contextlib
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.data import order
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.classify import classify
from bigbird_ja.process.errors import BadInput, Interrupted, Stalled
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import leave
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.engines import devices
from bigbird_ja.train.pod import Pod
from bigbird_ja.train.processes import SingleProcess
from bigbird_ja.train.record import package_versions

ALONE = (0, 1, "")  # of `find_process`
_METADATA_SECONDS = 2.0
_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_SHARED_FLAGS = ("mode", "engine", "use_tpu", "init_from", "overwrite", "model_dir")


def _shared(args: Any, count: int, config: Config, manifest: Manifest) -> dict[str, str]:
    """Collect what all processes of a pod must have alike, by its name."""
    return {
        "bigbird-ja": __version__,
        **package_versions(),
        "fingerprint of the data": manifest.fingerprint[:16],
        _COUNT: str(count),
        **{f"--{name}": str(getattr(args, name)) for name in _SHARED_FLAGS},
        **{key: str(value) for key, value in flatten(config, manifest).items()},
    }


@contextlib.contextmanager
def joined(
    args: Any, config: Config, manifest: Manifest, stop: StopRequest, log: Callable[[str], None]
) -> Iterator[SingleProcess]:
    """Join the pod of this process, and yield it once all are there.

    Args:
        args: of `pretrain`.
        config: of the run, which all processes must share.
        manifest: of its data set, likewise.
        stop: of this process; requested when any process of the pod is to stop.
        log: for people.

    Raises:
        BadInput: the processes do not meet, or differ.
        Interrupted: a stop was requested.
    """

    def check() -> None:
        if stop.is_set():
            stop.answered()
            raise Interrupted("stopped before training: run the same command again")

    check()
    on_tpu = args.use_tpu and args.engine != "estimator" and devices.is_there(devices.TPU_FILES)
    index, count, address = find_process(os.environ, slice_place if on_tpu else None)
    if count == 1:
        yield SingleProcess()
        return
    if args.engine == "estimator":
        raise BadInput("--engine estimator drives all hosts from one process: leave it out")
    order.check_hosts(manifest.num_readers, config.training.global_batch_size, count)
    log(f"process {index} of {count}, which meet at {address}")
    pod = Pod(index, count, socket.gethostname(), stop.ask)

    def leave_all(message: str) -> None:
        pod.fail(Interrupted.reason, message)
        leave(Interrupted(message))

    with _ending_together(pod):
        pod.connect(address, devices.prepare(args.use_tpu), args.pod_wait_seconds, check)
        stop.install()  # JAX takes SIGTERM for itself
        ours = _shared(args, count, config, manifest)
        check_same(pod.name, ours, pod.share("process 0", lambda: ours))
        stop.tell = pod.ask_to_stop
        stop.leave = leave_all
        if stop.is_set():
            stop.tell(stop.name)
        yield pod


@contextlib.contextmanager
def _ending_together(pod: Pod) -> Iterator[None]:
    """Tell the others of a failure within, and leave without waiting for them."""
    try:
        yield
    except BaseException as error:
        known = classify(error) or pod.explain(error)
        pod.fail(known.reason if known else "bug", str(known or error))
        if known is not None and (known is not error or isinstance(known, Stalled)):
            # At once: XLA may wait for ever for who is gone, and the interpreter for XLA.
            leave(known)
        raise
    finally:
        pod.detach()


def check_same(name: str, ours: Mapping[str, str], first: Mapping[str, str]) -> None:
    """Refuse a process that differs from the first one.

    Args:
        name: of this process.
        ours: packages, data, flags and settings, here.
        first: the same in process 0.

    Raises:
        BadInput: in what they differ.
    """
    different = [key for key in sorted({*ours, *first}) if ours.get(key) != first.get(key)]
    if different:
        named = "; ".join(f"{k}={ours.get(k)} and not {first.get(k)}" for k in different[:4])
        raise BadInput(
            f"{name} differs from process 0 ({named[:400]}): give every host the same flags,"
            " settings, packages and data, with --model_dir on gs:// or on a disk that all share"
        )


def find_process(
    environ: Mapping[str, str], slice_place: Callable[[], tuple[list[str], int] | None] | None
) -> tuple[int, int, str]:
    """Find this process's number, of how many, and HOST:PORT at which process 0 serves.

    Args:
        environ: variables of the process.
        slice_place: `slice_place`; None where no TPU is used.

    Raises:
        BadInput: a part of it is missing, or makes no sense.
    """
    known = {name: environ[name] for name in (_ADDRESS, _COUNT, _INDEX) if environ.get(name)}
    if not known:
        hosts, index = (slice_place and slice_place()) or ([], 0)
        # They meet where JAX's own search for them would have them meet.
        return (index, len(hosts), f"{hosts[0]}:8476") if len(hosts) > 1 else ALONE
    if known == {_COUNT: "1"}:
        return ALONE
    with contextlib.suppress(KeyError, ValueError):
        count, index = int(known[_COUNT]), int(known[_INDEX])
        host, port = known[_ADDRESS].rsplit(":", 1)
        if host and 0 < int(port) < 65536 and 0 <= index < count:
            return (index, count, f"{host}:{port}") if count > 1 else ALONE
    given = ", ".join(f"{name}={value}" for name, value in known.items())
    raise BadInput(
        f"a pod of N processes needs {_ADDRESS}=HOST:PORT (of process 0), {_COUNT}=N and {_INDEX}"
        f" from 0 to N-1: here they are {given}"
    )


def tpu_metadata(attribute: str) -> str | None:
    """Ask for an attribute of this TPU VM; None where there is none, or no metadata server."""
    url = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as reply:
            return str(reply.read().decode().strip()) or None
    except (OSError, ValueError):
        return None


def slice_place(
    environ: Mapping[str, str] = os.environ, metadata: Callable[[str], str | None] = tpu_metadata
) -> tuple[list[str], int] | None:
    """Find the hosts of this machine's TPU slice, and this machine's number among them.

    None if neither GKE's variables nor the TPU VM's metadata name them.

    Raises:
        BadInput: one of several slices, or the machine has no number.
    """
    if int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        raise BadInput("several TPU slices in one run are not supported: use one slice")
    hosts, number = environ.get("TPU_WORKER_HOSTNAMES"), environ.get("TPU_WORKER_ID")
    if hosts is None or number is None:
        endpoints = metadata("worker-network-endpoints")
        if not endpoints:
            return None
        hosts = ",".join(worker.split(":")[-1] for worker in endpoints.split(","))
        # The Cloud TPU API has the first name, Compute Engine's groups the second.
        number = metadata("agent-worker-number") or metadata("worker-id") or ""
    if not number.isdigit():
        raise BadInput(f"this TPU VM's number in its slice is {number!r}: set {_INDEX}")
    return hosts.split(","), int(number)
