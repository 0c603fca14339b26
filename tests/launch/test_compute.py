"""Compute Engine by our client against the fake service."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja.launch import backends, compute
from bigbird_ja.launch.compute import ComputeEngine
from bigbird_ja.launch.rest import Kind
from bigbird_ja.launch.services import RUN_DIR_KEY, Operation, Presence, TpuSpec
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

ZONE = "us-central1-b"
SPEC = TpuSpec("run-1", "v5litepod-8", compute.image("v5litepod-8"), "id-1")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCompute]:
    with FakeCompute(str(tmp_path / "vms")) as server:
        yield server


@pytest.fixture
def service(fake: FakeCompute) -> ComputeEngine:
    return support.engine(fake)


def finished(service: ComputeEngine, name: str) -> Operation:
    until = time.monotonic() + 10
    while not (operation := service.operation(name)).done:
        assert time.monotonic() < until
        time.sleep(0.01)
    return operation


def test_life_of_a_machine(fake: FakeCompute, service: ComputeEngine) -> None:
    metadata = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}
    name = service.create(SPEC, ZONE, 3, metadata, 7200.9)
    assert finished(service, name).fault is None
    (tpu,) = service.list(ZONE)
    assert tpu.presence is Presence.READY
    assert (tpu.run, tpu.attempt, tpu.zone) == ("run-1", 3, ZONE)
    assert (tpu.accelerator_type, tpu.run_dir) == ("v5litepod-8", "gs://b/run-1")
    assert tpu.created > 1e9
    assert service.list("us-central1-a") == []
    assert [found.name for found in service.list("-")] == ["run-1"]
    assert ZONE in service.zones()
    finished(service, service.delete(tpu))
    assert service.list(ZONE) == [] and fake.node_names() == []


def test_what_is_asked_for_says_when_it_ends(fake: FakeCompute, service: ComputeEngine) -> None:
    service.create(SPEC, ZONE, 1, {"startup-script": "true"}, 7200.9)
    (asked,) = fake.created
    assert asked["machineType"].endswith(f"zones/{ZONE}/machineTypes/ct5lp-hightpu-8t")
    assert asked["scheduling"] == {
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "7200"},
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "SPOT",
    }
    (disk,) = asked["disks"]
    assert disk["autoDelete"] is True and "ubuntu" in disk["initializeParams"]["sourceImage"]
    other = replace(SPEC, pricing="on_demand", external_ip=False, subnetwork="s")
    ((method, body),) = compute.creations("p", other, ZONE, 1, {}, 1.0)
    assert method == "instances.insert"
    assert body["scheduling"]["provisioningModel"] == "STANDARD"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": str(compute.SHORTEST_SECONDS)}
    (interface,) = body["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/s"


def test_the_cloud_itself_ends_a_life(tmp_path: Path) -> None:
    with FakeCompute(str(tmp_path), hurry=1000.0) as fake:
        service = support.engine(fake)
        service.create(SPEC, ZONE, 1, {"startup-script": "true"}, 300.0)
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


@pytest.mark.parametrize(
    ("word", "kind"),
    [("stockout", Kind.STOCKOUT), ("quota", Kind.QUOTA), ("internal", Kind.INTERNAL)],
)
def test_failed_operations(
    fake: FakeCompute, service: ComputeEngine, word: str, kind: Kind
) -> None:
    fake.script.append(word)
    fault = finished(service, service.create(SPEC, ZONE, 1, {}, 100.0)).fault
    assert fault is not None and fault.kind is kind
    assert fake.node_names() == []


def test_an_unwatched_machine_goes_at_the_end_of_its_lease(tmp_path: Path) -> None:
    """Healthy, training, and nobody there: its own watcher deletes it through Compute Engine."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        flags = ["--accelerator_type=v6e-8", "--lease_hours=0.0005", "--on_interrupt=detach"]
        process = support.start(root, fake, *flags, steps=100_000)
        support.wait_until(lambda: support.step_of(root) >= 10)
        process.kill()
        process.communicate()
        support.wait_until(lambda: fake.node_names() == [])
        assert any(request.startswith("DELETE zones/us-central1-a") for request in fake.requests)


def test_status_and_down_look_at_both_services(tmp_path: Path) -> None:
    root = str(tmp_path)
    with FakeCompute(f"{root}/c") as newer, FakeTpu(f"{root}/t") as older:
        support.engine(newer).create(SPEC, ZONE, 1, {}, 1e5)

        support.nodes(older).create(
            TpuSpec("run-2", "v3-8", "i", "id-2"), "us-central1-a", 1, {}, 1e5
        )
        both = {**support.environment(newer), **support.environment(older)}
        status, result = support.run_with(["status", "--project=p", "--json"], both)
        assert status == 0
        assert {(tpu["run"], tpu["accelerator_type"]) for tpu in result["tpus"]} == {
            ("run-1", "v5litepod-8"), ("run-2", "v3-8"),
        }  # fmt: skip
        down = ["down", "--project=p", "--yes", "--json"]
        newer.list_script += ["internal_call"]
        status, result = support.run_with(down, both)
        assert status == 74 and "more may be left" in result["error"]
        status, result = support.run_with(down, both)
        assert (status, len(result["deleted"])) == (0, 2)
        assert newer.node_names() == [] and older.node_names() == []
