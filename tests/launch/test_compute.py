"""Compute Engine by our client against the fake service: VMs, and slices of several hosts."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch import backends, compute, slices
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.services import ID_LABEL, RUN_DIR_KEY, Presence, Tpu, Tpus, TpuSpec
from testkit.fakes.compute import FakeCompute
from testkit.fakes.service import error
from tests.launch import support

ZONE = "us-central1-b"
VM = TpuSpec("run-1", "v5litepod-8", compute.image("v5litepod-8"), "id-1")
SPEC = replace(VM, accelerator_type="v6e-16")
METADATA = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCompute]:
    with FakeCompute(str(tmp_path / "vms")) as server:
        yield server


@pytest.fixture
def service(fake: FakeCompute) -> Tpus:
    """With a slice that was just asked for."""
    service = support.client(fake)
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    return service


def only(service: Tpus) -> Tpu:
    (tpu,) = service.list(ZONE)
    return tpu


def ready(service: Tpus) -> Tpu:
    support.wait_until(lambda: only(service).presence is Presence.READY, 10)
    return only(service)


@pytest.mark.parametrize(
    ("name", "machine", "links", "hosts"),
    [
        ("v5litepod-1", "ct5lp-hightpu-1t", "1x1", 1),
        ("v5p-8", "ct5p-hightpu-4t", "1x2x2", 1),
        ("v6e-8", "ct6e-standard-8t", "2x4", 1),
        ("v7x-8", "tpu7x-standard-4t", "1x2x2", 1),
        ("tpu7x-8", "tpu7x-standard-4t", "1x2x2", 1),
        ("v6e-32", "ct6e-standard-4t", "4x8", 8),
        ("v6e-256", "ct6e-standard-4t", "16x16", 64),
        ("v5p-32", "ct5p-hightpu-4t", "2x2x4", 4),
        ("v5p-128", "ct5p-hightpu-4t", "4x4x4", 16),
        ("v7x-64", "tpu7x-standard-4t", "2x4x4", 8),
    ],
)
def test_what_a_type_consists_of(name: str, machine: str, links: str, hosts: int) -> None:
    size = hardware.find(name)
    assert (compute.machine_type(name), slices.topology(size)) == (machine, links)
    assert size.hosts == hosts
    assert backends.service_of(name) == "compute"
    (warning,) = backends.check_rentable(name)
    assert ("slice of" in warning) == (hosts > 1)


def test_a_request_states_when_the_machine_ends() -> None:
    ((method, body),) = compute.creations("p", VM, ZONE, 1, {"startup-script": "true"}, 7200.9)
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
    other = replace(VM, pricing="on_demand", external_ip=False, subnetwork="s")
    ((_, body),) = compute.creations("p", other, ZONE, 1, {}, 1.0)
    assert body["scheduling"]["provisioningModel"] == "STANDARD"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": str(compute.SHORTEST_SECONDS)}
    (interface,) = body["networkInterfaces"]
    assert "accessConfigs" not in interface
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/s"


def test_requests_state_what_a_slice_consists_of(fake: FakeCompute, service: Tpus) -> None:
    (policy,) = fake.slices.policies.values()
    (template,) = fake.slices.templates.values()
    (group,) = fake.slices.groups.values()
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    assert group.resource["targetSizePolicy"] == {"mode": "BULK"}
    assert group.resource["targetSize"] == 4
    assert group.resource["instanceTemplate"].endswith(template["name"])
    host = template["properties"]
    assert host["machineType"] == "ct6e-standard-4t"
    scheduling = host["scheduling"]
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert scheduling["provisioningModel"] == "SPOT"
    # A time of day, not a duration, which would begin anew with each replaced host.
    assert "maxRunDuration" not in scheduling
    ends = datetime.datetime.fromisoformat(scheduling["terminationTime"]).timestamp()
    assert ends == pytest.approx(time.time() + 7200, abs=60)


def test_a_lost_host_is_replaced_by_the_group(fake: FakeCompute, service: Tpus) -> None:
    created = ready(service).created
    fake.slices.repairs = False
    fake.preempt(fake.hosts("run-1")[2])
    tpu = only(service)
    assert (tpu.presence, tpu.state) == (Presence.PENDING, "3/4 RUNNING")
    assert tpu.is_partly_up and tpu.fault is None
    fake.slices.repairs = True
    assert ready(service).created == created


@pytest.mark.parametrize(
    ("code", "kind"),
    [("ZONE_RESOURCE_POOL_EXHAUSTED", Kind.STOCKOUT), ("QUOTA_EXCEEDED", Kind.QUOTA)],
)
def test_no_capacity_shows_in_the_groups_errors(fake: FakeCompute, code: str, kind: Kind) -> None:
    fake.slices.fill = lambda: None  # type: ignore[method-assign]
    service = support.client(fake)
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    assert only(service).fault is None
    (group,) = fake.slices.groups.values()
    group.errors = [{"error": {"code": code, "message": "none is left"}}]
    tpu = only(service)
    assert tpu.fault is not None and tpu.fault.kind is kind
    assert (tpu.presence, tpu.is_partly_up) == (Presence.PENDING, False)


@pytest.mark.parametrize(
    ("refused", "left"),
    [("resourcePolicies", 0), ("instanceTemplates", 1), ("instanceGroupManagers", 2)],
)
def test_what_a_refused_creation_leaves_is_listed_and_deleted(
    fake: FakeCompute, refused: str, left: int
) -> None:
    fake.slices.refusals[refused] = [(403, error(403, "denied"))]
    service = support.client(fake)
    with pytest.raises(ServiceFault) as caught:
        service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    assert caught.value.kind is Kind.PERMISSION
    assert len(fake.slices.leftovers()) == left
    listed = [(tpu.state, tpu.presence, tpu.is_partly_up) for tpu in service.list(ZONE)]
    assert listed == [("LEFTOVER", Presence.GONE, False)] * bool(left)
    support.delete_all(service, ZONE)
    assert fake.slices.leftovers() == [] and fake.node_names() == []
    service.create(SPEC, ZONE, 2, METADATA, 7200.0)  # the names are free again
    ready(service)


def test_hosts_without_their_group_are_deleted_one_by_one(fake: FakeCompute, service: Tpus) -> None:
    ready(service)
    fake.slices.groups.clear()
    tpus = service.list(ZONE)
    assert [tpu.is_partly_up for tpu in tpus] == [True] * 4 + [False]
    assert not [tpu for tpu in tpus if tpu.presence is Presence.READY]
    support.delete_all(service, ZONE)
    assert fake.node_names() == [] and fake.slices.leftovers() == []


def test_a_group_that_no_listing_shows_is_deleted_by_its_name(
    fake: FakeCompute, service: Tpus
) -> None:
    unseen = Tpu("run-1", ZONE, Presence.GONE, "not listed", labels={ID_LABEL: "id-1"})
    service.delete(unseen)
    support.wait_until(lambda: fake.node_names() == [], 10)


def test_an_unwatched_machine_is_deleted_at_the_end_of_its_lease(tmp_path: Path) -> None:
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


@pytest.mark.nightly
def test_a_run_continues_while_its_group_replaces_hosts(tmp_path: Path) -> None:
    """The command, the real client, the real script and watcher on each of two hosts."""
    root = str(tmp_path)

    def preempt() -> None:
        for step, number in ((30, 1), (150, 0)):
            support.wait_for_step(root, step)
            support.wait_until(lambda: fake.is_ready("run-1"))
            fake.preempt(fake.hosts("run-1")[number], grace=0.5 if number else 0.0)
            support.wait_until(lambda: support.read(root, "supervisor/state.json", "in_repair"))

    with FakeCompute(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        thread = support.in_background(preempt)
        flags = ["--accelerator_type=v5p-16", "--zones=us-central1-a"]
        status, result = support.run(support.command(root, *flags, steps=500), fake)
        thread.join(5)
        assert (status, result["reason"], result["global_step"]) == (0, "finished", 500)
        assert (result["preemptions"], result["failures"]) == (2, 0)
        assert (fake.node_names(), fake.slices.leftovers()) == ([], [])
    events = [e["event"] for e in support.events_of(root) if e.get("source") == "supervisor"]
    assert events.count("creating") == 1 and events.count("repairing") == 2
