"""Compute Engine (v5e and later): a TPU VM is a VM, and the cloud itself ends its life.

`max_run_duration` with `instance_termination_action=DELETE` is the lease that needs nobody: the VM
is deleted when it is over, whatever has become of the supervisor, the VM's disk or its watcher.
Slices of several hosts are groups of such VMs: `slices.py`.
Google's pages "TPUs in Compute Engine", "Limit the run time of a VM" and "Spot VMs" (2026) say so;
no run of ours has rented one yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch import slices
from bigbird_ja.launch.calls import (
    CALL_SECONDS,
    RETRY_SECONDS,
    bounded,
    check_loopback,
    library,
    with_credentials,
)
from bigbird_ja.launch.faults import Kind, ServiceFault
from bigbird_ja.launch.rest import Json, Rest
from bigbird_ja.launch.slices import SLICE_LABEL, TYPE_LABEL, Slices
from bigbird_ja.launch.tpu_service import (
    ATTEMPT_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Operation,
    Presence,
    Tpu,
    TpuSpec,
    seconds_of,
)
from bigbird_ja.process.errors import BadInput

API = "https://compute.googleapis.com/compute/v1"
EMULATOR_VARIABLE = "BIGBIRD_JA_COMPUTE_EMULATOR_HOST"

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


def serves(accelerator_type: str) -> bool:
    """Whether Compute Engine rents this type: v5e and later, but not v5e of several hosts."""
    try:
        machine = hardware.find(accelerator_type)
    except BadInput:
        return False
    return machine.chip in MACHINE_TYPES and (machine.hosts == 1 or slices.is_slice(machine.name))


def machine_type(accelerator_type: str) -> str:
    """The VM that is one host.

    Raises:
        BadInput: no machine and no slice has that size.
    """
    machine = hardware.find(accelerator_type)
    if slices.is_slice(machine.name):
        return slices.machine_type(machine)
    known = MACHINE_TYPES.get(machine.chip, {})
    if machine.chips in known:
        return known[machine.chips]
    sizes = ", ".join(hardware.of_chips(machine.chip, chips).name for chips in known)
    raise BadInput(
        f"--accelerator_type={accelerator_type}: there is no such machine: they have the sizes"
        f" {sizes}, slices of several are larger"
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


def slice_requests(
    project: str, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> list[tuple[str, Json]]:
    """Method and body of what rents a slice; when its hosts end is known once it is asked for."""
    parts = _host(spec, zone, attempt, metadata, limit)
    machine = hardware.find(spec.accelerator_type)
    return slices.requests(project, spec.name, zone, attempt, machine, *parts)


def _host(
    spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> tuple[Json, Json]:
    """A host as an instance template has it, and what is noted of the slice."""
    made = instance(spec, zone, attempt, metadata, limit)
    labels = dict(made.labels)
    found: Json = json.loads(
        type(made).to_json(made, including_default_value_fields=False, use_integers_for_enums=False)
    )
    del found["name"]
    found["machineType"] = machine_type(spec.accelerator_type)
    found["labels"] = {**labels, SLICE_LABEL: spec.name}
    return found, {**labels, RUN_DIR_KEY: metadata.get(RUN_DIR_KEY, "")}


def delete_addresses(api: str, project: str, spec: TpuSpec, zone: str) -> list[str]:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    kind = "instanceGroupManagers" if slices.is_slice(spec.accelerator_type) else "instances"
    return [f"{api or API}/projects/{project}/zones/{zone}/{kind}/{spec.name}"]


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
            Slices(project, Rest(f"{API}/projects/{project}", _session())),
        )
    )


def _session() -> Any:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    scope = "https://www.googleapis.com/auth/cloud-platform"
    return AuthorizedSession(google.auth.default(scopes=[scope])[0])


def emulated(
    project: str,
    address: str,
    call_seconds: float = CALL_SECONDS,
    retry_seconds: float = RETRY_SECONDS,
) -> ComputeEngine:
    """The service at an address of this machine, over plain HTTP and without credentials.

    Raises:
        BadInput: the address is not this machine.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
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
        Slices(
            project,
            Rest(
                f"http://{address}/compute/v1/projects/{project}",
                AuthorizedSession(AnonymousCredentials()),
                call_seconds,
                retry_seconds,
            ),
        ),
        call_seconds,
        retry_seconds,
    )


