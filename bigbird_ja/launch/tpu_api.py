"""Rents from the Cloud TPU API: v2 to v4, and slices of v5e, as nodes or through queued resources.

A slice of several hosts is one node, with all hosts or none.
"""

# For `TpuNodes.list`: where `make mutants` repeats its methods, `list[Tpu]` would be it.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bigbird_ja import accelerators, launch
from bigbird_ja.launch import LaunchedRun, Presence, Tpu, rest
from bigbird_ja.launch.rest import Json

API = "https://tpu.googleapis.com/v2"
EMULATOR_VARIABLE = "BIGBIRD_JA_TPU_EMULATOR_HOST"

# TF 2.15 is the last with tf.estimator; `-se` is the stream-executor runtime, the one that v2 and
# v3 are documented with.
RUNTIME_VERSION = "tpu-vm-tf-2.15.0-se"
V5E_RUNTIME_VERSION = "v2-alpha-tpuv5-lite"  # it brings no TensorFlow

# Any other state of a node or queue counts as gone.
_PRESENCE = {
    "READY": Presence.READY,
    "DELETING": Presence.DELETING,
    **dict.fromkeys(
        ("STATE_UNSPECIFIED", "CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING"),
        Presence.PENDING,
    ),
}
_QUEUE_PRESENCE = {
    "STATE_UNSPECIFIED": Presence.PENDING,
    "CREATING": Presence.WAITING,
    "ACCEPTED": Presence.WAITING,
    "WAITING_FOR_RESOURCES": Presence.WAITING,
    "PROVISIONING": Presence.PENDING,
    "DELETING": Presence.DELETING,
}


def image(accelerator_type: str) -> str:
    """Name the image that a TPU of this type boots."""
    is_v5e = accelerators.generation_of(accelerator_type) == 5
    return V5E_RUNTIME_VERSION if is_v5e else RUNTIME_VERSION


