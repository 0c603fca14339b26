"""Fake of the Cloud TPU REST API on loopback, whose nodes are real processes.

The message of a stockout is the one that users have reported. The messages of ALREADY_EXISTS and
NOT_FOUND are assumed.
"""

from urllib.parse import parse_qs

from testkit.fakes.service import Service, error, kill, lookup, now

STOCKOUT = (
    'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU'
    " Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x0123456789abcdef]"
)


class FakeTpu(Service):
    """Fake Cloud TPU API, built on `Service`."""

    path = "v2"
    operation_prefix, running, over = "operations/", {"done": False}, {"done": True}

    def __init__(self, work_dir, environ=None, keep_disk=False):
        super().__init__(work_dir, environ, keep_disk)
        self.queued = {}
        self.unreachable = []  # zones that do not answer, and are missing in listings
        self.paths = []

    # --- calls of tests ---------------------------------------------------------------

    def queued_names(self):
        with self._lock:
            return sorted(self.queued)

    def preempt(self, node_id, grace=0.0, state="PREEMPTED"):
        """Preempt a machine: send SIGTERM, and SIGKILL after `grace` seconds. It stays listed."""
        machine = self.machine(node_id)
        assert machine is not None
        kill(machine.process, grace)
        with self._lock:
            machine.resource["state"] = state

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method, path, body):
        path, _, query = path.removeprefix("/v2/").partition("?")
        parts = path.split("/")
        self.requests.append(f"{method} {parts[-1] if method == 'POST' else parts[-2]}")
        self.paths.append(path)
        with self._lock:
            nodes = {name: machine.resource for name, machine in self.machines.items()}
            match method, parts:
                case "GET", [*_, "nodes"]:
                    listing = {"nodes": _inside(path, nodes), "unreachable": self.unreachable}
                    return 200, listing
                case "GET", [*_, "queuedResources"]:
                    return 200, {"queuedResources": _inside(path, self.queued)}
                case "GET", _:
                    found = lookup({**nodes, **self.queued, **self._operations}.get(path), path)
                    return self.refusal([self.unread]) or found
                case "POST", [*_, "nodes"]:
                    return self._create(f"{path}/{parse_qs(query)['nodeId'][0]}", body, None)
                case "POST", [*_, "queuedResources"]:
                    return self._create_queued(
                        f"{path}/{parse_qs(query)['queuedResourceId'][0]}", body
                    )
                case "DELETE", [*_, "nodes", _]:
                    return self._delete(path, "")
                case "DELETE", [*_, "queuedResources", _]:
                    node = path.replace(QUEUES, "/nodes/")
                    if node in nodes and "force=true" not in query:
                        return 400, error(400, "the queued resource has nodes")
                    return self._delete(node, path)
        return lookup(None, path)

    def _create_queued(self, name, body):
        if name in self.queued:
            return 409, error(409, f"{name} already exists", "ALREADY_EXISTS")
        spec = body["tpu"]["nodeSpec"][0]
        queued = {**body, "name": name, "createTime": now(), "state": {"state": "ACTIVE"}}
        node = f"{spec['parent']}/nodes/{spec['nodeId']}"
        return self._create(node, spec["node"], queued)

    def _create(self, name, node, queued):
        if refused := self.refusal(self.script):
            return refused
        if name in self.machines:
            return 409, error(409, f"{name} already exists", "ALREADY_EXISTS")
        word = self.script.pop(0) if self.script else "ok"
        if word == "stockout":
            message = STOCKOUT.format(zone=name.split("/")[3])
            return self.get_operation(error={"code": 8, "message": message})
        if word == "internal":
            return self.get_operation(error={"code": 13, "message": "an internal error occurred"})
        if queued is not None:
            self.queued[queued["name"]] = queued
        if word == "queued_waiting" and queued is not None:
            queued["state"] = {"state": "WAITING_FOR_RESOURCES"}
            return self.get_operation()
        resource = {**node, "name": name, "createTime": now(), "state": "READY"}
        process = self.boot(node["metadata"].get("startup-script", ""))
        self.add(name, resource, process)
        self.created.append(name)
        if word == "reply_lost":
            return 503, error(503, "the reply was lost")
        return self.get_operation()

    def _delete(self, node, queued):
        if refused := self.refusal(self.delete_script):
            return refused
        if (queued or node) not in {*self.machines, *self.queued}:
            return lookup(None, queued or node)
        machine = self.machines.get(node)
        if machine is not None:
            machine.resource["state"] = "DELETING"

        def end():
            kill(machine.process if machine else None, 0.2)
            with self._lock:
                self.machines.pop(node, None)
                self.queued.pop(queued, None)

        return self.get_operation(end)


QUEUES = "/queuedResources/"


def _inside(listing, resources):
    """List the resources below an address. The zone `-` means all zones."""
    parent, _, kind = listing.rpartition("/")
    start = parent.removesuffix("/-")
    return [
        resource
        for name, resource in resources.items()
        if name.startswith(f"{start}/") and f"/{kind}/" in name
    ]
