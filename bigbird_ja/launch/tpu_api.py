"""Client of the Cloud TPU API, for nodes and queued resources of all chips except v7x.

A slice of several hosts is one node, which exists with all hosts or not at all.
"""

# The mutation tests (`make mutants`) copy methods inside their class. Without this import,
# `list[Tpu]` in the annotation of such a copy would mean the method `Client.list`.
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
    make_labels,
)

API = "https://tpu.googleapis.com/v2"

# TensorFlow 2.15 is the last version with tf.estimator. `-se` is the stream-executor runtime, which
# Google documents for v2 and v3. Images for the engine pjrt are in accelerators/prices.yaml.
ESTIMATOR_IMAGE = "tpu-vm-tf-2.15.0-se"

# Presence by the state of a node or queued resource. Any other state counts as GONE. So does the
# state SUSPENDED of a queued resource, which has lost its node and gets no new one.
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
    # Until 2024, ACCEPTED was the name of WAITING_FOR_RESOURCES.
    "ACCEPTED": Presence.WAITING,
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


def make_request(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> Json:
    """Return the request that creates a node, or a queued resource that contains the node.

    The API cannot limit the lifetime of a node. So `limit`, the maximum lifetime in seconds, is
    enforced by the watcher, a program on the machine.
    """
    node: Json = {
        "acceleratorType": run.accelerator.launch_type,
        "runtimeVersion": run.runtime_version,
        "labels": {**make_labels(run, attempt), "managed-by": "bigbird-ja"},
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
    """Return the addresses to which a machine sends HTTP DELETE requests to delete itself.

    A queued machine also requests the deletion of its node, which stops the bill even if the
    deletion of the queued resource is refused.
    """
    parent = f"{api or API}/projects/{run.project}/locations/{zone}"
    queue = [f"{parent}/queuedResources/{run.name}?force=true"] if run.queued else []
    return [*queue, f"{parent}/nodes/{run.name}"]


class Client:
    """Nodes and queued resources of a project.

    Args:
        project: id of the Google Cloud project.
        client: client for authenticated requests to the API.
    """

    def __init__(self, project: str, client: rest.Rest) -> None:
        self._project, self._rest = project, client

    def list(self) -> list[Tpu]:
        """List nodes and queued resources of all zones.

        Raises:
            ServiceFault: The service failed or refused, or some zones did not answer. The fault's
                `listed` contains the machines of the zones that answered.
        """
        parent = f"projects/{self._project}/locations/-"
        # Queued resources are listed before nodes, so that the later list contains the node of each
        # ACTIVE queued resource.
        path, key = f"{parent}/queuedResources", "queuedResources"
        queues, missed = self._rest.list_items(path, key, list[_Queued])
        nodes, more = self._rest.list_items(f"{parent}/nodes", "nodes", list[_Node])
        tpus = {(tpu.zone, tpu.name): tpu for tpu in map(_convert_node, nodes)}
        for queued in queues:
            zone, name = _split_name(queued.name)
            tpus[zone, name] = _convert_queued(queued, tpus.get((zone, name)))
        rest.check_all_answered([*missed, *more], [*tpus.values()])
        return [*tpus.values()]

    def create(
        self, run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Request a TPU, which the watcher on its machine deletes after `limit` seconds."""
        body = make_request(run, zone, attempt, metadata, limit)
        parent = f"projects/{self._project}/locations/{zone}"
        kind, key = ("queuedResources", "queuedResourceId") if run.queued else ("nodes", "nodeId")
        return self._rest.call("POST", f"{parent}/{kind}", _Operation, body, {key: run.name}).name

    def find(self, zone: str, name: str) -> Tpu | None:
        """Return the TPU with this name in the zone, or None. The TPU may have any owner."""
        parent = f"projects/{self._project}/locations/{zone}"
        queued = self._rest.find(f"{parent}/queuedResources/{name}", _Queued)
        node = self._rest.find(f"{parent}/nodes/{name}", _Node)
        tpu = _convert_node(node) if node else None
        return _convert_queued(queued, tpu) if queued else tpu

    def delete(self, tpu: Tpu) -> str:
        """Verify that the name still belongs to the listed TPU, and request the TPU's deletion."""
        current = check_still_there(self, tpu)
        # Without `force`, the service refuses to delete a queued resource with nodes.
        query = {"force": "true"} if current.is_queued else {}
        return self._rest.call("DELETE", current.resource, _Operation, query=query).name

    def time(self) -> float | None:
        """Return UNIX seconds by the service's clock, or None without a recent answer."""
        return self._rest.get_time()

    def get_operation(self, name: str) -> Operation:
        """Return the state of an operation, without waiting for its end."""
        operation, fault = self._rest.call("GET", name, _Operation), None
        if operation.error is not None:
            fault = rest.make_fault(operation.error.code, operation.error.message)
        return Operation(operation.done, fault)


def _split_name(name: str) -> tuple[str, str]:
    """Return zone and id of `projects/P/locations/ZONE/nodes/ID`."""
    parts = name.split("/")
    return parts[3], parts[-1]


def _convert_node(node: _Node) -> Tpu:
    return _make_tpu(node.name, node, node.state, _PRESENCE.get(node.state, Presence.GONE), node)


def _convert_queued(queued: _Queued, node: Tpu | None) -> Tpu:
    """Return a queued resource, combined with its node if there is one."""
    state, fault = queued.state.state, None
    if state == "FAILED":
        error = queued.state.failed_data.error
        message = error.message or "the queued resource failed"
        fault = rest.make_fault(error.code, message)
    presence = _QUEUE_PRESENCE.get(state, Presence.GONE)
    if state == "ACTIVE":
        presence = node.presence if node else Presence.GONE
    specs = queued.tpu.node_spec
    requested = specs[0].node if specs else _Requested()
    joined = f"{state}/{node.state}" if node else state
    tpu = _make_tpu(queued.name, requested, joined, presence, queued)
    created = node.created if node and node.created else tpu.created
    return replace(tpu, created=created, fault=fault, is_queued=True)


def _make_tpu(
    resource: str, one: _Requested, state: str, presence: Presence, made: _Node | _Queued
) -> Tpu:
    zone, name = _split_name(resource)
    return Tpu(
        name,
        zone,
        presence,
        state,
        accelerator_type=one.accelerator_type,
        labels=one.labels,
        created=rest.convert_to_seconds(made.create_time),
        resource=resource,
        run_dir=one.metadata.get(RUN_DIR_KEY, ""),
        project=resource.split("/")[1],
    )
