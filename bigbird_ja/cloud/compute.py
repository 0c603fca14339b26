"""Compute Engine (v5e and later): a TPU VM is a VM, and the cloud itself ends its life.

`max_run_duration` with `instance_termination_action=DELETE` is the lease that needs nobody: the VM
is deleted when it is over, whatever has become of the supervisor, the VM's disk or its watcher.
Google's pages "TPUs in Compute Engine", "Limit the run time of a VM" and "Spot VMs" (2026) say so;
no run of ours has rented one yet.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bigbird_ja.cloud import hardware
from bigbird_ja.cloud.calls import (
    CALL_SECONDS,
    RETRY_SECONDS,
    bounded,
    check_loopback,
    library,
    with_credentials,
)
from bigbird_ja.cloud.faults import Kind, ServiceFault, fault_of_status
from bigbird_ja.cloud.service import (
    ATTEMPT_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Operation,
    Presence,
    Tpu,
    TpuSpec,
)
from bigbird_ja.errors import BadInput

API = "https://compute.googleapis.com/compute/v1"
EMULATOR_VARIABLE = "BIGBIRD_JA_COMPUTE_EMULATOR_HOST"
TYPE_LABEL = "bigbird-ja-type"

SHORTEST_SECONDS = 30  # Compute Engine takes no shorter max_run_duration
BOOT_DISK_GB = 100

# Chips of one VM -> machine type.
MACHINE_TYPES: dict[str, dict[int, str]] = {
    "v5e": {1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"},
    "v5p": {4: "ct5p-hightpu-4t"},
    "v6e": {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"},
    "v7x": {4: "tpu7x-standard-4t"},
}
# Ubuntu with the TPU's drivers and neither TensorFlow nor jax (assumed; --runtime_version names
# another one).
IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family"
_FAMILIES = {"v7x": "ubuntu-accelerator-2204-amd64-tpu-tpu7x"}
_FAMILY = "ubuntu-accelerator-2204-amd64-tpu-v5e-v5p-v6e"

_PRESENCE = {
    "PROVISIONING": Presence.PENDING,
    "STAGING": Presence.PENDING,
    "PENDING": Presence.PENDING,
    "REPAIRING": Presence.PENDING,
    "RUNNING": Presence.READY,
}
# Error codes of operations -> google.rpc.Code.
_CODES = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": 8,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": 8,
    "STOCKOUT": 8,
    "QUOTA_EXCEEDED": 8,
    "RATE_LIMIT_EXCEEDED": 14,
    "RESOURCE_NOT_FOUND": 5,
    "RESOURCE_ALREADY_EXISTS": 6,
    "PERMISSIONS_ERROR": 7,
    "PERMISSION_DENIED": 7,
    "UNSUPPORTED_OPERATION": 9,
    "INVALID_USAGE": 3,
    "CONDITION_NOT_MET": 9,
}


def serves(accelerator_type: str) -> bool:
    """Whether Compute Engine rents this generation."""
    try:
        return hardware.find(accelerator_type).chip in MACHINE_TYPES
    except BadInput:
        return False


def machine_type(accelerator_type: str) -> str:
    """The VM that holds a slice.

    Raises:
        BadInput: no single VM does.
    """
    machine = hardware.find(accelerator_type)
    known = MACHINE_TYPES.get(machine.chip, {})
    if machine.chips in known:
        return known[machine.chips]
    sizes = ", ".join(hardware.of_chips(machine.chip, chips).name for chips in known)
    raise BadInput(
        f"--accelerator_type={accelerator_type}: `launch` rents one machine, and those have the"
        f" sizes {sizes}; on a slice of several hosts start `pretrain` yourself (docs/pods.md)"
    )


def image(accelerator_type: str) -> str:
    """The image that such a machine boots."""
    return f"{IMAGES}/{_FAMILIES.get(hardware.find(accelerator_type).chip, _FAMILY)}"


def instance(
    spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Any:
    """The VM that is asked for: a `compute_v1.Instance`."""
    compute = library("compute_v1", "google-cloud-compute")
    region = zone.rpartition("-")[0]
    interface = compute.NetworkInterface(
        network=f"global/networks/{spec.network or 'default'}",
        access_configs=[compute.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")]
        if spec.external_ip
        else [],
    )
    if spec.subnetwork:
        interface.subnetwork = f"regions/{region}/subnetworks/{spec.subnetwork}"
    is_spot = spec.pricing != "on_demand"
    return compute.Instance(
        name=spec.name,
        machine_type=f"zones/{zone}/machineTypes/{machine_type(spec.accelerator_type)}",
        labels={
            RUN_LABEL: spec.name,
            ATTEMPT_LABEL: str(attempt),
            TYPE_LABEL: spec.accelerator_type,
            "managed-by": "bigbird-ja",
        },
        disks=[
            compute.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute.AttachedDiskInitializeParams(
                    source_image=spec.runtime_version, disk_size_gb=BOOT_DISK_GB
                ),
            )
        ],
        network_interfaces=[interface],
        metadata=compute.Metadata(
            items=[compute.Items(key=key, value=value) for key, value in metadata.items()]
        ),
        service_accounts=[
            compute.ServiceAccount(
                email=spec.service_account or "default",
                scopes=["https://www.googleapis.com/auth/cloud-platform"],
            )
        ],
        scheduling=compute.Scheduling(
            provisioning_model="SPOT" if is_spot else "STANDARD",
            instance_termination_action="DELETE",
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
            max_run_duration=compute.Duration(seconds=max(SHORTEST_SECONDS, int(limit))),
        ),
    )


def delete_addresses(api: str, project: str, spec: TpuSpec, zone: str) -> list[str]:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    return [f"{api or API}/projects/{project}/zones/{zone}/instances/{spec.name}"]


def connect(project: str) -> ComputeEngine:
    """The service with the user's own credentials, or an emulator on this machine.

    Raises:
        BadInput: no credentials, or no client library; the message says how to get them.
    """
    compute = library("compute_v1", "google-cloud-compute")
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if emulator:
        return emulated(project, emulator)
    return with_credentials(
        lambda: ComputeEngine(
            project,
            compute.InstancesClient(),
            compute.ZoneOperationsClient(),
            compute.ZonesClient(),
        )
    )


def emulated(project: str, address: str, **bounds: float) -> ComputeEngine:
    """The service at an address of this machine, over plain HTTP and without credentials.

    Raises:
        BadInput: the address is not this machine.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.compute_v1.services import instances, zone_operations, zones

    check_loopback(address, EMULATOR_VARIABLE)
    how = {"host": address, "credentials": AnonymousCredentials(), "url_scheme": "http"}
    return ComputeEngine(
        project,
        instances.InstancesClient(transport=instances.transports.InstancesRestTransport(**how)),
        zone_operations.ZoneOperationsClient(
            transport=zone_operations.transports.ZoneOperationsRestTransport(**how)
        ),
        zones.ZonesClient(transport=zones.transports.ZonesRestTransport(**how)),
        **bounds,
    )