def creation(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """Make the request for a node, or for a queued resource that holds one of its name.

    The API knows no limit of a life: the machine's watcher keeps it.
    """
    node: Json = {
        "acceleratorType": accelerators.launch_type(accelerators.find(run.accelerator_type)),
        "runtimeVersion": run.runtime_version,
        "labels": {**launch.labels_of(run, attempt), "managed-by": "bigbird-ja"},
        "metadata": dict(metadata),
        "networkConfig": {
            "network": run.network or "",
            "subnetwork": run.subnetwork or "",
            "enableExternalIps": run.external_ip,
        },
    }
    if run.service_account:
        node["serviceAccount"] = {"email": run.service_account, "scope": [rest.SCOPE]}
    if not run.queued:
        if run.pricing == "spot":
            node["schedulingConfig"] = {"spot": True}
        return node
    parent = f"projects/{run.project}/locations/{zone}"
    kind = "spot" if run.pricing == "spot" else "guaranteed"
    return {"tpu": {"nodeSpec": [{"parent": parent, "nodeId": run.name, "node": node}]}, kind: {}}


def delete_address(api: str, run: LaunchedRun, zone: str) -> str:
    """Return the address where a machine asks for its own deletion, with the verb DELETE."""
    parent = f"{api or API}/projects/{run.project}/locations/{zone}"
    if run.queued:
        return f"{parent}/queuedResources/{run.name}?force=true"
    return f"{parent}/nodes/{run.name}"


class TpuNodes:
    """The nodes and queued resources of a project.

    Args:
        project: id of the Google Cloud project.
        client: below the API's address.
    """

    def __init__(self, project: str, client: rest.Rest) -> None:
        self._project, self._rest = project, client

    def list(self, zone: str) -> list[Tpu]:
        """List nodes and queued resources.

        Raises:
            ServiceFault: as all methods; `listed` is what could be listed where only a part could.
        """
        parent = f"projects/{self._project}/locations/{zone}"
        missed: list[str] = []
        resources: dict[str, list[Json]] = {"nodes": [], "queuedResources": []}
        for kind, listed in resources.items():
            for page in self._rest.pages(f"{parent}/{kind}"):
                listed += page.get(kind, [])
                missed += page.get("unreachable", [])
        tpus = {(tpu.zone, tpu.name): tpu for tpu in map(_of_node, resources["nodes"])}
        for queued in resources["queuedResources"]:
            zone, name = _zone_and_id(queued)
            tpus[zone, name] = _of_queued(queued, tpus.get((zone, name)))
        rest.check_all_answered(missed, [*tpus.values()])
        return [*tpus.values()]

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Ask for a TPU; the API knows no limit, which the machine's watcher keeps."""
        body = creation(run, zone, attempt, metadata, limit)
        parent = f"projects/{self._project}/locations/{zone}"
        kind, key = ("queuedResources", "queuedResourceId") if run.queued else ("nodes", "nodeId")
        return str(self._rest.call("POST", f"{parent}/{kind}", body, {key: run.name})["name"])

    def find(self, zone: str, name: str) -> Tpu | None:
        """Look a name up in a zone, whoever made it."""
        parent = f"projects/{self._project}/locations/{zone}"
        node = self._rest.find(f"{parent}/nodes/{name}")
        queued = self._rest.find(f"{parent}/queuedResources/{name}")
        tpu = _of_node(node) if node else None
        return _of_queued(queued, tpu) if queued else tpu

    def delete(self, tpu: Tpu) -> str:
        """Ask for a deletion, once the machine is proved to be the one that was listed."""
        current = launch.check_still_there(self, tpu)
        # force: without it the service refuses while the queued resource still has nodes
        query = {"force": "true"} if current.is_queued else {}
        return str(self._rest.call("DELETE", current.resource, query=query)["name"])

    def time(self) -> float:
        """Return UNIX seconds by the service's clock."""
        return self._rest.now()

    def operation(self, name: str) -> launch.Operation:
        """Look at an operation, without waiting."""
        operation, fault = self._rest.call("GET", name), None
        if error := operation.get("error"):
            fault = rest.fault_of_status(error.get("code", 13), error.get("message", ""))
        return launch.Operation(bool(operation.get("done")), fault)


def connect(project: str) -> TpuNodes:
    """Connect with the user's own credentials, or with an emulator on this machine.

    Raises:
        BadInput: no credentials; the message has how to get them.
    """
    return TpuNodes(project, rest.connect_rest(API, EMULATOR_VARIABLE))


def _zone_and_id(resource: Json) -> tuple[str, str]:
    """Split `projects/P/locations/ZONE/nodes/ID`."""
    parts = resource["name"].split("/")
    return parts[3], parts[-1]


def _of_node(node: Json) -> Tpu:
    zone, name = _zone_and_id(node)
    state = node.get("state", "STATE_UNSPECIFIED")
    return Tpu(
        name,
        zone,
        _PRESENCE.get(state, Presence.GONE),
        state,
        accelerator_type=node.get("acceleratorType", ""),
        labels=node.get("labels", {}),
        created=rest.seconds_of(node.get("createTime", "")),
        resource=node["name"],
        run_dir=node.get("metadata", {}).get(launch.RUN_DIR_KEY, ""),
    )


def _of_queued(resource: Json, node: Tpu | None) -> Tpu:
    """Join a queued resource with the node that it holds, if it has one already."""
    status = resource.get("state", {})
    state, fault = status.get("state", "STATE_UNSPECIFIED"), None
    if state == "FAILED":
        error = status.get("failedData", {}).get("error", {})
        message = error.get("message") or "the queued resource failed"
        fault = rest.fault_of_status(error.get("code", 13), message)
    presence = _QUEUE_PRESENCE.get(state, Presence.GONE)
    if state == "ACTIVE":
        presence = node.presence if node else Presence.GONE
    specs = resource.get("tpu", {}).get("nodeSpec", [])
    place = {"name": resource["name"], "createTime": resource.get("createTime", "")}
    requested = _of_node({**(specs[0].get("node", {}) if specs else {}), **place})
    return replace(
        requested,
        presence=presence,
        state=f"{state}/{node.state}" if node else state,
        created=node.created if node and node.created else requested.created,
        fault=fault,
        is_queued=True,
    )
