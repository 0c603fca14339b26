"""Compute Engine's REST API on loopback, as far as `launch` uses it: VMs that are real processes.

A managed instance group makes its hosts at once, replaces what it loses, and tries for ever.
Assumed, from Google's pages: texts of errors; that a template or policy in use cannot be deleted.
That the service ends a VM by itself at its limit is simulated in `testkit.simulated_cloud`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from testkit.fakes.service import Answer, Machine, Service, error, in_background, kill, lookup, now

ZONES = ("us-central1-a", "us-central1-b", "us-east5-b")
ERRORS = {
    "stockout": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources."),
    "quota": ("QUOTA_EXCEEDED", "Quota 'TPU_LITE_PODSLICE_V5' exceeded. Limit: 0.0 in region."),
    "internal": ("INTERNAL_ERROR", "Internal error."),
}
REPAIR_SECONDS = 1.0  # a lost host is replaced so late that somebody sees it

Key = tuple[str, str]  # zone, region or "global"; name


@dataclass
class Group:
    """A managed instance group."""

    resource: dict[str, Any]
    hosts: list[str]  # names by their place in the slice; "" is not made yet
    errors: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0
    lost_at: float | None = None


class Slices:
    """What slices consist of: workload policies, instance templates, managed instance groups."""

    def __init__(self, service: FakeCompute) -> None:
        self._service = service
        self.templates: dict[Key, dict[str, Any]] = {}
        self.policies: dict[Key, dict[str, Any]] = {}
        self.groups: dict[Key, Group] = {}
        self.refusals: dict[str, list[Answer]] = {}  # of creations, by kind of resource
        self.repairs = True  # whether lost hosts are replaced

    def leftovers(self) -> list[str]:
        """Names of all templates and policies."""
        return sorted(name for _, name in (*self.templates, *self.policies))

    def is_used(self, name: str) -> bool:
        """Whether a group has this template or policy."""
        links = []
        for group in self.groups.values():
            links.append(group.resource["instanceTemplate"])
            links.append(group.resource["resourcePolicies"]["workloadPolicy"])
        return any(link.endswith(f"/{name}") for link in links)

    def fill(self) -> None:
        """One turn of the groups: each makes the hosts that it lacks."""
        for (zone, name), group in self.groups.items():
            there = self._service.vms
            missing = [n for n, host in enumerate(group.hosts) if (zone, host) not in there]
            is_going = "currentActions" in group.resource
            if is_going or not missing or (group.made and not self.repairs):
                group.lost_at = None
                continue
            group.lost_at = group.lost_at or time.monotonic()
            if group.made and time.monotonic() - group.lost_at < REPAIR_SECONDS:
                continue
            template = group.resource["instanceTemplate"].rsplit("/")[-1]
            properties = self.templates["global", template]["properties"]
            for number in missing:
                group.made += 1
                host = group.hosts[number] = f"{name}-h{group.made:03d}"
                machine_type = f"zones/{zone}/machineTypes/{properties['machineType']}"
                place = {"JAX_NUM_PROCESSES": str(len(group.hosts)), "JAX_PROCESS_ID": str(number)}
                resource = {**properties, "name": host, "machineType": machine_type}
                self._service.start(zone, resource, place, f"disk{number}")


class FakeCompute(Service):
    """The service; see `Service`."""

    operation_prefix, running, over = "operation-", {"status": "RUNNING"}, {"status": "DONE"}

    def __init__(
        self, work_dir: str, environ: dict[str, str] | None = None, keep_disk: bool = False
    ) -> None:
        super().__init__(work_dir, environ, keep_disk)
        self._ending = threading.Event()
        self.vms: dict[Key, Machine] = {}
        self.created: list[dict[str, Any]] = []  # what was asked for
        self.slices = Slices(self)
        self._tables: dict[str, dict[Key, Any]] = {
            "instances": self.vms, "instanceTemplates": self.slices.templates,
            "resourcePolicies": self.slices.policies, "instanceGroupManagers": self.slices.groups,
        }  # fmt: skip

    def __enter__(self) -> FakeCompute:
        super().__enter__()
        in_background(self._fill_groups)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        super().__exit__(*exception)

    # --- what tests do and ask ---------------------------------------------------------------

    def node_names(self) -> list[str]:
        """zone/name of all VMs and groups."""
        with self._lock:
            return sorted("/".join(key) for key in {*self.vms, *self.slices.groups})

    def hosts(self, name: str) -> list[str]:
        """Names of a slice's hosts that are there, by their place in it."""
        (group,) = [group for key, group in self.slices.groups.items() if key[1] == name]
        return [host for host in group.hosts if host]

    def is_ready(self, name: str) -> bool:
        """Whether a VM, or every host of a slice, is running."""
        with self._lock:
            groups = {key[1]: group for key, group in self.slices.groups.items()}
            wanted = groups[name].hosts if name in groups else [name]
            running = [key[1] for key, vm in self.vms.items() if vm.resource["status"] == "RUNNING"]
            return set(wanted) <= set(running)

    def preempt(self, name: str, grace: float = 0.0) -> None:
        """Takes a VM away: TERM, a grace, KILL, and deletes it, as its termination action says."""
        (key,) = [key for key in self.vms if key[1] == name]
        self._end(key, grace)

    # --- lives of VMs ------------------------------------------------------------------------

    def start(
        self,
        zone: str,
        resource: dict[str, Any],
        environ: dict[str, str] | None = None,
        disk: str = "disk",
    ) -> None:
        """Boots a VM."""
        resource |= {"status": "RUNNING", "creationTimestamp": now(), "zone": self._link(zone)}
        metadata = {item["key"]: item["value"] for item in resource["metadata"]["items"]}
        process = self.boot(metadata.get("startup-script", ""), environ, disk)
        self.vms[zone, resource["name"]] = Machine(resource, process)
        self.most_at_once = max(self.most_at_once, len(self.vms))

    def _fill_groups(self) -> None:
        while not self._ending.wait(0.05):
            with self._lock:
                self.slices.fill()

    def _end(self, key: Key, grace: float) -> None:
        """Ends a VM, and forgets it; another of its name stays."""
        vm = self.vms.get(key)
        if vm is None:
            return
        vm.resource["status"] = "STOPPING"
        kill(vm.process, grace)
        with self._lock:
            if self.vms.get(key) is vm:
                del self.vms[key]

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request: of a place (a zone, a region or `global`), a kind and perhaps a name."""
        parts = path.partition("?")[0].strip("/").split("/")[4:]  # below the project
        self.requests.append(f"{method} {'/'.join(parts)}")
        with self._lock:
            match parts:
                case ["zones"]:
                    return 200, {"items": [{"name": zone} for zone in ZONES]}
                case ["regions"]:
                    quota = {"metric": "PREEMPTIBLE_TPU_LITE_PODSLICE_V5", "limit": 8, "usage": 4}
                    return 200, {"items": [{"name": "us-central1", "quotas": [quota]}]}
                case [*_, "operations", name]:
                    return lookup(self._operations.get(name), name)
                case ["zones", zone, _, name, "listErrors"]:
                    return 200, {"items": self.slices.groups[zone, name].errors}
                case ["aggregated", kind]:
                    return self.refusal(self.list_script) or (200, {"items": self._scopes(kind)})
                case ["global" as place, kind, *names] | [_, place, kind, *names]:
                    pass
                case _:
                    return lookup(None, path)
            if method == "POST":
                return self._create(place, kind, body)
            if not names:
                items = self._scopes(kind).get(place, {kind: []})[kind]
                return self.refusal(self.list_script) or (200, {"items": items})
            key = (place, names[0])
            entry = self._tables[kind].get(key)
            if entry is None or method == "GET":
                return lookup(_resource(entry), names[0])
            return self._delete(kind, key, entry)

    def _scopes(self, kind: str) -> dict[str, Any]:
        """All resources of a kind, by their place."""
        scopes: dict[str, Any] = {}
        for (place, _), entry in self._tables[kind].items():
            scopes.setdefault(place, {kind: []})[kind].append(_resource(entry))
        return scopes

    def _create(self, place: str, kind: str, body: dict[str, Any]) -> Answer:
        key = (place, body["name"])
        refused = self.slices.refusals.get(kind)
        if refused:
            return refused.pop(0)
        if key in self._tables[kind]:
            return 409, error(409, f"The resource {body['name']} already exists")
        if kind == "instances":
            if self.script:
                code, message = ERRORS[self.script.pop(0)]
                return self.operation(error={"errors": [{"code": code, "message": message}]})
            self.created.append(body)
            self.start(place, body)
        elif kind == "instanceGroupManagers":
            body |= {"zone": self._link(place), "creationTimestamp": now()}
            self.slices.groups[key] = Group(body, [""] * int(body["targetSize"]))
        else:
            self._tables[kind][key] = body
        return self.operation()

    def _delete(self, kind: str, key: Key, entry: Any) -> Answer:
        if kind == "instances":
            entry.resource["status"] = "STOPPING"
            return self.operation(lambda: self._end(key, 0.2))
        if kind == "instanceGroupManagers":
            entry.resource["currentActions"] = {"deleting": len(entry.hosts)}
            return self.operation(lambda: self._end_group(key, entry))
        if self.slices.is_used(key[1]):
            return 400, error(400, f"The resource {key[1]} is already being used")
        del self._tables[kind][key]
        return self.operation()

    def _end_group(self, key: Key, group: Group) -> None:
        for host in group.hosts:
            self._end((key[0], host), 0.2)
        with self._lock:
            if self.slices.groups.get(key) is group:
                del self.slices.groups[key]

    def _link(self, zone: str) -> str:
        return f"{self.url}/compute/v1/projects/p/zones/{zone}"


def _resource(entry: Any) -> Any:
    """What the API says of a VM, a group, a template or a policy."""
    return entry.resource if isinstance(entry, (Machine, Group)) else entry
