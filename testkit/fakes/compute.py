"""Fake of Compute Engine's REST API on loopback, whose VMs are real processes.

It implements only the requests of `launch`. The texts of errors are taken from Google's pages. It
does not delete a VM at the VM's maximum lifetime. `testkit.simulated_cloud` does.
"""

from testkit.fakes.service import ZONES, Service, error, kill, lookup, now

ERRORS = {
    "stockout": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources."),
    "quota": ("QUOTA_EXCEEDED", "Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region."),
    "internal": ("INTERNAL_ERROR", "Internal error."),
}


class FakeCompute(Service):
    """Fake Compute Engine, built on `Service`."""

    path = "compute/v1"
    operation_prefix, running, over = "operation-", {"status": "RUNNING"}, {"status": "DONE"}

    # --- calls of tests ---------------------------------------------------------------

    def preempt(self, name, grace=0.0):
        """Preempt a VM: send SIGTERM, send SIGKILL after `grace` seconds, and delete it."""
        (key,) = [key for key in self.machines if key.endswith(f"/{name}")]
        self._end(key, grace)

    def _end(self, key, grace):
        """End a VM, and remove it from the list unless a new VM has its name."""
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
        """Return the status and the JSON value of the answer to a request."""
        path = path.partition("?")[0]
        parts = path.strip("/").split("/")[4:]  # path relative to the project
        self.requests.append(f"{method} {'/'.join(parts)}")
        with self._lock:
            match method, parts:
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
                        refused = self.refusal([self.unread])
                        return refused or lookup(vm and vm.resource, name)
                    vm.resource["status"] = "STOPPING"
                    return self.get_operation(lambda: self._end(f"{zone}/{name}", 0.2))
            return lookup(None, path)

    def _inside(self, zone):
        return [vm.resource for key, vm in self.machines.items() if key.startswith(f"{zone}/")]

    def _create(self, zone, body):
        if f"{zone}/{body['name']}" in self.machines:
            return 409, error(409, f"The resource {body['name']} already exists")
        if refused := self.refusal(self.script):
            return refused
        if self.script:
            code, message = ERRORS[self.script.pop(0)]
            return self.get_operation(error={"errors": [{"code": code, "message": message}]})
        self.created.append(body)
        vm = body | {"status": "RUNNING", "creationTimestamp": now(), "zone": self._link(zone)}
        metadata = {item["key"]: item["value"] for item in vm["metadata"]["items"]}
        self.add(f"{zone}/{vm['name']}", vm, self.boot(metadata.get("startup-script", "")))
        return self.get_operation()

    def _link(self, zone):
        return f"{self.url}/compute/v1/projects/p/zones/{zone}"
