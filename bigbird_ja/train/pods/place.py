"""Which process of a pod this is: said by flags, by JAX's variables, or by a TPU's metadata."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bigbird_ja.process.errors import BadInput

# Where a TPU slice's processes meet, as JAX has it.
TPU_PORT = 8476
_FLAGS = {
    "address": ("--coordinator_address", "JAX_COORDINATOR_ADDRESS"),
    "count": ("--num_processes", "JAX_NUM_PROCESSES"),
    "index": ("--process_id", "JAX_PROCESS_ID"),
}
_METADATA_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """A process's place in its pod."""

    index: int = 0
    count: int = 1
    address: str = ""  # host:port at which process 0 listens

    @property
    def host(self) -> str:
        """Of `address`."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Of `address`."""
        return int(self.address.rpartition(":")[2])

    @property
    def bind_host(self) -> str:
        """Where process 0 listens: on this machine alone, if the address is of this machine."""
        is_local = self.host in ("localhost", "::1") or self.host.startswith("127.")
        return self.host if is_local else ""


def find(
    address: str | None,
    count: int | None,
    index: int | None,
    environ: Mapping[str, str],
    metadata: Callable[[str], str | None] | None,
) -> Place:
    """The place of this process.

    Args:
        address, count, index: as the flags say; None where they do not.
        environ: variables of the process.
        metadata: an attribute of this TPU VM, or None where it has none; None where no TPU is used.

    Raises:
        BadInput: half of it is said, or something that cannot be.
    """
    given = {"address": address, "count": count, "index": index}
    said = {
        name: str(environ.get(variable) if given[name] is None else given[name])
        for name, (_, variable) in _FLAGS.items()
        if given[name] is not None or environ.get(variable)
    }
    if not said or said == {"count": "1"}:
        return _of_slice(environ, metadata) if metadata is not None and not said else Place()
    missing = [name for name in _FLAGS if name not in said]
    if missing:
        flag, variable = _FLAGS[missing[0]]
        raise BadInput(f"a pod of several processes needs {flag} too (or {variable})")
    number, of = _whole(said["index"], "index"), _whole(said["count"], "count")
    if of < 1 or number >= of:
        raise BadInput(
            f"--process_id={number}: the {of} processes of this pod (--num_processes) count from 0"
            f" to {of - 1}: a process too many, or a wrong number"
        )
    return Place(number, of, _checked(said["address"])) if of > 1 else Place()


def _of_slice(environ: Mapping[str, str], metadata: Callable[[str], str | None]) -> Place:
    """Of a TPU slice with several hosts: GKE says it in variables, a TPU VM in its metadata."""
    if int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        raise BadInput("several TPU slices in one run are not supported: use one slice")
    hosts, number = environ.get("TPU_WORKER_HOSTNAMES"), environ.get("TPU_WORKER_ID")
    if hosts is None or number is None:
        found = metadata("worker-network-endpoints")
        if not found:
            return Place()
        hosts = ",".join(worker.split(":")[-1] for worker in found.split(","))
        # The Cloud TPU API has the first name, Compute Engine's groups the second.
        number = metadata("agent-worker-number") or metadata("worker-id")
    names = hosts.split(",")
    if len(names) == 1:
        return Place()
    return Place(_whole(number or "", "index"), len(names), f"{names[0]}:{TPU_PORT}")


def tpu_metadata(attribute: str) -> str | None:
    """An attribute of this TPU VM; None where there is none, or nobody to ask."""
    url = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as reply:
            return str(reply.read().decode().strip()) or None
    except (OSError, urllib.error.URLError, ValueError):
        return None


def _whole(text: str, name: str) -> int:
    if not text.isdigit():
        flag, variable = _FLAGS[name]
        raise BadInput(f"{flag} (or {variable})={text}: a whole number from 0 on")
    return int(text)


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(
            f"--coordinator_address={address}: write it as HOST:PORT, of the host of process 0 and"
            " a port that is free there"
        )
    return address
