"""Requests to Compute Engine."""

from dataclasses import replace

from bigbird_ja.launch import compute
from tests.launch import support

ZONE = "us-central1-b"
FAMILY = f"{compute.IMAGES}/ubuntu-accelerator-2204-amd64-tpu-v5e-v5p-v6e"
VM = support.vm_of("run-1", "id-1", "v6e-8", service="compute", runtime_version=FAMILY)


def test_a_request_states_when_the_machine_ends():
    body = compute.make_request(VM, ZONE, 1, {"startup-script": "true"}, 7200.9)
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
    body = compute.make_request(other, ZONE, 1, {}, 1.0)
    assert body["scheduling"]["provisioningModel"] == "STANDARD"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": str(compute.SHORTEST_SECONDS)}
    (interface,) = body["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/s"
