"""Which of Google's two services rents a TPU, and both of them where what is left is looked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.launch import compute, machines, tpu
from bigbird_ja.launch.faults import ServiceFault
from bigbird_ja.launch.slices import is_slice
from bigbird_ja.launch.tpu_service import Tpu, Tpus, TpuSpec
from bigbird_ja.process.errors import BadInput

_MODULES = {"tpu": tpu, "compute": compute}
NAMES = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}


def service_of(accelerator_type: str) -> str:
    """`compute` for v5e and later, `tpu` for v2 to v4 and for v5e of several hosts, which Compute
    Engine's groups do not serve: neither sees what the other rents."""
    return "compute" if compute.serves(accelerator_type) else "tpu"


def connect(project: str, service: str) -> Tpus:
    """One service, with the user's credentials.

    Raises:
        BadInput: no credentials, or no client library.
    """
    return tpu.connect(project) if service == "tpu" else compute.connect(project)


def connect_all(project: str) -> Everywhere:
    """Both services; where an emulator stands for one, only those that are emulated.

    Raises:
        BadInput: no credentials, or no client library.
    """
    emulated = [s for s, module in _MODULES.items() if module.EMULATOR_VARIABLE in os.environ]
    return Everywhere({name: connect(project, name) for name in emulated or _MODULES})


def delete_addresses(api: str, project: str, spec: TpuSpec, zone: str) -> list[str]:
    """Where a machine asks for its own deletion, with the verb DELETE."""
    module = _MODULES[service_of(spec.accelerator_type)]
    return module.delete_addresses(api, project, spec, zone)


@dataclass(frozen=True)
class Verbs:
    """What a service calls the requests of a run."""

    lists: tuple[str, ...]
    operation: str
    delete: str


def verbs(spec: TpuSpec) -> Verbs:
    """Of the service that rents this type."""
    if service_of(spec.accelerator_type) == "compute":
        lists = (
            "instances.list", "instanceGroupManagers.list", "instanceTemplates.list",
            "resourcePolicies.list",
        )  # fmt: skip
        kind = "instanceGroupManagers" if is_slice(spec.accelerator_type) else "instances"
        return Verbs(lists, "zoneOperations.get", f"{kind}.delete")
    kind = "QueuedResource" if spec.queued else "Node"
    return Verbs(("ListNodes", "ListQueuedResources"), "GetOperation", f"Delete{kind}")


def image(accelerator_type: str) -> str:
    """What a machine of this type boots."""
    if service_of(accelerator_type) == "compute":
        return compute.image(accelerator_type)
    return machines.runtime_version(accelerator_type)


def create_bodies(
    project: str, spec: TpuSpec, zone: str, metadata: Mapping[str, str], limit: float
) -> list[tuple[str, dict[str, Any]]]:
    """Methods and requests that rent a TPU, for people to read."""
    if service_of(spec.accelerator_type) == "compute":
        where = {"project": project, "zone": zone}
        if is_slice(spec.accelerator_type):
            asked = compute.slice_requests(project, spec, zone, 1, metadata, limit)
            return [(method, {**where, "body": body}) for method, body in asked]
        made = compute.instance(spec, zone, 1, metadata, limit)
        body = type(made).to_dict(made, including_default_value_fields=False)
        return [("instances.insert", {**where, "instance": body})]
    made = tpu.create_request(project, spec, zone, 1, metadata)
    body = type(made).to_dict(made, including_default_value_fields=False)
    return [(f"Create{'QueuedResource' if spec.queued else 'Node'}", body)]


class Everywhere:
    """Both services as one: what one does not answer keeps nothing of the other's back."""

    def __init__(self, services: Mapping[str, Tpus]) -> None:
        self._services = dict(services)

    def list(self, zone: str) -> list[Tpu]:
        """All TPUs of a zone, or of all ("-").

        Raises:
            ServiceFault: a service, or a part of it, did not answer; `found` is what others list. A
                service that is switched off in the project rents nothing and is passed over, unless
                all are.
        """
        found: list[Tpu] = []
        faults: list[ServiceFault] = []
        off: list[ServiceFault] = []
        for service in self._services.values():
            try:
                found += service.list(zone)
            except ServiceFault as fault:
                found += fault.found
                (off if fault.is_switched_off else faults).append(fault)
        if faults or len(off) == len(self._services):
            first = (faults or off)[0]
            raise ServiceFault(first.kind, first.message, found)
        return found

    def delete(self, tpu: Tpu) -> str:
        """By the service that lists it."""
        return self._services[tpu.service].delete(tpu)

    def zones(self) -> Sequence[str]:
        """Every zone that any of the services knows."""
        known: dict[str, None] = {}
        for service in self._services.values():
            try:
                known |= dict.fromkeys(service.zones())
            except ServiceFault as fault:
                if not fault.is_switched_off:
                    raise
        return list(known)


def check_zones(service: Everywhere, zones: Sequence[str]) -> None:
    """Whether zones that somebody named exist: nothing is left in one that does not.

    Raises:
        BadInput: one does not.
        ServiceFault: the services do not say.
    """
    named = [zone for zone in zones if zone != "-"]
    known = service.zones() if named else ()
    for zone in named:
        if zone not in known:
            raise BadInput(f"--zones: no service knows {zone!r}: a zone looks like us-central1-a")
