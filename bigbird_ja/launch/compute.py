"""Compute Engine (v5e and later): a TPU VM is a VM, and the cloud itself ends its life.

`maxRunDuration` with `instanceTerminationAction=DELETE` is the lease that needs nobody: the VM is
deleted when it is over, whatever has become of the supervisor, the VM's disk or its watcher.
Slices of several hosts are groups of such VMs: `slices.py`.
Google's pages "TPUs in Compute Engine", "Limit the run time of a VM" and "Spot VMs" (2026) describe
it; no run of ours has rented one yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch import slices
from bigbird_ja.launch.rest import Json, Kind, Rest, ServiceFault, connect_rest, seconds_of
from bigbird_ja.launch.services import (
    ATTEMPT_LABEL,
    ID_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Operation,
    Presence,
    Tpu,
    TpuSpec,
    check_still_there,
)
from bigbird_ja.launch.slices import (
    LEFTOVER,
    SLICE_LABEL,
    TYPE_LABEL,
    Slices,
    fault_of_errors,
    listed,
)
from bigbird_ja.process.errors import BadInput

API = "https://compute.googleapis.com/compute/v1"
EMULATOR_VARIABLE = "BIGBIRD_JA_COMPUTE_EMULATOR_HOST"

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


def serves(accelerator_type: str) -> bool:
    """Whether Compute Engine rents this type: v5e and later, but not v5e of several hosts."""
    machine = hardware.find(accelerator_type)
    return machine.chip in MACHINE_TYPES and (machine.hosts == 1 or slices.is_slice(machine.name))


def machine_type(accelerator_type: str) -> str:
    """The VM that is one host.

    Raises:
        BadInput: no machine and no slice has that size.
    """
    machine = hardware.find(accelerator_type)
    known = MACHINE_TYPES[machine.chip]
    if machine.hosts > 1:
        if machine.chips > slices.MOST_CHIPS[machine.chip]:
            largest = hardware.of_chips(machine.chip, slices.MOST_CHIPS[machine.chip]).name
            raise BadInput(f"--accelerator_type {machine.name}: the largest is {largest}")
        return known[4]
    if machine.chips in known:
        return known[machine.chips]
    sizes = ", ".join(hardware.of_chips(machine.chip, chips).name for chips in known)
    raise BadInput(
        f"--accelerator_type {accelerator_type}: there is no such machine: they have the sizes"
        f" {sizes}, slices of several are larger"
    )


def image(accelerator_type: str) -> str:
    """The image that such a machine boots."""
    return f"{IMAGES}/{_FAMILIES.get(hardware.find(accelerator_type).chip, _FAMILY)}"


def creations(
    project: str, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> list[tuple[str, Json]]:
    """Method and body of each request that rents a TPU, in their order. When the hosts of a slice
    end is known once it is asked for."""
    instance = _instance(spec, zone, attempt, metadata, limit)
    if not slices.is_slice(spec.accelerator_type):
        return [("instances.insert", instance)]
    note = {**instance["labels"], RUN_DIR_KEY: metadata.get(RUN_DIR_KEY, "")}
    del instance["name"]
    instance["machineType"] = machine_type(spec.accelerator_type)
    instance["labels"] = {**instance["labels"], SLICE_LABEL: spec.name}
    machine = hardware.find(spec.accelerator_type)
    return slices.creations(project, spec.name, zone, attempt, machine, instance, note)


def _instance(
    spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """The VM that is asked for."""
    interface: Json = {"network": f"global/networks/{spec.network or 'default'}"}
    if spec.external_ip:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    if spec.subnetwork:
        region = zone.rpartition("-")[0]
        interface["subnetwork"] = f"regions/{region}/subnetworks/{spec.subnetwork}"
    return {
        "name": spec.name,
        "machineType": f"zones/{zone}/machineTypes/{machine_type(spec.accelerator_type)}",
        "labels": {
            RUN_LABEL: spec.name,
            ID_LABEL: spec.run_id,
            ATTEMPT_LABEL: str(attempt),
            TYPE_LABEL: spec.accelerator_type,
            "managed-by": "bigbird-ja",
        },
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": spec.runtime_version, "diskSizeGb": str(BOOT_DISK_GB),
                },
            }
        ],
        "networkInterfaces": [interface],
        "metadata": {"items": [{"key": key, "value": text} for key, text in metadata.items()]},
        "serviceAccounts": [
            {
                "email": spec.service_account or "default",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "scheduling": {
            "provisioningModel": "STANDARD" if spec.pricing == "on_demand" else "SPOT",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "maxRunDuration": {"seconds": str(max(SHORTEST_SECONDS, int(limit)))},
        },
    }  # fmt: skip


def delete_address(api: str, project: str, spec: TpuSpec, zone: str) -> str:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    kind = "instanceGroupManagers" if slices.is_slice(spec.accelerator_type) else "instances"
    return f"{api or API}/projects/{project}/zones/{zone}/{kind}/{spec.name}"


def connect(project: str) -> ComputeEngine:
    """The service with the user's own credentials, or an emulator on this machine.

    Raises:
        BadInput: no credentials; the message has how to get them.
    """
    return ComputeEngine(project, connect_rest(f"{API}/projects/{project}", EMULATOR_VARIABLE))


def regions(project: str) -> Iterator[Json]:
    """The project's regions, each with its `quotas` (`metric`, `limit`, `usage`).

    Raises:
        BadInput: no credentials.
        ServiceFault: refused, or no answer.
    """
    rest = connect_rest(f"{API}/projects/{project}", EMULATOR_VARIABLE)
    for page in rest.pages("regions"):
        yield from page.get("items", ())


class ComputeEngine:
    """The VMs and slices of a project.

    Args:
        project: id of the Google Cloud project.
        rest: below the project's address.
    """

    def __init__(self, project: str, rest: Rest) -> None:
        self._project, self._rest = project, rest
        self._slices = Slices(project, rest)

    def list(self, zone: str) -> list[Tpu]:
        ours = {"filter": f"labels.{RUN_LABEL}:*"}
        instances, missed = listed(self._rest, "instances", "zones", zone, ours)
        hosts = [one for one in instances if SLICE_LABEL in one.get("labels", {})]
        alone = [one for one in instances if SLICE_LABEL not in one.get("labels", {})]
        tpus = [_of_instance(self._project, one) for one in alone]
        try:
            groups, more = self._slices.find(zone, hosts)
        except ServiceFault as fault:
            raise ServiceFault(fault.kind, fault.message, tpus) from fault
        tpus += groups
        if missed or more:
            names = ", ".join(sorted({name.rsplit("/")[-1] for name in (*missed, *more)}))
            raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {names}", tpus)
        return tpus

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        bodies = creations(self._project, spec, zone, attempt, metadata, limit)
        if len(bodies) > 1:
            return self._slices.create(zone, [body for _, body in bodies], limit)
        operation = self._rest.call("POST", f"zones/{zone}/instances", bodies[0][1])
        return f"zones/{zone}/operations/{operation['name']}"

    def find(self, zone: str, name: str) -> Tpu | None:
        instance = self._rest.find(f"zones/{zone}/instances/{name}")
        return _of_instance(self._project, instance) if instance else self._slices.get(zone, name)

    def delete(self, tpu: Tpu) -> str:
        if tpu.state == LEFTOVER:
            return self._slices.delete_leftover(tpu)
        path = check_still_there(self, tpu).resource.split("/", 2)[2]
        operation = self._rest.call("DELETE", path)
        return f"zones/{tpu.zone}/operations/{operation['name']}"

    def time(self) -> float:
        return self._rest.now()

    def operation(self, name: str) -> Operation:
        operation = self._rest.call("GET", name)
        is_done = operation.get("status") == "DONE"
        errors = operation.get("error", {}).get("errors", [])
        return Operation(is_done, fault_of_errors(errors) if is_done else None)

    def zones(self) -> Sequence[str]:
        return [one["name"] for page in self._rest.pages("zones") for one in page.get("items", [])]


def _of_instance(project: str, one: Json) -> Tpu:
    items = one.get("metadata", {}).get("items", [])
    labels, zone = one.get("labels", {}), one["zone"].rsplit("/")[-1]
    return Tpu(
        one["name"],
        zone,
        _PRESENCE.get(one["status"], Presence.GONE),
        one["status"],
        accelerator_type=labels.get(TYPE_LABEL, one["machineType"].rsplit("/")[-1]),
        labels=labels,
        created=seconds_of(one.get("creationTimestamp", "")),
        resource=f"projects/{project}/zones/{zone}/instances/{one['name']}",
        run_dir=next((i.get("value", "") for i in items if i["key"] == RUN_DIR_KEY), ""),
        service="compute",
    )
