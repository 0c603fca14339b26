"""Compute Engine: its machines, its requests, and the end of one that nobody watches."""

import os
from dataclasses import replace

from bigbird_ja.launch import compute
from testkit.fakes.compute import FakeCompute
from tests.launch import support

ZONE = "us-central1-b"
FAMILY = f"{compute.IMAGES}/ubuntu-accelerator-2204-amd64-tpu-v5e-v5p-v6e"
VM = support.vm_of("run-1", "id-1", "v6e-8", service="compute", runtime_version=FAMILY)


def test_a_request_states_when_the_machine_ends():
    body = compute.creation(VM, ZONE, 1, {"startup-script": "true"}, 7200.9)
    assert body["machineType"].endswith(f"zones/{ZONE}/machineTypes/ct6e-standard-8t")
    assert body["scheduling"] == {
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "7200"},
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "SPOT",
    }
    (disk,) = body["disks"]
    assert disk["autoDelete"] is True and "ubuntu" in disk["initializeParams"]["sourceImage"]
    other = replace(VM, pricing="on_demand", external_ip=False, subnetwork="s")
    body = compute.creation(other, ZONE, 1, {}, 1.0)
    assert body["scheduling"]["provisioningModel"] == "STANDARD"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": str(compute.SHORTEST_SECONDS)}
    (interface,) = body["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/s"


def test_an_unwatched_machine_is_deleted_at_the_end_of_its_lease(tmp_path):
    """Healthy, training, and nobody there: its own watcher deletes it through Compute Engine."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        flags = ["--accelerator_type=v6e-8", "--lease_hours=0.0005", "--on_interrupt=detach"]
        process = support.start(root, fake, *flags, steps=100_000)
        support.wait_for_step(root, 10)
        process.kill()
        process.communicate()
        fake.http_script += [503] * 3  # once it is deleted, its trainer reports an end as well
        report = "supervisor/exit.json"
        support.wait_until(lambda: support.read(root, report, "reason") == "lease_over")
        support.wait_until(lambda: fake.node_names() == [])
        assert any(request.startswith("DELETE zones/us-central1-a") for request in fake.requests)
