"""Connection of the processes that train together (a pod), and a check of their settings.

A process finds its number and the number of processes in JAX's environment variables. If these are
not set on a TPU slice, GKE's variables or the TPU VM's metadata contain the numbers.
"""

import contextlib
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from bigbird_ja import __version__
from bigbird_ja.data import order
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput, Interrupted, Stalled
from bigbird_ja.process.classify import classify
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.engines import devices
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.pod import Pod
from bigbird_ja.train.processes import Processes, SingleProcess
from bigbird_ja.train.run_logger import list_package_versions

# Result of `find_process` if only one process trains.
ALONE = (0, 1, "")
_METADATA_SECONDS = 2.0
_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


@contextlib.contextmanager
def join_pod(
    *,
    engine: str,
    use_tpu: bool,
    wait_seconds: float,
    shared: Mapping[str, str],
    config: Config,
    manifest: Manifest,
    stop: StopRequest,
    exit_process: ProcessExit,
    log: Callable[[str], None],
) -> Iterator[Processes]:
    """Context manager: connect this process to its pod, and wait until all processes have joined.

    It yields a `Pod`, or a `SingleProcess` if only one process trains.

    Args:
        engine: parameter `engine` of `pretrain`.
        use_tpu: parameter `use_tpu` of `pretrain`.
        wait_seconds: maximum wait for the other processes.
        shared: values of the parameters that must be equal in all processes. The keys are the
            parameters' names in backticks.
        config: config of the run, which must be equal in all processes.
        manifest: manifest of the data set, which must be equal in all processes.
        stop: request to stop this process. A request to one process stops all processes.
        exit_process: callback that ends this process when another one has failed.
        log: callback for messages to the user.

    Raises:
        BadInput: Not all processes have joined in time, or their settings, packages or data differ.
        Interrupted: A stop was requested.
    """

    def check() -> None:
        if stop.is_set():
            stop.confirm()
            raise Interrupted("stopped before training: rerun the same command")

    check()
    on_tpu = use_tpu and engine != "estimator" and devices.is_there(devices.TPU_FILES)
    index, count, address = find_process(os.environ, find_slice_place if on_tpu else None)
    if count == 1:
        yield SingleProcess()
        return
    if engine == "estimator":
        raise BadInput(
            "`engine` estimator trains from one process, but this is a pod of several processes:"
            " leave `engine` out"
        )
    order.check_hosts(manifest.num_readers, config.training.global_batch_size, count)
    log(f"process {index} of {count}, which meet at {address}")
    pod = Pod(index, count, socket.gethostname(), stop, exit_process)
    with _report_failures(pod, exit_process):
        pod.connect(address, devices.prepare(use_tpu), wait_seconds, check)
        stop.install()  # `jax.distributed.initialize` replaces the handler of SIGTERM.
        ours = {
            "bigbird-ja": __version__,
            **list_package_versions(),
            "fingerprint of the data": manifest.fingerprint[:16],
            _COUNT: str(count),
            **shared,
            **{key: str(value) for key, value in flatten(config, manifest).items()},
        }
        check_same(pod.name, ours, pod.share("process 0", lambda: ours))
        yield pod


@contextlib.contextmanager
def _report_failures(pod: Pod, exit_process: ProcessExit) -> Iterator[None]:
    """Context manager: report an exception to the other processes of the pod.

    After the context, this process can exit without waiting for them.
    """
    try:
        yield
    except BaseException as error:
        known = classify(error) or pod.explain(error)
        pod.fail(known.reason if known else "bug", str(known or error))
        if known is not None and (known is not error or isinstance(known, Stalled)):
            # Without an immediate exit XLA may wait forever for a lost process.
            exit_process(known)
        raise
    finally:
        pod.detach()


def check_same(name: str, ours: Mapping[str, str], first: Mapping[str, str]) -> None:
    """Check that the values of this process equal the values of process 0.

    Args:
        name: name of this process.
        ours: packages, data, arguments and settings of this process.
        first: packages, data, arguments and settings of process 0.

    Raises:
        BadInput: Some values differ. The message contains them.
    """
    different = [key for key in sorted({*ours, *first}) if ours.get(key) != first.get(key)]
    if different:
        named = "; ".join(f"{k}={ours.get(k)} instead of {first.get(k)}" for k in different[:4])
        raise BadInput(
            f"{name} differs from process 0 ({named[:400]}): give all hosts the same arguments,"
            " settings, packages and data, and a `model_dir` on gs:// or on a shared disk"
        )


def find_process(
    environ: Mapping[str, str], slice_place: Callable[[], tuple[list[str], int] | None] | None
) -> tuple[int, int, str]:
    """Return this process's number, the number of processes, and HOST:PORT of process 0.

    Args:
        environ: environment variables of the process.
        slice_place: function that returns the hosts of the TPU slice (`find_slice_place`), or None
            if no TPU is used.

    Raises:
        BadInput: A variable is missing or invalid.
    """
    known = {name: environ[name] for name in (_ADDRESS, _COUNT, _INDEX) if environ.get(name)}
    if not known:
        hosts, index = (slice_place and slice_place()) or ([], 0)
        # JAX also uses port 8476 when it detects a slice itself.
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


def read_tpu_metadata(attribute: str) -> str | None:
    """Return an attribute of this TPU VM from the metadata server, or None if it is missing."""
    url = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as reply:
            return str(reply.read().decode().strip()) or None
    except (OSError, ValueError):
        return None


def find_slice_place(
    environ: Mapping[str, str] = os.environ,
    metadata: Callable[[str], str | None] = read_tpu_metadata,
) -> tuple[list[str], int] | None:
    """Return the hosts of this machine's TPU slice, and this machine's number among them.

    The result is None if neither GKE's variables nor the TPU VM's metadata list the hosts.

    Raises:
        BadInput: There are several slices, or this machine's number is missing.
    """
    if int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        raise BadInput("several TPU slices in one run are not supported: use one slice")
    hosts, number = environ.get("TPU_WORKER_HOSTNAMES"), environ.get("TPU_WORKER_ID")
    if hosts is None or number is None:
        endpoints = metadata("worker-network-endpoints")
        if not endpoints:
            return None
        hosts = ",".join(worker.split(":")[-1] for worker in endpoints.split(","))
        # The Cloud TPU API sets `agent-worker-number`, and Compute Engine's groups set `worker-id`.
        number = metadata("agent-worker-number") or metadata("worker-id") or ""
    if not number.isdigit():
        raise BadInput(f"this TPU VM's number in its slice is unknown ({number!r}): set {_INDEX}")
    return hosts.split(","), int(number)
