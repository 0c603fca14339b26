"""Joins the JAX runtimes of a pod's processes, so that their devices are one mesh.

JAX's coordination service is needed only until the devices know each other and have made one sum
together. Its clients abort their process (status 134 or 1, no word to the user) when the service or
another process dies. So it serves from a process of its own, which a killed process 0 does not take
with it, and is shut down again as soon as that first sum is there: from then on a peer's death is
an error, and who has died is told by `pod`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bigbird_ja.process.errors import BadInput, telling_line
from bigbird_ja.train.pods.pod import Pod

_JOIN_SECONDS = 120
_TRIES = 3
_NO_PROXY = "no_grpc_proxy"  # in lower case alone


def connect(pod: Pod, platform: str, take_signals: Callable[[], None]) -> None:
    """Makes `jax.devices()` those of all processes. Before any other use of JAX.

    Args:
        pod: that has met.
        platform: "cpu", "cuda" or "tpu".
        take_signals: sets this process's handlers again: JAX takes SIGTERM for itself.

    Raises:
        BadInput: the processes cannot reach each other.
    """
    import jax

    host = pod.place.host
    # It warns of the variable below, too.
    logging.getLogger("jax._src.distributed").setLevel(logging.ERROR)
    # gRPC would ask a proxy for the way to the next machine.
    os.environ[_NO_PROXY] = ",".join(filter(None, [os.environ.get(_NO_PROXY), host]))
    if platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    service, port = _start_service(pod) if pod.is_writer else (None, 0)
    address = f"{host}:{pod.share('jax-port', lambda: port)}"
    try:
        with _service_elsewhere():
            jax.distributed.initialize(
                address, pod.count, pod.index, initialization_timeout=_JOIN_SECONDS
            )
    except RuntimeError as error:
        pod.await_cause()
        raise BadInput(
            f"the processes of this pod cannot reach each other through {address}"
            f" ({telling_line(error)}): let the hosts of a pod connect to each other on any port"
        ) from error
    take_signals()
    try:
        _sum_once()
        if platform == "cuda":  # there each program sets its sums up anew
            pod.keeps = service
            return
        jax.distributed.shutdown()
    except RuntimeError:
        pod.await_cause()
        raise
    pod.barrier("joined")
    if service is not None:
        service.communicate("end")


def _sum_once() -> None:
    """One sum over all devices, which sets up the connections that all later sums use."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    ordered = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.asarray(ordered), ("all",))
    divided, everywhere = NamedSharding(mesh, P("all")), NamedSharding(mesh, P())
    ones = jax.make_array_from_callback(
        (len(ordered),), divided, lambda index: np.ones(len(ordered), np.float32)[index]
    )
    total = jax.jit(lambda values: values.sum(), out_shardings=everywhere)(ones)
    if int(total) != len(ordered):
        raise RuntimeError(f"a sum over {len(ordered)} devices gave {int(total)}")


def _start_service(pod: Pod) -> tuple[subprocess.Popen[str], int]:
    """JAX's coordination service in a process of its own, and its port on this host."""
    said = ""
    for _ in range(_TRIES):
        with socket.create_server((pod.place.bind_host, 0)) as free:
            port = int(free.getsockname()[1])
        address = f"{pod.place.bind_host or '[::]'}:{port}"
        service = subprocess.Popen(
            [sys.executable, "-m", "bigbird_ja.train.pods.service", address, str(pod.count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert service.stdout is not None
        said = service.stdout.readline()
        if said.strip() == "ready":
            return service, port
        service.kill()
        service.wait()
    raise BadInput(
        f"JAX's coordination service does not start on this host ({said.strip() or 'no word'}):"
        " check that jax is installed whole"
    )


class _Elsewhere:
    """Stands for a service that another process runs."""

    def shutdown(self) -> None:
        """Its own process sees to that."""


@contextlib.contextmanager
def _service_elsewhere() -> Iterator[None]:
    """JAX's process 0 would start the service in itself."""
    library, name = runtime_library(), "get_distributed_runtime_service"
    real = getattr(library, name)
    setattr(library, name, lambda *_, **__: _Elsewhere())
    try:
        yield
    finally:
        setattr(library, name, real)


def runtime_library() -> Any:
    """The module of jaxlib in which `jax.distributed` finds service and client."""
    from jax._src import distributed

    return getattr(distributed, "xla_extension", None) or distributed._jax
