"""Client of Compute Engine, for machines of one host (v5p, v6e, v7x).

With `maxRunDuration` and `instanceTerminationAction=DELETE`, the cloud deletes the VM at its
maximum lifetime, even if the supervisor, the VM's disk or the watcher on the VM has failed.
Sources: Google's pages "TPUs in Compute Engine", "Limit the run time of a VM" and "Spot VMs"
(2026). This client has not been tested on the real service yet.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.accelerators.prices import get_region
from bigbird_ja.launch import rest
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Json, Kind, ServiceFault
from bigbird_ja.launch.service import (
    RUN_DIR_KEY,
    RUN_LABEL,
    Operation,
    Presence,
    Tpu,
    check_still_there,
    make_labels,
)

API = "https://compute.googleapis.com/compute/v1"

TYPE_LABEL = "bigbird-ja-type"
# Minimum of Compute Engine's maxRunDuration.
SHORTEST_SECONDS = 30
BOOT_DISK_GB = 100

# Machine type by number of chips. Types of v5e are in Google's catalog, but requests fail with "not
# allowed to use the machine type" (users' reports of 2026). This table contains the v5e types only
# for runs that version 0.1.0 launched.
MACHINE_TYPES: dict[str, dict[int, str]] = {
    "v5e": {1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"},
    "v5p": {4: "ct5p-hightpu-4t"},
    "v6e": {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"},
    "v7x": {4: "tpu7x-standard-4t"},
}
# Path of the image families: Ubuntu with the TPU's drivers, without TensorFlow and jax (assumed).
# accelerators/prices.yaml contains the name of each family. `runtime_version` overrides the image.
IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family"
# Presence by the status of a VM. Any other status counts as GONE.
_PRESENCE = {
    **dict.fromkeys(("PROVISIONING", "STAGING", "PENDING", "REPAIRING"), Presence.PENDING),
    "RUNNING": Presence.READY,
}
# Kind of fault by the error code of an operation. Any other code counts as INTERNAL.
_KINDS = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": Kind.STOCKOUT,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": Kind.STOCKOUT,
    "STOCKOUT": Kind.STOCKOUT,
    "QUOTA_EXCEEDED": Kind.QUOTA,
    "RATE_LIMIT_EXCEEDED": Kind.UNAVAILABLE,
    "RESOURCE_NOT_FOUND": Kind.NOT_FOUND,
    "RESOURCE_ALREADY_EXISTS": Kind.EXISTS,
    "PERMISSIONS_ERROR": Kind.PERMISSION,
    "PERMISSION_DENIED": Kind.PERMISSION,
    "UNSUPPORTED_OPERATION": Kind.BAD_REQUEST,
    "INVALID_USAGE": Kind.BAD_REQUEST,
    "CONDITION_NOT_MET": Kind.BAD_REQUEST,
}


class _Item(rest.Answer, frozen=True):
    key: str
    value: str = ""


class _Metadata(rest.Answer, frozen=True):
    items: tuple[_Item, ...] = ()


class _Instance(rest.Answer, frozen=True):
    name: str
    zone: str
    status: str
    machine_type: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    metadata: _Metadata = _Metadata()
    creation_timestamp: datetime.datetime | None = None


class _Error(rest.Answer, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(rest.Answer, frozen=True):
    errors: tuple[_Error, ...] = ()


class _Operation(rest.Answer, frozen=True):
    name: str = ""
    status: str = ""
    error: _Errors = _Errors()


def get_machine_type(machine: Accelerator) -> str:
    """Return the machine type of a VM with this TPU."""
    return MACHINE_TYPES[machine.chip][machine.chips]


def make_request(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """Return the request that creates a VM with a maximum lifetime of `limit` seconds."""
    interface: Json = {"network": f"global/networks/{run.network or 'default'}"}
    if run.external_ip:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    if run.subnetwork:
        region = get_region(zone)
        interface["subnetwork"] = f"regions/{region}/subnetworks/{run.subnetwork}"
    source = {"sourceImage": run.runtime_version, "diskSizeGb": str(BOOT_DISK_GB)}
    own = {TYPE_LABEL: run.accelerator_type, "managed-by": "bigbird-ja"}
    account = {"email": run.service_account or "default", "scopes": [rest.SCOPE]}
    return {
        "name": run.name,
        "machineType": f"zones/{zone}/machineTypes/{get_machine_type(run.accelerator)}",
        "labels": {**make_labels(run, attempt), **own},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": source}],
        "networkInterfaces": [interface],
        "metadata": {"items": [{"key": key, "value": text} for key, text in metadata.items()]},
        "serviceAccounts": [account],
        "scheduling": {
            "provisioningModel": "STANDARD" if run.pricing == "on_demand" else "SPOT",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "maxRunDuration": {"seconds": str(max(SHORTEST_SECONDS, int(limit)))},
        },
    }


def delete_addresses(api: str, run: LaunchedRun, zone: str) -> list[str]:
    """Return the addresses to which a machine sends HTTP DELETE requests to delete itself."""
    return [f"{api or API}/projects/{run.project}/zones/{zone}/instances/{run.name}"]


class Client:
    """VMs of a project.

    Args:
        project: id of the Google Cloud project.
        client: HTTP client with the address of the API.
    """

    def __init__(self, project: str, client: rest.Rest) -> None:
        self._project, self._rest = project, client

    def list(self) -> list[Tpu]:
        """List the VMs that runs of `launch` created, in all zones.

        Raises:
            ServiceFault: The service failed or refused, or some zones did not answer. The fault's
                `listed` contains the VMs of the zones that answered.
        """
        query = {"filter": f"labels.{RUN_LABEL}:*", "returnPartialSuccess": "true"}
        path = f"projects/{self._project}/aggregated/instances"
        listed, missed = self._rest.list_items(path, "instances", list[_Instance], query)
        tpus = [self._make_tpu(one) for one in listed]
        rest.check_all_answered(missed, tpus)
        return tpus

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Request a VM that is deleted after `limit` seconds. Return the operation's name."""
        body = make_request(run, zone, attempt, metadata, limit)
        return self._start("POST", zone, self._format_path(zone), body)

    def find(self, zone: str, name: str) -> Tpu | None:
        """Return the VM with this name in the zone, or None. The VM may have any owner."""
        instance = self._rest.find(f"{self._format_path(zone)}/{name}", _Instance)
        return self._make_tpu(instance) if instance else None

    def delete(self, tpu: Tpu) -> str:
        """Verify that the name still belongs to the listed VM, and request the VM's deletion."""
        return self._start("DELETE", tpu.zone, check_still_there(self, tpu).resource)

    def time(self) -> float | None:
        """Return UNIX seconds by the service's clock, or None without a recent answer."""
        return self._rest.get_time()

    def get_operation(self, name: str) -> Operation:
        """Return the state of an operation, without waiting for its end."""
        operation = self._rest.call("GET", name, _Operation)
        is_done, errors = operation.status == "DONE", operation.error.errors
        if not is_done or not errors:
            return Operation(is_done)
        code, message = errors[0].code, errors[0].message
        return Operation(is_done, ServiceFault(_KINDS.get(code, Kind.INTERNAL), message or code))

    def _format_path(self, zone: str) -> str:
        return f"projects/{self._project}/zones/{zone}/instances"

    def _start(self, method: str, zone: str, path: str, body: Json | None = None) -> str:
        """Send a request, and return the full name of its operation."""
        operation = self._rest.call(method, path, _Operation, body)
        return f"projects/{self._project}/zones/{zone}/operations/{operation.name}"

    def _make_tpu(self, one: _Instance) -> Tpu:
        zone = one.zone.rsplit("/")[-1]
        run_dirs = [item.value for item in one.metadata.items if item.key == RUN_DIR_KEY]
        return Tpu(
            one.name,
            zone,
            _PRESENCE.get(one.status, Presence.GONE),
            one.status,
            accelerator_type=one.labels.get(TYPE_LABEL, one.machine_type.rsplit("/")[-1]),
            labels=one.labels,
            created=rest.convert_to_seconds(one.creation_timestamp),
            resource=f"{self._format_path(zone)}/{one.name}",
            run_dir=run_dirs[0] if run_dirs else "",
            service="compute",
            project=self._project,
        )