class ComputeEngine:
    """Compute Engine through google-cloud-compute (REST).

    Args:
        project: id of the Google Cloud project.
        instances, operations, zones: its clients.
        call_seconds, retry_seconds: bounds of one request and of one call with its retries.
    """

    def __init__(
        self,
        project: str,
        instances: Any,
        operations: Any,
        zones: Any,
        call_seconds: float = CALL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._project = project
        self._instances, self._operations, self._zones = instances, operations, zones
        self._call_seconds, self._retry_seconds = call_seconds, retry_seconds

    def list(self, zone: str) -> Sequence[Tpu]:
        if zone == "-":
            return self._list_everywhere()
        request = {"project": self._project, "zone": zone, "filter": _FILTER}
        found = self._call(lambda **bounds: [*self._instances.list(request=request, **bounds)])
        return [_of_instance(one) for one in found]

    def _list_everywhere(self) -> Sequence[Tpu]:
        request = {"project": self._project, "filter": _FILTER}

        def call(**bounds: Any) -> tuple[Sequence[Any], Sequence[str]]:
            pages = [*self._instances.aggregated_list(request=request, **bounds).pages]
            scopes = [scope for page in pages for scope in page.items.values()]
            missed = [name for page in pages for name in page.unreachables]
            return [one for scope in scopes for one in scope.instances], missed

        instances, missed = self._call(call)
        found = [_of_instance(one) for one in instances]
        if missed:
            names = ", ".join(sorted({name.rsplit("/")[-1] for name in missed}))
            raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {names}", found)
        return found

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        request = {
            "project": self._project,
            "zone": zone,
            "instance_resource": instance(spec, zone, attempt, metadata, limit),
        }
        found = self._call(lambda **bounds: self._instances.insert_unary(request=request, **bounds))
        return f"{zone}/{found.name}"

    def delete(self, tpu: Tpu) -> str:
        request = {"project": self._project, "zone": tpu.zone, "instance": tpu.name}
        found = self._call(lambda **bounds: self._instances.delete_unary(request=request, **bounds))
        return f"{tpu.zone}/{found.name}"

    def operation(self, name: str) -> Operation:
        zone, _, operation = name.rpartition("/")
        request = {"project": self._project, "zone": zone, "operation": operation}
        found = self._call(lambda **bounds: self._operations.get(request=request, **bounds))
        is_done = found.status.name == "DONE" if hasattr(found.status, "name") else False
        return Operation(is_done, _fault_of(found.error.errors) if is_done else None)

    def zones(self) -> Sequence[str]:
        request = {"project": self._project}
        found = self._call(lambda **bounds: [*self._zones.list(request=request, **bounds)])
        return [zone.name for zone in found]

    def _call(self, call: Callable[..., Any]) -> Any:
        return bounded(call, self._call_seconds, self._retry_seconds)


_FILTER = f"labels.{RUN_LABEL}:*"


def _of_instance(one: Any) -> Tpu:
    items = {item.key: item.value for item in one.metadata.items}
    labels = dict(one.labels)
    return Tpu(
        one.name,
        one.zone.rsplit("/")[-1],
        _PRESENCE.get(one.status, Presence.GONE),
        one.status,
        has_node=True,
        has_queued=False,
        accelerator_type=labels.get(TYPE_LABEL, one.machine_type.rsplit("/")[-1]),
        labels=labels,
        created=_seconds(one.creation_timestamp),
        detail=one.status_message,
        run_dir=items.get(RUN_DIR_KEY, ""),
        service="compute",
    )


def _fault_of(errors: Iterable[Any]) -> ServiceFault | None:
    """The first error of an operation, which names its kind by a word."""
    for error in errors:
        message = error.message or error.code
        if error.code == "QUOTA_EXCEEDED" and "quota" not in message.lower():
            message = f"Quota: {message}"
        return fault_of_status(_CODES.get(error.code, 13), message)
    return None


def _seconds(timestamp: str) -> float:
    """UNIX seconds of an RFC 3339 time stamp; 0 where there is none."""
    try:
        return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
