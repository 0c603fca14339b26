"""Client of the Cloud TPU API, by nodes or queued resources: all chips but v7x.

A slice of several hosts is one node, with all hosts or none.
"""

# For `make mutants`: in its copies of methods `list[Tpu]` would be evaluated as `Client.list`.
from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from bigbird_ja.launch import rest
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Json
from bigbird_ja.launch.service import (
    RUN_DIR_KEY,
    Operation,
    Presence,
    Tpu,
    check_still_there,
    labels_of,
)

API = "https://tpu.googleapis.com/v2"

# TF 2.15 is the last with tf.estimator; `-se` is the stream-executor runtime, the one that v2 and
# v3 are documented with. Images for the engine pjrt: accelerators/prices.yaml.
ESTIMATOR_IMAGE = "tpu-vm-tf-2.15.0-se"

# Any other state of a node or queue counts as gone: a SUSPENDED queue has lost its node for good.
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
    "ACCEPTED": Presence.WAITING,  # name of the next state until 2024
    "WAITING_FOR_RESOURCES": Presence.WAITING,
    "PROVISIONING": Presence.PENDING,
    "DELETING": Presence.DELETING,
}


_Name = Annotated[str, msgspec.Meta(pattern="^projects/[^/]+/locations/[^/]+/[^/]+/[^/]+$")]


class _Requested(rest.Answer, frozen=True):
    accelerator_type: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class _Node(_Requested, kw_only=True, frozen=True):
    name: _Name
    state: str = "STATE_UNSPECIFIED"
    create_time: datetime.datetime | None = None


class _Failure(rest.Answer, frozen=True):
    error: rest.Status = rest.Status()


class _QueueState(rest.Answer, frozen=True):
    state: str = "STATE_UNSPECIFIED"
    failed_data: _Failure = _Failure()


class _Spec(rest.Answer, frozen=True):
    node: _Requested = _Requested()


class _Specs(rest.Answer, frozen=True):
    node_spec: tuple[_Spec, ...] = ()


class _Queued(rest.Answer, frozen=True):
    name: _Name
    state: _QueueState = _QueueState()
    tpu: _Specs = _Specs()
    create_time: datetime.datetime | None = None


class _Operation(rest.Answer, frozen=True):
    name: str = ""
    done: bool = False
    error: rest.Status | None = None


def creation(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """Return the request for a node, or for a queued resource that holds one of its name.

    The API has no limit on the lifetime: the machine's watcher enforces `limit`.
    """
    node: Json = {
        "acceleratorType": run.accelerator.launch_type,
        "runtimeVersion": run.runtime_version,
        "labels": {**labels_of(run, attempt), "managed-by": "bigbird-ja"},
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


def delete_addresses(api: str, run: LaunchedRun, zone: str) -> list[str]:
    """Return the addresses at which a machine requests its own deletion (DELETE).

    The node's deletion ends the bill even if that of its queued resource is refused.
    """
    parent = f"{api or API}/projects/{run.project}/locations/{zone}"
    queue = [f"{parent}/queuedResources/{run.name}?force=true"] if run.queued else []
    return [*queue, f"{parent}/nodes/{run.name}"]


class Client:
    """Nodes and queued resources of a project.

    Args:
        project: id of the Google Cloud project.
        client: client with the API's address as base.
    """

    def __init__(self, project: str, client: rest.Rest) -> None:
        self._project, self._rest = project, client

    def list(self) -> list[Tpu]:
        """List nodes and queued resources of all zones.

        Raises:
            ServiceFault: As in all methods; `listed` has the machines of a partial answer.
        """
        parent = f"projects/{self._project}/locations/-"
        # The queue first: a node of a queued resource that has become ACTIVE is in the later list.
        path, key = f"{parent}/queuedResources", "queuedResources"
        queues, missed = self._rest.items(path, key, list[_Queued])
        nodes, more = self._rest.items(f"{parent}/nodes", "nodes", list[_Node])
        tpus = {(tpu.zone, tpu.name): tpu for tpu in map(_of_node, nodes)}
        for queued in queues:
            zone, name = _zone_and_id(queued.name)
            tpus[zone, name] = _of_queued(queued, tpus.get((zone, name)))
        rest.check_all_answered([*missed, *more], [*tpus.values()])
        return [*tpus.values()]

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Request a TPU, which its own watcher deletes at its limit."""
        body = creation(run, zone, attempt, metadata, limit)
        parent = f"projects/{self._project}/locations/{zone}"
        kind, key = ("queuedResources", "queuedResourceId") if run.queued else ("nodes", "nodeId")
        return self._rest.call("POST", f"{parent}/{kind}", _Operation, body, {key: run.name}).name

    def find(self, zone: str, name: str) -> Tpu | None:
        """Look up a name in a zone, of any owner."""
        parent = f"projects/{self._project}/locations/{zone}"
        queued = self._rest.find(f"{parent}/queuedResources/{name}", _Queued)
        node = self._rest.find(f"{parent}/nodes/{name}", _Node)
        tpu = _of_node(node) if node else None
        return _of_queued(queued, tpu) if queued else tpu

    def delete(self, tpu: Tpu) -> str:
        """Request a deletion, after verifying that the machine is the one that was listed."""
        current = check_still_there(self, tpu)
        # Without force the service refuses while the queued resource still has nodes.
        query = {"force": "true"} if current.is_queued else {}
        return self._rest.call("DELETE", current.resource, _Operation, query=query).name

    def time(self) -> float | None:
        """Return UNIX seconds by the service's clock."""
        return self._rest.now()

    def operation(self, name: str) -> Operation:
        """Return the state of an operation, without waiting."""
        operation, fault = self._rest.call("GET", name, _Operation), None
        if operation.error is not None:
            fault = rest.fault_of_status(operation.error.code, operation.error.message)
        return Operation(operation.done, fault)


def _zone_and_id(name: str) -> tuple[str, str]:
    """Return zone and id of `projects/P/locations/ZONE/nodes/ID`."""
    parts = name.split("/")
    return parts[3], parts[-1]


def _of_node(node: _Node) -> Tpu:
    return _tpu(node.name, node, node.state, _PRESENCE.get(node.state, Presence.GONE), node)


def _of_queued(queued: _Queued, node: Tpu | None) -> Tpu:
    """Return a queued resource, joined with the node that it holds, if there is one."""
    state, fault = queued.state.state, None
    if state == "FAILED":
        error = queued.state.failed_data.error
        message = error.message or "the queued resource failed"
        fault = rest.fault_of_status(error.code, message)
    presence = _QUEUE_PRESENCE.get(state, Presence.GONE)
    if state == "ACTIVE":
        presence = node.presence if node else Presence.GONE
    specs = queued.tpu.node_spec
    requested = specs[0].node if specs else _Requested()
    joined = f"{state}/{node.state}" if node else state
    tpu = _tpu(queued.name, requested, joined, presence, queued)
    created = node.created if node and node.created else tpu.created
    return replace(tpu, created=created, fault=fault, is_queued=True)


def _tpu(
    resource: str, one: _Requested, state: str, presence: Presence, made: _Node | _Queued
) -> Tpu:
    zone, name = _zone_and_id(resource)
    return Tpu(
        name,
        zone,
        presence,
        state,
        accelerator_type=one.accelerator_type,
        labels=one.labels,
        created=rest.seconds_of(made.create_time),
        resource=resource,
        run_dir=one.metadata.get(RUN_DIR_KEY, ""),
        project=resource.split("/")[1],
    )
