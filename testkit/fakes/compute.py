"""Compute Engine's REST API on loopback, as far as `launch` uses it: VMs that are real processes.

Assumed, from Google's pages: texts of errors.
That the service ends a VM by itself at its limit is simulated in `testkit.simulated_cloud`.
"""

from testkit.fakes.service import ZONES, Service, error, kill, lookup, now

ERRORS = {
    "stockout": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources."),
    "quota": ("QUOTA_EXCEEDED", "Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region."),
    "internal": ("INTERNAL_ERROR", "Internal error."),
}

TYPES = ("ct5p-hightpu-4t", "ct6e-standard-8t", "tpu7x-standard-4t", "ct5lp-hightpu-8t")


class FakeCompute(Service):
    """The service; see `Service`."""

    operation_prefix, running, over = "operation-", {"status": "RUNNING"}, {"status": "DONE"}

    def __init__(self, work_dir, environ=None, keep_disk=False):
        super().__init__(work_dir, environ, keep_disk)
        self.types = {zone: [*TYPES] for zone in ZONES}  # what is offered
        self.images = [
            "ubuntu-accelerator-2204-amd64-tpu-v5e-v5p-v6e",
            "ubuntu-accelerator-2204-amd64-tpu-tpu7x",
        ]
        self.quotas = [{"metric": "PREEMPTIBLE_TPU_PODSLICE_V5P", "limit": 8.0, "usage": 4.0}]

    # --- what tests do and ask ---------------------------------------------------------------

    def preempt(self, name, grace=0.0):
        """Preempt a VM: TERM, a grace, KILL, and delete it, as its termination action says."""
        (key,) = [key for key in self.machines if key.endswith(f"/{name}")]
        self._end(key, grace)

    # --- lives of VMs ------------------------------------------------------------------------

    def start(self, zone, resource):
        """Boot a VM."""
        resource |= {"status": "RUNNING", "creationTimestamp": now(), "zone": self._link(zone)}
        metadata = {item["key"]: item["value"] for item in resource["metadata"]["items"]}
        process = self.boot(metadata.get("startup-script", ""))
        self.add(f"{zone}/{resource['name']}", resource, process)

    def _end(self, key, grace):
        """End a VM, and forget it; another of its name stays."""
        vm = self.machines.get(key)
        if vm is None:
            return
        vm.resource["status"] = "STOPPING"
        kill(vm.process, grace)
        with self._lock:
            if self.machines.get(key) is vm:
                del self.machines[key]

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method, path, body):
        """Answer one request."""
        path, _, query = path.partition("?")
        parts = path.strip("/").split("/")[4:]  # below the project
        self.requests.append(f"{method} {'/'.join(parts)}")
        with self._lock:
            match method, parts:
                case "GET", ["regions", name]:
                    listing = {"name": name, "quotas": self.quotas}
                    return self.refusal([self.unread.get("regions", "")]) or (200, listing)
                case "GET", ["aggregated", "machineTypes"]:
                    scopes = {
                        f"zones/{zone}": {
                            "machineTypes": [
                                {"name": one, "zone": self._link(zone)} for one in names
                            ]
                        }
                        for zone, names in self.types.items()
                    }
                    return self.offer("machineTypes", query, scopes, "items")
                case "GET", ["global", "images", "family", name]:
                    there = {"name": f"{name}-v20261101"} if name in self.images else None
                    return self.refusal([self.unread.get("images", "")]) or lookup(there, name)
                case _, [*_, "operations", name]:
                    return lookup(self._operations.get(name), name)
                case "GET", ["aggregated", "instances"]:
                    scopes = {zone: {"instances": self._inside(zone)} for zone in ZONES}
                    return 200, {"items": scopes}
                case "POST", ["zones", zone, "instances"]:
                    return self._create(zone, body)
                case _, ["zones", zone, "instances", name]:
                    vm = self.machines.get(f"{zone}/{name}")
                    if vm is None or method == "GET":
                        return lookup(vm and vm.resource, name)
                    vm.resource["status"] = "STOPPING"
                    return self.operation(lambda: self._end(f"{zone}/{name}", 0.2))
            return lookup(None, path)

    def _inside(self, zone):
        return [vm.resource for key, vm in self.machines.items() if key.startswith(f"{zone}/")]

    def _create(self, zone, body):
        if f"{zone}/{body['name']}" in self.machines:
            return 409, error(409, f"The resource {body['name']} already exists")
        if self.script:
            code, message = ERRORS[self.script.pop(0)]
            return self.operation(error={"errors": [{"code": code, "message": message}]})
        self.created.append(body)
        self.start(zone, body)
        return self.operation()

    def _link(self, zone):
        return f"{self.url}/compute/v1/projects/p/zones/{zone}"
