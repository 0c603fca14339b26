"""Compute Engine by our client against the fake service."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja.launch import backends, compute
from bigbird_ja.launch.services import TpuSpec
from testkit.fakes.compute import FakeCompute
from tests.launch import support

ZONE = "us-central1-b"
SPEC = TpuSpec("run-1", "v5litepod-8", compute.image("v5litepod-8"), "id-1")


def test_a_request_states_when_the_machine_ends() -> None:
    ((method, body),) = compute.creations("p", SPEC, ZONE, 1, {"startup-script": "true"}, 7200.9)
    assert method == "instances.insert"
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
    other = replace(SPEC, pricing="on_demand", external_ip=False, subnetwork="s")
    ((_, body),) = compute.creations("p", other, ZONE, 1, {}, 1.0)
    assert body["scheduling"]["provisioningModel"] == "STANDARD"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": str(compute.SHORTEST_SECONDS)}
    (interface,) = body["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/s"


def test_the_cloud_itself_deletes_a_machine_at_its_limit(tmp_path: Path) -> None:
    with FakeCompute(str(tmp_path), hurry=1000.0) as fake:
        support.client(fake).create(SPEC, ZONE, 1, {"startup-script": "true"}, 300.0)
        assert len(fake.node_names()) == 1
        support.wait_until(lambda: fake.node_names() == [])


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("v5litepod-1", "ct5lp-hightpu-1t"),
        ("v5p-8", "ct5p-hightpu-4t"),
        ("v6e-8", "ct6e-standard-8t"),
        ("v7x-8", "tpu7x-standard-4t"),
        ("tpu7x-8", "tpu7x-standard-4t"),
    ],
)
def test_machine_types(name: str, machine: str) -> None:
    assert compute.machine_type(name) == machine
    assert backends.service_of(name) == "compute"


def test_an_unwatched_machine_is_deleted_at_the_end_of_its_lease(tmp_path: Path) -> None:
    """Healthy, training, and nobody there: its own watcher deletes it through Compute Engine."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        flags = ["--accelerator_type=v6e-8", "--lease_hours=0.0005", "--on_interrupt=detach"]
        process = support.start(root, fake, *flags, steps=100_000)
        support.wait_for_step(root, 10)
        process.kill()
        process.communicate()
        support.wait_until(lambda: fake.node_names() == [])
        assert any(request.startswith("DELETE zones/us-central1-a") for request in fake.requests)
