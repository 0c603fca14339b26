"""The Cloud TPU API (v2 to v4, slices of v5e): direct nodes and queued resources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch.calls import (
    CALL_SECONDS,
    RETRY_SECONDS,
    bounded,
    check_loopback,
    library,
    with_credentials,
)
from bigbird_ja.launch.faults import Kind, ServiceFault, fault_of_status
from bigbird_ja.launch.tpu_service import (
    ATTEMPT_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Operation,
    Presence,
    Tpu,
    TpuSpec,
)

EMULATOR_VARIABLE = "BIGBIRD_JA_TPU_EMULATOR_HOST"

API = "https://tpu.googleapis.com/v2"


_PRESENCE = {
    "STATE_UNSPECIFIED": Presence.PENDING,
    "CREATING": Presence.PENDING,
    "STARTING": Presence.PENDING,
    "RESTARTING": Presence.PENDING,
    "REPAIRING": Presence.PENDING,
    "REIMAGING": Presence.PENDING,
    "READY": Presence.READY,
    "DELETING": Presence.DELETING,
}
_QUEUE_PRESENCE = {
    "STATE_UNSPECIFIED": Presence.PENDING,
    "CREATING": Presence.WAITING,
    "ACCEPTED": Presence.WAITING,
    "WAITING_FOR_RESOURCES": Presence.WAITING,
    "PROVISIONING": Presence.PENDING,
    "DELETING": Presence.DELETING,
}


def create_request(
    project: str, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str]
) -> Any:
    """The request that rents a TPU: `CreateNodeRequest` or `CreateQueuedResourceRequest`."""
    tpu_v2 = library("tpu_v2", "google-cloud-tpu")
    parent = f"projects/{project}/locations/{zone}"
    node = tpu_v2.Node(
        accelerator_type=hardware.launch_type(hardware.find(spec.accelerator_type)),
        runtime_version=spec.runtime_version,
        labels={RUN_LABEL: spec.name, ATTEMPT_LABEL: str(attempt), "managed-by": "bigbird-ja"},
        metadata=dict(metadata),
        network_config=tpu_v2.NetworkConfig(
            network=spec.network or "",
            subnetwork=spec.subnetwork or "",
            enable_external_ips=spec.external_ip,
        ),
    )
    if spec.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        node.service_account = tpu_v2.ServiceAccount(email=spec.service_account, scope=[scope])
    if not spec.queued:
        node.scheduling_config = tpu_v2.SchedulingConfig(
            spot=spec.pricing == "spot", preemptible=spec.pricing == "preemptible"
        )
        return tpu_v2.CreateNodeRequest(parent=parent, node_id=spec.name, node=node)
    node_spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=spec.name, node=node)
    queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[node_spec]))
    if spec.pricing == "spot":
        queued.spot = tpu_v2.QueuedResource.Spot()
    else:
        queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
    return tpu_v2.CreateQueuedResourceRequest(
        parent=parent, queued_resource_id=spec.name, queued_resource=queued
    )


def delete_addresses(api: str, project: str, spec: TpuSpec, zone: str) -> list[str]:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    parent = f"{api or API}/projects/{project}/locations/{zone}"
    if spec.queued:
        return [f"{parent}/queuedResources/{spec.name}?force=true"]
    return [f"{parent}/nodes/{spec.name}"]


def connect(project: str) -> GcpTpus:
    """The service with the user's own credentials, or an emulator on this machine.

    Raises:
        BadInput: no credentials, or no client library; the message says how to get them.
    """
    tpu_v2 = library("tpu_v2", "google-cloud-tpu")
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if emulator:
        return GcpTpus(project, emulator_client(emulator))
    return with_credentials(lambda: GcpTpus(project, tpu_v2.TpuClient()))


def emulator_client(address: str) -> Any:
    """A client of a Cloud TPU service on this machine, over an open channel.

    Raises:
        BadInput: the address is not this machine: an open channel must not leave it.
    """
    import grpc
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    check_loopback(address, EMULATOR_VARIABLE)
    return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(address)))


class GcpTpus:
    """Cloud TPU through google-cloud-tpu (API v2).

    Args:
        project: id of the Google Cloud project.
        client: a `tpu_v2.TpuClient`; tests hand in one with a transport of their own.
        call_seconds, retry_seconds: bounds of one request and of one call with its retries.
    """

    def __init__(
        self,
        project: str,
        client: Any,
        call_seconds: float = CALL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._project, self._client = project, client
        self._call_seconds, self._retry_seconds = call_seconds, retry_seconds

    def list(self, zone: str) -> list[Tpu]:
        parent = f"projects/{self._project}/locations/{zone}"
        nodes, missed = self._pages(self._client.list_nodes, parent, "nodes")
        queued, more = self._pages(self._client.list_queued_resources, parent, "queued_resources")
        found = merge(nodes, queued)
        if missed or more:
            names = ", ".join(sorted({name.rsplit("/")[-1] for name in (*missed, *more)}))
            raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {names}", found)
        return found

    def _pages(self, method: Callable[..., Any], parent: str, key: str) -> tuple[Any, Any]:
        """What is listed, and the places that did not answer (a listing may be a part)."""

        def call(**bounds: Any) -> tuple[list[Any], list[str]]:
            pages = list(method(parent=parent, **bounds).pages)
            found = [one for page in pages for one in getattr(page, key)]
            return found, [name for page in pages for name in page.unreachable]

        return tuple(self._call(call))

    def zones(self) -> Sequence[str]:
        request = {"name": f"projects/{self._project}"}
        found = self._call(lambda **bounds: self._client.list_locations(request, **bounds))
        return [location.location_id for location in found.locations]

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        request = create_request(self._project, spec, zone, attempt, metadata)
        method = self._client.create_queued_resource if spec.queued else self._client.create_node
        return str(self._call(lambda **bounds: method(request=request, **bounds)).operation.name)

    def delete(self, tpu: Tpu) -> str:
        from google.cloud import tpu_v2

        parent = f"projects/{self._project}/locations/{tpu.zone}"
        if tpu.has_queued:
            # force: without it the service refuses while the queued resource still has nodes
            request = tpu_v2.DeleteQueuedResourceRequest(
                name=f"{parent}/queuedResources/{tpu.name}", force=True
            )
            call = lambda **bounds: self._client.delete_queued_resource(request=request, **bounds)  # noqa: E731
        else:
            name = f"{parent}/nodes/{tpu.name}"
            call = lambda **bounds: self._client.delete_node(name=name, **bounds)  # noqa: E731
        return str(self._call(call).operation.name)

    def operation(self, name: str) -> Operation:
        operations = self._client.transport.operations_client
        found = self._call(lambda **bounds: operations.get_operation(name, **bounds))
        if found.done and found.HasField("error"):
            return Operation(True, fault_of_status(found.error.code, found.error.message))
        return Operation(bool(found.done))

    def _call(self, call: Callable[..., Any]) -> Any:
        return bounded(call, self._call_seconds, self._retry_seconds)


def merge(nodes: Sequence[Any], queued: Sequence[Any]) -> list[Tpu]:
    """Nodes and queued resources of one listing, by name and zone.

    Args:
        nodes: `tpu_v2.Node`s.
        queued: `tpu_v2.QueuedResource`s; each of ours holds one node of its own name.
    """
    found: dict[tuple[str, str], Tpu] = {}
    for node in nodes:
        tpu = _of_node(node)
        found[tpu.zone, tpu.name] = tpu
    for resource in queued:
        tpu = _of_queued(resource, found)
        found[tpu.zone, tpu.name] = tpu
    return list(found.values())


def _split(name: str) -> tuple[str, str]:
    """Zone and id of `projects/P/locations/Z/nodes/ID`."""
    parts = name.split("/")
    return parts[3], parts[-1]


def _of_node(node: Any) -> Tpu:
    zone, name = _split(node.name)
    state = node.state.name if hasattr(node.state, "name") else str(node.state)
    symptoms = [symptom.details for symptom in node.symptoms]
    return Tpu(
        name,
        zone,
        _PRESENCE.get(state, Presence.GONE),
        state,
        has_node=True,
        has_queued=False,
        accelerator_type=node.accelerator_type,
        labels=dict(node.labels),
        created=_seconds(node.create_time),
        detail="; ".join([node.health_description, *symptoms]).strip("; "),
        run_dir=node.metadata.get(RUN_DIR_KEY, ""),
    )


def _of_queued(resource: Any, nodes: Mapping[tuple[str, str], Tpu]) -> Tpu:
    zone, name = _split(resource.name)
    state = resource.state.state.name
    node = nodes.get((zone, name))
    fault = None
    if state == "FAILED":
        error = resource.state.failed_data.error
        fault = fault_of_status(error.code, error.message) if error.code else None
        fault = fault or ServiceFault(Kind.INTERNAL, "the queued resource failed")
    presence = _QUEUE_PRESENCE.get(state, Presence.GONE)
    if state == "ACTIVE":
        presence = node.presence if node else Presence.GONE
    spec = resource.tpu.node_spec[0].node if resource.tpu.node_spec else None
    return Tpu(
        name,
        zone,
        presence,
        f"{state}/{node.state}" if node else state,
        has_node=node is not None,
        has_queued=True,
        accelerator_type=spec.accelerator_type if spec else "",
        labels=dict(spec.labels) if spec else {},
        created=node.created if node and node.created else _seconds(resource.create_time),
        detail=fault.message if fault else (node.detail if node else ""),
        fault=fault,
        run_dir=spec.metadata.get(RUN_DIR_KEY, "") if spec else "",
    )


def _seconds(timestamp: Any) -> float:
    return float(timestamp.timestamp()) if timestamp else 0.0
