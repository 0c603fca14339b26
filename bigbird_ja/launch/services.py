"""What is rented, as the supervisor sees it; and the first of its services, the Cloud TPU API.

The Cloud TPU API rents v2 to v4 and slices of v5e, as direct nodes or through queued resources.
`compute.py` is the other service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch.rest import (
    Json,
    Kind,
    Rest,
    ServiceFault,
    connect_rest,
    fault_of_status,
    seconds_of,
)

RUN_LABEL = "bigbird-ja-run"
ID_LABEL = "bigbird-ja-id"  # of the run, random: what proves that a machine is its own
ATTEMPT_LABEL = "bigbird-ja-attempt"
RUN_DIR_KEY = "bigbird-ja-run-dir"  # in a machine's metadata: BUCKET/NAME of its run


class Presence(Enum):
    """A TPU's state as far as anything depends on it."""

    WAITING = "waiting"  # queued, no machine yet
    PENDING = "pending"  # being created, started or repaired
    READY = "ready"  # billed
    DELETING = "deleting"
    GONE = "gone"  # listed, dead, holding quota and its name


@dataclass(frozen=True)
class Tpu:
    """What is listed under one name in one zone: a node, a queued resource, a VM or a group."""

    name: str
    zone: str
    presence: Presence
    state: str  # as the service calls it
    accelerator_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0  # UNIX seconds by the service's clock; distinguishes two of one name
    fault: ServiceFault | None = None  # why there is no machine yet
    resource: str = ""  # its full name
    run_dir: str = ""  # BUCKET/NAME of the run; empty where it is not labelled
    service: str = "tpu"  # tpu | compute: which service lists it
    is_queued: bool = False  # a queued resource holds it
    is_group: bool = False  # its service replaces hosts that it loses
    is_partly_up: bool = False  # some of its hosts are there, and billed

    @property
    def run(self) -> str:
        """The name of the run that it is labelled with."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def run_id(self) -> str:
        """The id of the run that made it; empty where no run of ours did."""
        return self.labels.get(ID_LABEL, "")

    def belongs_to(self, run_id: str) -> bool:
        """Whose machine it is: nothing else decides what may be adopted, counted or deleted."""
        return bool(run_id) and self.run_id == run_id

    @property
    def owner(self) -> str:
        """Its owner's own words, for people."""
        words = [f"{key}: {value}" for key, value in self.labels.items()]
        return ", ".join([*words, *([f"run {self.run_dir}"] if self.run_dir else [])]) or "no label"

    def to_json(self) -> dict[str, str]:
        """For the `--json` results of commands."""
        keys = ("name", "run", "run_id", "zone", "state", "accelerator_type", "resource")
        return {key: getattr(self, key) for key in keys}

    @property
    def attempt(self) -> int:
        """Which creation of its run it is; 0 where unknown."""
        text = self.labels.get(ATTEMPT_LABEL, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Operation:
    """A long-running operation, looked at once."""

    done: bool
    fault: ServiceFault | None = None


@dataclass(frozen=True)
class TpuSpec:
    """What is rented; metadata and limit are given per creation."""

    name: str
    accelerator_type: str
    runtime_version: str  # the image, by the name that its service uses
    run_id: str = ""
    pricing: str = "spot"  # spot | on_demand
    queued: bool = False
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True


class Tpus(Protocol):
    """What the supervisor asks of a service. Every method may raise `ServiceFault`."""

    def list(self, zone: str) -> Sequence[Tpu]:
        """All TPUs of a zone; "-" is every zone."""

    def find(self, zone: str, name: str) -> Tpu | None:
        """What has a name in a zone, whoever made it; None where nothing has."""

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        """Asks for a TPU; returns the operation's name at once.

        Args:
            limit: seconds that it may live at most. Where the service knows such a limit it deletes
                the machine then; else the machine's own watcher does.
        """

    def delete(self, tpu: Tpu) -> str:
        """Asks for the deletion of `tpu` by its full name, once it is proved that this still is the
        machine of that run; returns the operation's name."""

    def operation(self, name: str) -> Operation:
        """Looks at an operation, without waiting."""

    def zones(self) -> Sequence[str]:
        """Every zone that the service knows."""

    def time(self) -> float:
        """UNIX seconds by the service's clock."""


def check_still_there(service: Tpus, expected: Tpu) -> Tpu:
    """Proof before a deletion that what was listed is there: the same machine, seen by its name.

    Raises:
        ServiceFault: nothing is, or what is of another run or was created at another time.
    """
    tpu = service.find(expected.zone, expected.name)
    if tpu is None:
        raise ServiceFault(Kind.NOT_FOUND, f"no {expected.name} in {expected.zone}")
    same_time = not expected.created or tpu.created == expected.created
    if not tpu.belongs_to(expected.run_id) or not same_time:
        raise ServiceFault(Kind.NOT_FOUND, f"{tpu.resource} is another's now: {tpu.owner}")
    return tpu


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
    """What a TPU of this type boots."""
    is_v5e = hardware.generation_of(accelerator_type) == 5
    return V5E_RUNTIME_VERSION if is_v5e else RUNTIME_VERSION


def creation(
    project: str, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str]
) -> Json:
    """What rents a TPU: a node, or a queued resource that holds one of its name."""
    node: Json = {
        "acceleratorType": hardware.launch_type(hardware.find(spec.accelerator_type)),
        "runtimeVersion": spec.runtime_version,
        "labels": {
            RUN_LABEL: spec.name, ID_LABEL: spec.run_id, ATTEMPT_LABEL: str(attempt),
            "managed-by": "bigbird-ja",
        },
        "metadata": dict(metadata),
        "networkConfig": {
            "network": spec.network or "",
            "subnetwork": spec.subnetwork or "",
            "enableExternalIps": spec.external_ip,
        },
    }  # fmt: skip
    if spec.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        node["serviceAccount"] = {"email": spec.service_account, "scope": [scope]}
    if not spec.queued:
        if spec.pricing == "spot":
            node["schedulingConfig"] = {"spot": True}
        return node
    parent = f"projects/{project}/locations/{zone}"
    kind = "spot" if spec.pricing == "spot" else "guaranteed"
    return {"tpu": {"nodeSpec": [{"parent": parent, "nodeId": spec.name, "node": node}]}, kind: {}}


