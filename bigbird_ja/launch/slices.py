"""Slices of several hosts on Compute Engine: a managed instance group whose hosts are wired up.

A slice is made of three resources, each needing the one before: a workload policy (the topology of
the links), an instance template (what each host is), a managed instance group in BULK mode (all
hosts at once, or none). Only the group's hosts are billed. What no group holds any more is listed
as a leftover, so that the supervisor and `down` delete it.

The group replaces hosts that it loses by itself. Therefore hosts are not limited by a duration,
which would begin anew with each replacement, but by a time of day (`terminationTime`), by the
service's own clock: no replacement lives longer than what was rented first.

Google's pages "Create a MIG with multi-host TPU slice", "TPU instances in MIGs" (v5p, v6e and v7x),
"Limit the run time of VMs in a MIG" and "Request TPU Spot VMs" (2026); no run of ours has rented
one yet.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch.rest import (
    RETRY_SECONDS,
    Json,
    Kind,
    Rest,
    ServiceFault,
    fault_of_status,
    seconds_of,
)
from bigbird_ja.launch.services import (
    ATTEMPT_LABEL,
    ID_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Presence,
    Tpu,
)

TYPE_LABEL = "bigbird-ja-type"
SLICE_LABEL = "bigbird-ja-slice"  # of a host: the group that it belongs to
LEFTOVER = "LEFTOVER"  # state of what no group holds any more

# The most chips of the generations that such groups serve.
MOST_CHIPS = {"v5p": 4096, "v6e": 256, "v7x": 8192}
_FLAT = ("v5e", "v6e")  # their links form a plane; those of the others a cube

# Error codes of operations and groups -> google.rpc.Code.
CODES = {
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
_NOTED = (RUN_LABEL, ID_LABEL, ATTEMPT_LABEL, TYPE_LABEL, "description")
_BRIEF = "items(name,description),nextPageToken"  # templates hold whole start-up scripts


def is_slice(accelerator_type: str) -> bool:
    """Whether a group of Compute Engine is what rents this type."""
    machine = hardware.find(accelerator_type)
    return machine.chip in MOST_CHIPS and machine.hosts > 1


def topology(machine: hardware.Machine) -> str:
    """How the chips are linked, as even as it can be: `4x8` for v6e-32, `2x2x4` for v5p-32."""
    dimensions = 2 if machine.chip in _FLAT else 3
    power = round(math.log2(machine.chips))
    sides = [2 ** ((power + more) // dimensions) for more in range(dimensions)]
    return "x".join(map(str, sides))


def listed(
    rest: Rest, what: str, scope: str, zone: str, query: Mapping[str, str] = {}
) -> tuple[list[Json], list[str]]:
    """Resources of a zone or region, or of all ("-"), and the places that did not answer.

    Args:
        scope: "zones" or "regions".
    """
    if zone != "-":
        pages = rest.pages(f"{scope}/{zone}/{what}", query)
        return [one for page in pages for one in page.get("items", [])], []
    resources: list[Json] = []
    missed: list[str] = []
    for page in rest.pages(f"aggregated/{what}", {**query, "returnPartialSuccess": "true"}):
        parts = page.get("items", {}).values()
        resources += [one for part in parts for one in part.get(what, [])]
        missed += page.get("unreachables", [])
    return resources, missed


class Slices:
    """The groups of a project.

    Args:
        project: id of the Google Cloud project.
        rest: below the project's address.
    """

    def __init__(self, project: str, rest: Rest) -> None:
        self._project, self._rest = project, rest

    # --- looking -----------------------------------------------------------------------------

    def find(self, zone: str, hosts: Sequence[Json]) -> tuple[list[Tpu], list[str]]:
        """The groups of a zone ("-": of all), what is left of others, and who did not answer.

        Args:
            hosts: instances of that zone that carry `SLICE_LABEL`.
        """
        groups, missed = listed(self._rest, "instanceGroupManagers", "zones", zone)
        notes = [(group, _note(group)) for group in groups]
        tpus = [self._of_group(group, note, hosts) for group, note in notes if note is not None]
        used = {(tpu.run_id, tpu.zone) for tpu in tpus}
        names = {(tpu.name, tpu.zone) for tpu in tpus}
        alone = [one for one in hosts if (_group_of(one), _zone(one)) not in names]
        # A listing may blink: only what has no group by its name either is left over.
        parts = [(self._orphan(one), _group_of(one)) for one in alone]
        missed += [part.zone for part, group in parts if self._is_of_a_group(part, group)]
        orphans = [part for part, _ in parts if part.zone not in missed]
        policies, more = self._policies(zone)
        leftovers: dict[tuple[str, str], Tpu] = {}
        for resource in (*self._templates(), *policies):
            tpu = self._leftover(resource)
            key = (tpu.run_id, tpu.zone)
            if key in used or key in leftovers or zone not in ("-", tpu.zone):
                continue
            if self._is_of_a_group(tpu, tpu.run):
                missed.append(tpu.zone)
            else:
                leftovers[key] = tpu
        return [*tpus, *orphans, *leftovers.values()], [*missed, *more]

    def get(self, zone: str, name: str) -> Tpu | None:
        """The group of a name, whoever made it; how many of its hosts are up is not looked at."""
        group = self._rest.find(f"zones/{zone}/instanceGroupManagers/{name}")
        if group is None:
            return None
        note = _note(group) or {"description": str(group.get("description", ""))[:100]}
        return self._of_group(group, note, [])

    def _is_of_a_group(self, part: Tpu, name: str) -> bool:
        group = self.get(part.zone, name)
        return group is not None and group.belongs_to(part.run_id)

    def _templates(self) -> list[Json]:
        """Ours."""
        pages = self._rest.pages("global/instanceTemplates", {"fields": _BRIEF})
        resources = [one for page in pages for one in page.get("items", [])]
        return [one for one in resources if _note(one) is not None]

    def _policies(self, zone: str) -> tuple[list[Json], list[str]]:
        """Ours, and the regions that did not answer."""
        region = zone if zone == "-" else zone.rpartition("-")[0]
        resources, missed = listed(self._rest, "resourcePolicies", "regions", region)
        return [one for one in resources if _note(one) is not None], missed

    def _of_group(self, group: Json, note: Json, hosts: Sequence[Json]) -> Tpu:
        zone, name = group["zone"].rsplit("/")[-1], group["name"]
        mine = [h for h in hosts if _group_of(h) == name and _zone(h) == zone]
        up = sum(host["status"] == "RUNNING" for host in mine)
        size = int(group.get("targetSize", 0))
        going = int(group.get("currentActions", {}).get("deleting", 0))
        presence = Presence.READY if size and up >= size else Presence.PENDING
        if not size or going >= size:
            presence = Presence.DELETING
        fault = None
        if presence is Presence.PENDING and not mine:
            fault = self._trouble(zone, name)
        return Tpu(
            name, zone, presence, f"{up}/{size} RUNNING",
            accelerator_type=note.get(TYPE_LABEL, ""), labels=_labels(note),
            resource=f"projects/{self._project}/zones/{zone}/instanceGroupManagers/{name}",
            created=seconds_of(group.get("creationTimestamp", "")),
            fault=fault, run_dir=note.get(RUN_DIR_KEY, ""),
            service="compute", is_group=True, is_partly_up=bool(mine),
        )  # fmt: skip

    def _trouble(self, zone: str, name: str) -> ServiceFault | None:
        """Why a group has no host yet: it tries for ever, and keeps a list of errors."""
        path = f"zones/{zone}/instanceGroupManagers/{name}/listErrors"
        with contextlib.suppress(ServiceFault):
            items = self._rest.call("GET", path).get("items", [])
            return fault_of_errors([one.get("error", {}) for one in items[-1:]])
        return None

    def _leftover(self, resource: Json) -> Tpu:
        note = _note(resource) or {}
        run, zone = str(note.get(RUN_LABEL, "")), str(note.get("zone", ""))
        return Tpu(
            run, zone, Presence.GONE, LEFTOVER,
            accelerator_type=str(note.get(TYPE_LABEL, "")), labels=_labels(note),
            resource=f"projects/{self._project}/zones/{zone}/instanceGroupManagers/{run} (parts)",
            run_dir=str(note.get(RUN_DIR_KEY, "")), service="compute", is_group=True,
        )  # fmt: skip

    def _orphan(self, host: Json) -> Tpu:
        """A host whose group is gone: on its way out, or to be deleted by itself."""
        state, labels, zone = host["status"], host["labels"], _zone(host)
        presence = Presence.DELETING if state == "STOPPING" else Presence.GONE
        return Tpu(
            host["name"], zone, presence, state, accelerator_type=labels.get(TYPE_LABEL, ""),
            labels=labels, service="compute", is_partly_up=True,
            resource=f"projects/{self._project}/zones/{zone}/instances/{host['name']}",
        )  # fmt: skip

    # --- renting and deleting ----------------------------------------------------------------

    def create(self, zone: str, bodies: Sequence[Json], limit: float) -> str:
        """Makes policy and template, which takes seconds, and asks for the group.

        Args:
            bodies: of `creations`.
            limit: seconds that the hosts may live.

        Raises:
            ServiceFault: whatever went wrong; what was made so far is listed as a leftover.
        """
        policy, template, group = bodies
        self._make(f"regions/{zone.rpartition('-')[0]}", "resourcePolicies", policy)
        ends = datetime.datetime.fromtimestamp(self._rest.now() + limit, datetime.timezone.utc)
        template["properties"]["scheduling"]["terminationTime"] = ends.isoformat(timespec="seconds")
        self._make("global", "instanceTemplates", template)
        operation = self._rest.call("POST", f"zones/{zone}/instanceGroupManagers", group)
        return f"zones/{zone}/operations/{operation['name']}"

    def _make(self, scope: str, what: str, body: Json) -> None:
        """One that exists already is the run's own, of a try whose reply was lost, or another's.

        Raises:
            ServiceFault: it cannot be made.
        """
        try:
            asked = self._rest.call("POST", f"{scope}/{what}", body)
            done = self._rest.finish(f"{scope}/operations/{asked['name']}", RETRY_SECONDS / 2)
            fault = fault_of_errors(done.get("error", {}).get("errors", []))
        except ServiceFault as error:
            fault = error
        if fault is not None and fault.kind is Kind.EXISTS:
            note = _note(self._rest.call("GET", f"{scope}/{what}/{body['name']}")) or {}
            if note.get(ID_LABEL) == (_note(body) or {}).get(ID_LABEL):
                return
            fault = ServiceFault(Kind.BAD_REQUEST, f"{what} {body['name']} is another's: {note}")
        if fault is not None:
            raise fault

    def delete_leftover(self, tpu: Tpu) -> str:
        """Template and policy of a group that is gone."""
        region, path = tpu.zone.rpartition("-")[0], ""
        for scope, what, resources in (
            ("global", "instanceTemplates", self._templates()),
            (f"regions/{region}", "resourcePolicies", self._policies(tpu.zone)[0]),
        ):
            for one in resources:
                leftover = self._leftover(one)
                if leftover.belongs_to(tpu.run_id) and leftover.zone == tpu.zone:
                    operation = self._rest.call("DELETE", f"{scope}/{what}/{one['name']}")
                    path = f"{scope}/operations/{operation['name']}"
        if not path:
            raise ServiceFault(Kind.NOT_FOUND, f"nothing is left of {tpu.name} in {tpu.zone}")
        return path


def creations(
    project: str,
    name: str,
    zone: str,
    attempt: int,
    machine: hardware.Machine,
    properties: Json,
    note: Json,
) -> list[tuple[str, Json]]:
    """Method and body of the three creations, in their order.

    Args:
        properties: of each host, as an instance template has them, without the end of its life.
        note: what is written into each description, by which all three are found again.
    """
    region, links = zone.rpartition("-")[0], topology(machine)
    # The start-up script holds the time of the request: no other template has this name.
    digest = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()
    policy, template = f"{name}-{links}", f"{name}-{attempt}-{digest[:8]}"
    about = json.dumps({**note, "zone": zone}, sort_keys=True)
    properties = {**properties, "scheduling": {**properties["scheduling"]}}
    properties["scheduling"].pop("maxRunDuration", None)
    base = f"projects/{project}"
    return [
        (
            "resourcePolicies.insert",
            {
                "name": policy,
                "description": about,
                "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": links},
            },
        ),
        (
            "instanceTemplates.insert",
            {"name": template, "description": about, "properties": properties},
        ),
        (
            "instanceGroupManagers.insert",
            {
                "name": name,
                "description": about,
                "baseInstanceName": name,
                "instanceTemplate": f"{base}/global/instanceTemplates/{template}",
                "targetSize": machine.hosts,
                "targetSizePolicy": {"mode": "BULK"},
                "resourcePolicies": {
                    "workloadPolicy": f"{base}/regions/{region}/resourcePolicies/{policy}"
                },
                "instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR"},
            },
        ),
    ]


def fault_of_errors(errors: Iterable[Mapping[str, Any]]) -> ServiceFault | None:
    """The first error of an operation or group, which names its kind by a code in capitals."""
    for error in errors:
        code = str(error.get("code", ""))
        message = str(error.get("message") or code)
        if code == "QUOTA_EXCEEDED" and "quota" not in message.lower():
            message = f"Quota: {message}"
        return fault_of_status(CODES.get(code, 13), message)
    return None


def _note(resource: Json) -> Json | None:
    """What we wrote into its description; None where it is not ours."""
    try:
        note = json.loads(resource.get("description", ""))
    except ValueError:
        return None
    return note if isinstance(note, dict) and RUN_LABEL in note and "zone" in note else None


def _labels(note: Json) -> dict[str, str]:
    return {key: str(note[key]) for key in _NOTED if key in note}


def _group_of(host: Json) -> str:
    return str(host["labels"][SLICE_LABEL])


def _zone(host: Json) -> str:
    return str(host["zone"].rsplit("/")[-1])
