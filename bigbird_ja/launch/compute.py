"""Rents VMs of one host from Compute Engine (v5e and later): a TPU VM is a VM there.

`maxRunDuration` with `instanceTerminationAction=DELETE` is the lease that needs nobody: the VM is
deleted when it is over, whatever has become of the supervisor, the VM's disk or its watcher.
Google's pages "TPUs in Compute Engine", "Limit the run time of a VM" and "Spot VMs" (2026) describe
it; no run of ours has rented one yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bigbird_ja import accelerators, launch
from bigbird_ja.launch import LaunchedRun, Presence, Tpu, rest
from bigbird_ja.launch.rest import Json
from bigbird_ja.process.errors import BadInput

API = "https://compute.googleapis.com/compute/v1"
EMULATOR_VARIABLE = "BIGBIRD_JA_COMPUTE_EMULATOR_HOST"

TYPE_LABEL = "bigbird-ja-type"
SHORTEST_SECONDS = 30  # Compute Engine takes no shorter maxRunDuration
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

_PRESENCE = {  # any other status counts as gone
    **dict.fromkeys(("PROVISIONING", "STAGING", "PENDING", "REPAIRING"), Presence.PENDING),
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


def machine_type(accelerator_type: str) -> str:
    """Name the VM that such a TPU is.

    Raises:
        BadInput: a size that there is not, or a slice of several hosts.
    """
    machine = accelerators.find(accelerator_type)
    known = MACHINE_TYPES[machine.chip]
    if machine.chips not in known:
        sizes = ", ".join(accelerators.of_chips(machine.chip, chips).name for chips in known)
        raise BadInput(
            f"--accelerator_type {accelerator_type}: `launch` rents machines of the sizes {sizes},"
            " and slices of several hosts up to v5e alone (v5e-32): or start `pretrain` on a slice"
            " of your own (docs/pods.md)"
        )
    return known[machine.chips]


def image(accelerator_type: str) -> str:
    """Name the image that such a machine boots."""
    return f"{IMAGES}/{_FAMILIES.get(accelerators.find(accelerator_type).chip, _FAMILY)}"


def creation(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """Make the request for a VM that lives `limit` seconds."""
    interface: Json = {"network": f"global/networks/{run.network or 'default'}"}
    if run.external_ip:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    if run.subnetwork:
        region = accelerators.region_of(zone)
        interface["subnetwork"] = f"regions/{region}/subnetworks/{run.subnetwork}"
    source = {"sourceImage": run.runtime_version, "diskSizeGb": str(BOOT_DISK_GB)}
    own = {TYPE_LABEL: run.accelerator_type, "managed-by": "bigbird-ja"}
    account = {"email": run.service_account or "default", "scopes": [rest.SCOPE]}
    return {
        "name": run.name,
        "machineType": f"zones/{zone}/machineTypes/{machine_type(run.accelerator_type)}",
        "labels": {**launch.labels_of(run, attempt), **own},
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


def delete_address(api: str, run: LaunchedRun, zone: str) -> str:
    """Return the address where a machine asks for its own deletion, with the verb DELETE."""
    return f"{api or API}/projects/{run.project}/zones/{zone}/instances/{run.name}"


def connect(project: str) -> ComputeEngine:
    """Connect with the user's own credentials, or with an emulator on this machine.

    Raises:
        BadInput: no credentials; the message has how to get them.
    """
    return ComputeEngine(project, rest.connect_rest(f"{API}/projects/{project}", EMULATOR_VARIABLE))


def regions(project: str) -> Iterator[Json]:
    """List the project's regions, each with its `quotas` (`metric`, `limit`, `usage`).

    Raises:
        BadInput: no credentials.
        ServiceFault: refused, or no answer.
    """
    client = rest.connect_rest(f"{API}/projects/{project}", EMULATOR_VARIABLE)
    for page in client.pages("regions"):
        yield from page.get("items", ())


class ComputeEngine:
    """The VMs of a project.

    Args:
        project: id of the Google Cloud project.
        client: below the project's address.
    """

    def __init__(self, project: str, client: rest.Rest) -> None:
        self._project, self._rest = project, client

    def list(self, zone: str) -> list[Tpu]:
        """List the VMs that a run of ours made.

        Raises:
            ServiceFault: as all methods; `listed` has those of the zones that answered.
        """
        query = {"filter": f"labels.{launch.RUN_LABEL}:*"}
        if zone != "-":
            pages = self._rest.pages(f"zones/{zone}/instances", query)
            return [self._tpu(one) for page in pages for one in page.get("items", [])]
        tpus: list[Tpu] = []
        missed: list[str] = []
        query["returnPartialSuccess"] = "true"
        for page in self._rest.pages("aggregated/instances", query):
            scopes = page.get("items", {}).values()
            tpus += [self._tpu(one) for scope in scopes for one in scope.get("instances", [])]
            missed += page.get("unreachables", [])
        rest.check_all_answered(missed, tpus)
        return tpus

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Ask for a VM, which the cloud itself deletes at its limit."""
        body = creation(run, zone, attempt, metadata, limit)
        operation = self._rest.call("POST", f"zones/{zone}/instances", body)
        return f"zones/{zone}/operations/{operation['name']}"

    def find(self, zone: str, name: str) -> Tpu | None:
        """Look a name up in a zone, whoever made it."""
        instance = self._rest.find(f"zones/{zone}/instances/{name}")
        return self._tpu(instance) if instance else None

    def delete(self, tpu: Tpu) -> str:
        """Ask for a deletion, once the machine is proved to be the one that was listed."""
        path = launch.check_still_there(self, tpu).resource.split("/", 2)[2]
        operation = self._rest.call("DELETE", path)
        return f"zones/{tpu.zone}/operations/{operation['name']}"

    def time(self) -> float:
        """Return UNIX seconds by the service's clock."""
        return self._rest.now()

    def operation(self, name: str) -> launch.Operation:
        """Look at an operation, without waiting."""
        operation = self._rest.call("GET", name)
        is_done = operation.get("status") == "DONE"
        errors = operation.get("error", {}).get("errors", [])
        return launch.Operation(is_done, _fault(errors[0]) if is_done and errors else None)

    def _tpu(self, one: Json) -> Tpu:
        items = one.get("metadata", {}).get("items", [])
        labels, zone = one.get("labels", {}), one["zone"].rsplit("/")[-1]
        return Tpu(
            one["name"],
            zone,
            _PRESENCE.get(one["status"], Presence.GONE),
            one["status"],
            accelerator_type=labels.get(TYPE_LABEL, one["machineType"].rsplit("/")[-1]),
            labels=labels,
            created=rest.seconds_of(one.get("creationTimestamp", "")),
            resource=f"projects/{self._project}/zones/{zone}/instances/{one['name']}",
            run_dir=next((i.get("value", "") for i in items if i["key"] == launch.RUN_DIR_KEY), ""),
            service="compute",
        )


def _fault(error: Mapping[str, Any]) -> rest.ServiceFault:
    """Translate an error of an operation, which names its kind by a code in capitals."""
    code = str(error.get("code", ""))
    message = str(error.get("message") or code)
    if code == "QUOTA_EXCEEDED" and "quota" not in message.lower():
        message = f"Quota: {message}"
    return rest.fault_of_status(_CODES.get(code, 13), message)
