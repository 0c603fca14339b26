"""Compute Engine: its machines, its requests, and the end of one that nobody watches."""

import os
from dataclasses import replace

import pytest

from bigbird_ja import accelerators
from bigbird_ja.launch import backends, compute
from bigbird_ja.process.errors import BadInput
from testkit.fakes.compute import FakeCompute
from tests.launch import support

ZONE = "us-central1-b"
VM = support.vm_of("run-1", "id-1", "v5litepod-8", runtime_version=compute.image("v5litepod-8"))


def test_a_machine_of_one_host_is_rented_from_compute_engine():
    machines = {"v5litepod-1": "ct5lp-hightpu-1t", "v5p-8": "ct5p-hightpu-4t"}
    machines |= {"v6e-8": "ct6e-standard-8t", "tpu7x-8": "tpu7x-standard-4t"}
    for name, machine in machines.items():
        assert compute.machine_type(name) == machine
        assert backends.service_of(name) == "compute"
        assert len(backends.check_rentable(name)) == 1


@pytest.mark.parametrize("name", ["v5e-16", "v4-32", "v2-32"])
def test_slices_of_several_hosts_are_rented_from_the_cloud_tpu_api(name):
    assert accelerators.find(name).hosts > 1 and backends.service_of(name) == "tpu"
    (warning,) = backends.check_rentable(name, "pjrt")
    assert "slice of" in warning


@pytest.mark.parametrize("name", ["v5p-16", "v6e-32", "v7x-64"])
def test_later_slices_are_refused_with_what_serves(name):
    with pytest.raises(BadInput, match=rf"{name}: `launch` rents .*slices.*pods.md") as refusal:
        backends.check_rentable(name)
    assert "\n" not in str(refusal.value)


def test_a_request_states_when_the_machine_ends():
    body = compute.creation(VM, ZONE, 1, {"startup-script": "true"}, 7200.9)
    assert body["machineType"].endswith(f"zones/{ZONE}/machineTypes/ct5lp-hightpu-8t")
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