class ComputeEngine:
    """Compute Engine through google-cloud-compute (REST).

    Args:
        project: id of the Google Cloud project.
        instances, operations, zones: its clients.
        groups: slices of several hosts.
        call_seconds, retry_seconds: bounds of one request and of one call with its retries.
    """

    def __init__(
        self,
        project: str,
        instances: Any,
        operations: Any,
        zones: Any,
        groups: Slices,
        call_seconds: float = CALL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._project = project
        self._instances, self._operations, self._zones = instances, operations, zones
        self._slices = groups
        self._call_seconds, self._retry_seconds = call_seconds, retry_seconds

    def list(self, zone: str) -> Sequence[Tpu]:
        instances, missed = self._instances_of(zone)
        hosts = [one for one in instances if SLICE_LABEL in one.labels]
        found = [_of_instance(one) for one in instances if SLICE_LABEL not in one.labels]
        try:
            groups, more = self._slices.list(zone, hosts)
        except ServiceFault as fault:
            raise ServiceFault(fault.kind, fault.message, found) from fault
        found += groups
        if missed or more:
            names = ", ".join(sorted({name.rsplit("/")[-1] for name in (*missed, *more)}))
            raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {names}", found)
        return found

    def _instances_of(self, zone: str) -> tuple[Sequence[Any], Sequence[str]]:
        """Those of our runs in a zone, or in all ("-"), and the places that did not answer."""
        if zone != "-":
            request = {"project": self._project, "zone": zone, "filter": _FILTER}
            found = self._call(lambda **bounds: [*self._instances.list(request=request, **bounds)])
            return found, ()
        request = {"project": self._project, "filter": _FILTER}

        def call(**bounds: Any) -> tuple[Sequence[Any], Sequence[str]]:
            pages = [*self._instances.aggregated_list(request=request, **bounds).pages]
            scopes = [scope for page in pages for scope in page.items.values()]
            missed = [name for page in pages for name in page.unreachables]
            return [one for scope in scopes for one in scope.instances], missed

        instances, missed = self._call(call)
        return instances, missed

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        if slices.is_slice(spec.accelerator_type):
            parts = _host(spec, zone, attempt, metadata, limit)
            return self._slices.create(spec, zone, attempt, *parts, limit)
        request = {
            "project": self._project,
            "zone": zone,
            "instance_resource": instance(spec, zone, attempt, metadata, limit),
        }
        found = self._call(lambda **bounds: self._instances.insert_unary(request=request, **bounds))
        return f"{zone}/{found.name}"

    def delete(self, tpu: Tpu) -> str:
        if tpu.is_group:
            return self._slices.delete(tpu)
        request = {"project": self._project, "zone": tpu.zone, "instance": tpu.name}
        try:
            found = self._call(
                lambda **bounds: self._instances.delete_unary(request=request, **bounds)
            )
        except ServiceFault as fault:
            if fault.kind is Kind.NOT_FOUND:  # asked by name alone: a group may have it
                return self._slices.delete(tpu)
            raise
        return f"{tpu.zone}/{found.name}"

    def operation(self, name: str) -> Operation:
        if "/operations/" in name:
            return self._slices.operation(name)
        zone, _, operation = name.rpartition("/")
        request = {"project": self._project, "zone": zone, "operation": operation}
        found = self._call(lambda **bounds: self._operations.get(request=request, **bounds))
        is_done = found.status.name == "DONE" if hasattr(found.status, "name") else False
        errors = [{"code": one.code, "message": one.message} for one in found.error.errors]
        return Operation(is_done, slices.fault_of_errors(errors) if is_done else None)

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
        created=seconds_of(one.creation_timestamp),
        detail=one.status_message,
        run_dir=items.get(RUN_DIR_KEY, ""),
        service="compute",
    )