def delete_address(api: str, project: str, spec: TpuSpec, zone: str) -> str:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    parent = f"{api or API}/projects/{project}/locations/{zone}"
    if spec.queued:
        return f"{parent}/queuedResources/{spec.name}?force=true"
    return f"{parent}/nodes/{spec.name}"


class TpuNodes:
    """The nodes and queued resources of a project.

    Args:
        project: id of the Google Cloud project.
        rest: below the API's address.
    """

    def __init__(self, project: str, rest: Rest) -> None:
        self._project, self._rest = project, rest

    def list(self, zone: str) -> list[Tpu]:
        """Nodes and queued resources, by name and zone.

        Raises:
            ServiceFault: as all methods; `listed` is what could be listed where only a part could.
        """
        parent, missed = f"projects/{self._project}/locations/{zone}", set()
        resources: dict[str, list[Json]] = {"nodes": [], "queuedResources": []}
        for kind, listed in resources.items():
            for page in self._rest.pages(f"{parent}/{kind}"):
                listed += page.get(kind, [])
                missed |= {name.rsplit("/")[-1] for name in page.get("unreachable", [])}
        tpus = {(tpu.zone, tpu.name): tpu for tpu in map(_of_node, resources["nodes"])}
        for queued in resources["queuedResources"]:
            zone, name = _zone_and_id(queued)
            tpus[zone, name] = _of_queued(queued, tpus.get((zone, name)))
        if missed:
            message = f"no answer from {', '.join(sorted(missed))}"
            raise ServiceFault(Kind.UNAVAILABLE, message, [*tpus.values()])
        return [*tpus.values()]

    def zones(self) -> Sequence[str]:
        pages = self._rest.pages(f"projects/{self._project}/locations")
        return [one["locationId"] for page in pages for one in page.get("locations", [])]

    def create(
        self, spec: TpuSpec, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
    ) -> str:
        body = creation(self._project, spec, zone, attempt, metadata)
        parent = f"projects/{self._project}/locations/{zone}"
        kind, key = ("queuedResources", "queuedResourceId") if spec.queued else ("nodes", "nodeId")
        return str(self._rest.call("POST", f"{parent}/{kind}", body, {key: spec.name})["name"])

    def find(self, zone: str, name: str) -> Tpu | None:
        parent = f"projects/{self._project}/locations/{zone}"
        node = self._rest.find(f"{parent}/nodes/{name}")
        queued = self._rest.find(f"{parent}/queuedResources/{name}")
        tpu = _of_node(node) if node else None
        return _of_queued(queued, tpu) if queued else tpu

    def delete(self, tpu: Tpu) -> str:
        there = check_still_there(self, tpu)
        # force: without it the service refuses while the queued resource still has nodes
        query = {"force": "true"} if there.is_queued else {}
        return str(self._rest.call("DELETE", there.resource, query=query)["name"])

    def time(self) -> float:
        return self._rest.now()

    def operation(self, name: str) -> Operation:
        operation = self._rest.call("GET", name)
        error = operation.get("error")
        fault = fault_of_status(error.get("code", 13), error.get("message", "")) if error else None
        return Operation(bool(operation.get("done")), fault)


def connect(project: str) -> TpuNodes:
    """The service with the user's own credentials, or an emulator on this machine.

    Raises:
        BadInput: no credentials; the message has how to get them.
    """
    return TpuNodes(project, connect_rest(API, EMULATOR_VARIABLE))


def _zone_and_id(resource: Json) -> tuple[str, str]:
    """Of `projects/P/locations/ZONE/nodes/ID`."""
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
        created=seconds_of(node.get("createTime", "")),
        resource=node["name"],
        run_dir=node.get("metadata", {}).get(RUN_DIR_KEY, ""),
    )


def _of_queued(resource: Json, node: Tpu | None) -> Tpu:
    """A queued resource with the node that it holds, if it has one already."""
    zone, name = _zone_and_id(resource)
    status = resource.get("state", {})
    state, fault = status.get("state", "STATE_UNSPECIFIED"), None
    if state == "FAILED":
        error = status.get("failedData", {}).get("error", {})
        message = error.get("message") or "the queued resource failed"
        fault = fault_of_status(error.get("code", 13), message)
    presence = _QUEUE_PRESENCE.get(state, Presence.GONE)
    if state == "ACTIVE":
        presence = node.presence if node else Presence.GONE
    specs = resource.get("tpu", {}).get("nodeSpec", [])
    asked = specs[0].get("node", {}) if specs else {}
    created = seconds_of(resource.get("createTime", ""))
    return Tpu(
        name,
        zone,
        presence,
        f"{state}/{node.state}" if node else state,
        accelerator_type=asked.get("acceleratorType", ""),
        labels=asked.get("labels", {}),
        created=node.created if node and node.created else created,
        fault=fault,
        resource=resource["name"],
        run_dir=asked.get("metadata", {}).get(RUN_DIR_KEY, ""),
        is_queued=True,
    )
