"""Compute Engine's workload policies, instance templates and managed instance groups.

Part of `testkit.fakes.compute`. A group makes its hosts at once, replaces what it loses, and tries
for ever.

Assumed, from Google's pages: texts of errors; that a group whose hosts' end has passed makes no
more of them; that a template or policy in use cannot be deleted.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testkit.fakes.machines import Answer


@dataclass
class Group:
    """A managed instance group."""

    resource: dict[str, Any]
    errors: list[dict[str, Any]] = field(default_factory=list)
    is_going: bool = False
    hosts: list[tuple[str, str]] = field(default_factory=list)  # by their place in the slice
    made: int = 0
    lost_at: float | None = None


class Slices:
    """The resources of slices.

    Args:
        base: address of the project, for links.
        operation: makes an operation that is over.
        later: makes an operation that is over when its work, done in the background, is.
        boot: makes a VM of a zone with these properties, as host of so many.
        stop: ends VMs and forgets them.
        alive: whether a VM is there.
        error: an error's body.
    """

    def __init__(
        self,
        base: str,
        operation: Callable[..., dict[str, Any]],
        later: Callable[[Callable[[], None]], dict[str, Any]],
        boot: Callable[[str, str, dict[str, Any], int, int], None],
        stop: Callable[[list[tuple[str, str]]], None],
        alive: Callable[[tuple[str, str]], bool],
        error: Callable[[int, str], dict[str, Any]],
    ) -> None:
        self._base, self._operation, self._later = base, operation, later
        self._boot, self._stop, self._alive, self._error = boot, stop, alive, error
        self.lock = threading.RLock()
        self.templates: dict[str, dict[str, Any]] = {}
        self.policies: dict[tuple[str, str], dict[str, Any]] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.refusals: dict[str, list[Answer]] = {}  # of creations, by kind of resource
        self.repairs = True  # whether lost hosts are replaced
        self.repair_seconds = 1.0  # so late that somebody sees it

    def leftovers(self) -> list[str]:
        """Names of all templates and policies."""
        return sorted([*self.templates, *(name for _, name in self.policies)])

    def answer(self, method: str, parts: list[str], body: Any) -> Answer | None:
        """One request; None where it is about something else."""
        with self.lock:
            match parts:
                case ["global", "instanceTemplates"] if method == "POST":
                    return self._make("instanceTemplates", self.templates, body["name"], body)
                case ["global", "instanceTemplates"]:
                    return 200, {"items": [*self.templates.values()]}
                case ["global", "instanceTemplates", name] if method == "DELETE":
                    return self._drop(self.templates, name, name)
                case ["regions", region, "resourcePolicies"] if method == "POST":
                    body["region"] = f"{self._base}/regions/{region}"
                    key = (region, body["name"])
                    return self._make("resourcePolicies", self.policies, key, body)
                case ["regions", region, "resourcePolicies"]:
                    return 200, {"items": [p for k, p in self.policies.items() if k[0] == region]}
                case ["regions", region, "resourcePolicies", name] if method == "GET":
                    return 200, self.policies[region, name]
                case ["global", "instanceTemplates", name] if method == "GET":
                    return 200, self.templates[name]
                case ["regions", region, "resourcePolicies", name]:
                    return self._drop(self.policies, (region, name), name)
                case ["aggregated", "resourcePolicies"]:
                    return 200, _scoped("regions", "resourcePolicies", self.policies)
                case ["zones", zone, "instanceGroupManagers"] if method == "POST":
                    return self._create(zone, body)
                case ["zones", zone, "instanceGroupManagers"]:
                    found = [g.resource for k, g in self.groups.items() if k[0] == zone]
                    return 200, {"items": found}
                case ["aggregated", "instanceGroupManagers"]:
                    groups = {key: group.resource for key, group in self.groups.items()}
                    return 200, _scoped("zones", "instanceGroupManagers", groups)
                case ["zones", zone, "instanceGroupManagers", name, "listErrors"]:
                    group = self.groups.get((zone, name))
                    return 200, {"items": group.errors if group else []}
                case ["zones", zone, "instanceGroupManagers", name] if method == "DELETE":
                    return self._delete((zone, name))
                case ["zones", zone, "instanceGroupManagers", name]:
                    group = self.groups.get((zone, name))
                    missing = (404, self._error(404, f"{name} was not found"))
                    return (200, group.resource) if group else missing
        return None

    def _make(self, kind: str, table: dict[Any, Any], key: Any, body: dict[str, Any]) -> Answer:
        refused = self.refusals.get(kind)
        if refused:
            return refused.pop(0)
        if key in table:
            return 409, self._error(409, f"The resource {body['name']} already exists")
        table[key] = body
        return 200, self._operation()

    def _drop(self, table: dict[Any, Any], key: Any, name: str) -> Answer:
        if key not in table:
            return 404, self._error(404, f"The resource {name} was not found")
        for group in self.groups.values():
            uses = (
                group.resource["instanceTemplate"],
                group.resource["resourcePolicies"]["workloadPolicy"],
            )
            if any(use.endswith(f"/{name}") for use in uses):
                return 400, self._error(400, f"The resource {name} is already being used")
        del table[key]
        return 200, self._operation()

    def _create(self, zone: str, body: dict[str, Any]) -> Answer:
        key = (zone, body["name"])
        group = Group(body)
        answer = self._make("instanceGroupManagers", self.groups, key, group.resource)
        if answer[0] != 200:
            return answer
        self.groups[key] = group
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        body |= {"zone": f"{self._base}/zones/{zone}", "creationTimestamp": now}
        group.hosts = [("", "")] * int(body["targetSize"])
        return answer

    def _delete(self, key: tuple[str, str]) -> Answer:
        group = self.groups.get(key)
        if group is None:
            return 404, self._error(404, f"The resource {key[1]} was not found")
        group.is_going = True
        group.resource["currentActions"] = {"deleting": len(group.hosts)}

        def finish() -> None:
            self._stop([host for host in group.hosts if host[1]])
            with self.lock:
                if self.groups.get(key) is group:
                    del self.groups[key]

        return 200, self._later(finish)

    def fill(self) -> None:
        """One turn of the groups: each makes the hosts that it lacks."""
        with self.lock:
            for (zone, name), group in self.groups.items():
                missing = [n for n, host in enumerate(group.hosts) if not self._alive(host)]
                is_new = group.made == 0
                if group.is_going or not missing or not (is_new or self.repairs):
                    group.lost_at = None
                    continue
                group.lost_at = group.lost_at or time.monotonic()
                if not is_new and time.monotonic() - group.lost_at < self.repair_seconds:
                    continue
                template = self.templates[group.resource["instanceTemplate"].rsplit("/")[-1]]
                ends = template["properties"]["scheduling"]["terminationTime"]
                if datetime.datetime.fromisoformat(ends) <= datetime.datetime.now(
                    datetime.timezone.utc
                ):
                    continue
                for number in missing:
                    group.made += 1
                    host = f"{name}-h{group.made:03d}"
                    group.hosts[number] = (zone, host)
                    properties = template["properties"]
                    self._boot(zone, host, properties, number, len(group.hosts))


def _scoped(scope: str, kind: str, table: dict[tuple[str, str], Any]) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for (place, _), resource in table.items():
        items.setdefault(f"{scope}/{place}", {kind: []})[kind].append(resource)
    return {"items": items}
