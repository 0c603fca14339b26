"""Slices of several hosts: our requests against the fake's groups."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bigbird_ja.accelerators import hardware
from bigbird_ja.launch import backends, compute, slices
from bigbird_ja.launch.compute import ComputeEngine
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.services import ID_LABEL, RUN_DIR_KEY, Presence, Tpu, TpuSpec
from bigbird_ja.process.errors import BadInput
from testkit.fakes.compute import FakeCompute
from testkit.fakes.machines import error
from tests.launch import support

ZONE = "us-central1-b"
SPEC = TpuSpec("run-1", "v6e-16", compute.image("v6e-16"), "id-1")
METADATA = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCompute]:
    with FakeCompute(str(tmp_path / "vms")) as server:
        yield server


@pytest.fixture
def service(fake: FakeCompute) -> ComputeEngine:
    return support.engine(fake)


def only(service: ComputeEngine, zone: str = ZONE) -> Tpu:
    (found,) = service.list(zone)
    return found


def ready(service: ComputeEngine) -> Tpu:
    support.wait_until(lambda: only(service).presence is Presence.READY, 10)
    return only(service)


def delete_all(service: ComputeEngine) -> None:
    """As the supervisor does: deletes what is listed until nothing is."""
    until = time.monotonic() + 20
    while found := service.list(ZONE):
        assert time.monotonic() < until, found
        for one in found:
            if one.presence is not Presence.DELETING:
                service.delete(one)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "machine", "links", "hosts"),
    [
        ("v6e-32", "ct6e-standard-4t", "4x8", 8),
        ("v6e-256", "ct6e-standard-4t", "16x16", 64),
        ("v5p-32", "ct5p-hightpu-4t", "2x2x4", 4),
        ("v5p-128", "ct5p-hightpu-4t", "4x4x4", 16),
        ("v7x-64", "tpu7x-standard-4t", "2x4x4", 8),
    ],
)
def test_what_a_slice_consists_of(name: str, machine: str, links: str, hosts: int) -> None:
    found = hardware.find(name)
    assert (compute.machine_type(name), slices.topology(found)) == (machine, links)
    assert found.hosts == hosts
    assert backends.service_of(name) == "compute"
    assert any("slice of" in warning for warning in backends.check_rentable(name))


def test_which_slices_are_not_rented() -> None:
    with pytest.raises(BadInput, match="the largest is v6e-256"):
        backends.check_rentable("v6e-512")
    with pytest.raises(BadInput, match="estimator engine uses one"):
        backends.check_rentable("v3-32")
    with pytest.raises(BadInput, match="no TPU of that size"):
        backends.check_rentable("v6e-12")


def test_life_of_a_slice(fake: FakeCompute, service: ComputeEngine) -> None:
    name = service.create(SPEC, ZONE, 3, METADATA, 7200.0)
    assert service.operation(name).done
    found = ready(service)
    assert (found.name, found.run, found.attempt) == ("run-1", "run-1", 3)
    assert (found.accelerator_type, found.run_dir) == ("v6e-16", "gs://b/run-1")
    assert found.is_group and found.state == "4/4 RUNNING" and found.created > 1e9
    assert only(service, "-") == found
    assert service.list("us-central1-a") == []
    deletion = service.delete(found)
    support.wait_until(lambda: service.operation(deletion).done, 10)
    left = only(service)  # template and policy: unbilled, but the next one needs their names
    assert (left.state, left.presence, left.is_partly_up) == ("LEFTOVER", Presence.GONE, False)
    assert service.operation(service.delete(left)).done
    assert service.list("-") == [] and fake.node_names() == [] and fake.slices.leftovers() == []


def test_what_is_asked_for(fake: FakeCompute, service: ComputeEngine) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    (policy,) = fake.slices.policies.values()
    (template,) = fake.slices.templates.values()
    (group,) = fake.slices.groups.values()
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    assert group.resource["targetSizePolicy"] == {"mode": "BULK"}
    assert group.resource["targetSize"] == 4
    assert group.resource["instanceTemplate"].endswith(template["name"])
    host = template["properties"]
    assert host["machineType"] == "ct6e-standard-4t"
    assert host["labels"]["bigbird-ja-run"] == "run-1"
    assert host["metadata"]["items"][0]["key"] in METADATA
    scheduling = host["scheduling"]
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert scheduling["provisioningModel"] == "SPOT"
    # A time of day, not a duration, which would begin anew with each replaced host.
    assert "maxRunDuration" not in scheduling
    ends = datetime.datetime.fromisoformat(scheduling["terminationTime"]).timestamp()
    assert ends == pytest.approx(time.time() + 7200, abs=60)


def test_a_lost_host_is_replaced_by_the_group(fake: FakeCompute, service: ComputeEngine) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    created, before = ready(service).created, fake.hosts("run-1")
    fake.slices.repairs = False
    fake.preempt(before[2])
    found = only(service)
    assert (found.presence, found.state) == (Presence.PENDING, "3/4 RUNNING")
    assert found.is_partly_up and found.fault is None
    fake.slices.repairs = True
    assert ready(service).created == created
    after = fake.hosts("run-1")
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_no_replacement_outlives_the_slice(fake: FakeCompute, service: ComputeEngine) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 2.0)
    ready(service)
    support.wait_until(lambda: only(service).state == "0/4 RUNNING", 15)
    time.sleep(0.3)
    found = only(service)
    assert (found.state, found.is_partly_up) == ("0/4 RUNNING", False)
    delete_all(service)
    assert fake.slices.leftovers() == []


def test_no_capacity_shows_as_the_groups_own_error(
    fake: FakeCompute, service: ComputeEngine
) -> None:
    fake.slices.fill = lambda: None  # type: ignore[method-assign]
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    assert only(service).fault is None
    (group,) = fake.slices.groups.values()
    for code, kind in (
        ("ZONE_RESOURCE_POOL_EXHAUSTED", Kind.STOCKOUT),
        ("QUOTA_EXCEEDED", Kind.QUOTA),
    ):
        group.errors = [{"error": {"code": code, "message": "none is left"}}]
        fault = only(service).fault
        assert fault is not None and fault.kind is kind


@pytest.mark.parametrize(
    ("refused", "left"),
    [("resourcePolicies", 0), ("instanceTemplates", 1), ("instanceGroupManagers", 2)],
)
def test_what_goes_wrong_in_the_middle_is_listed_and_deleted(
    fake: FakeCompute, service: ComputeEngine, refused: str, left: int
) -> None:
    fake.slices.refusals[refused] = [(403, error(403, "denied"))]
    with pytest.raises(ServiceFault) as caught:
        service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    assert caught.value.kind is Kind.PERMISSION
    assert len(fake.slices.leftovers()) == left
    assert [one.state for one in service.list(ZONE)] == ["LEFTOVER"] * bool(left)
    delete_all(service)
    assert fake.slices.leftovers() == [] and fake.node_names() == []
    service.create(SPEC, ZONE, 2, METADATA, 7200.0)  # the names are free again
    ready(service)


def test_a_lost_reply_of_the_group_shows_as_existing(
    fake: FakeCompute, service: ComputeEngine
) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    with pytest.raises(ServiceFault) as caught:
        service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    assert caught.value.kind is Kind.EXISTS
    assert len(fake.slices.groups) == 1


def test_hosts_without_their_group_are_deleted_one_by_one(
    fake: FakeCompute, service: ComputeEngine
) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    ready(service)
    fake.slices.groups.clear()
    found = service.list(ZONE)
    assert [one.is_partly_up for one in found] == [True] * 4 + [False]
    assert not [one for one in found if one.presence is Presence.READY]
    delete_all(service)
    assert fake.node_names() == [] and fake.slices.leftovers() == []


def test_deletion_by_name_alone_finds_the_group(fake: FakeCompute, service: ComputeEngine) -> None:
    service.create(SPEC, ZONE, 1, METADATA, 7200.0)
    unseen = Tpu("run-1", ZONE, Presence.GONE, "not listed", labels={ID_LABEL: "id-1"})
    service.delete(unseen)
    support.wait_until(lambda: fake.node_names() == [], 10)


def test_dry_run_shows_all_three_requests(tmp_path: Path, fake: FakeCompute) -> None:
    flags = ["launch", "--config=tiny-cpu", "--accelerator_type=v6e-16", "--dry_run", "--json"]
    status, result = support.run(flags, fake)
    assert status == 0
    methods = [request["method"] for request in result["requests"]]
    assert methods.index("resourcePolicies.insert") < methods.index("instanceTemplates.insert")
    assert "instanceGroupManagers.insert" in methods
    assert methods[-1] == "instanceGroupManagers.delete"
    scripts = json.dumps(result["requests"])
    assert "HOSTS=4" in scripts and "--pod_wait_seconds=1200" in scripts
    assert "instanceGroupManagers/my-run" in scripts  # what the watcher deletes


def test_a_machine_without_a_price_needs_a_bound(tmp_path: Path, fake: FakeCompute) -> None:
    root = str(tmp_path)
    flags = ["--accelerator_type=v7x-8", "--zones=us-central1-c"]
    status, result = support.run(support.command(root, fake, *flags), fake)
    assert status == 2 and "give --max_hours" in result["error"]
    assert fake.requests == []
    status, result = support.run(support.command(root, fake, *flags, "--dry_run"), fake)
    assert status == 0 and "--max_hours is needed" in result["warnings"][-1]
    status, result = support.run(
        support.command(root, fake, *flags, "--dry_run", "--max_hours=3"), fake
    )
    assert status == 0 and result["warnings"][-1].endswith("costs are not counted")


def preempted(fake: FakeCompute, root: str) -> Callable[[], None]:
    def preempt() -> None:
        for at, number in ((30, 1), (150, 0)):
            support.wait_until(lambda at=at: support.step_of(root) >= at)
            support.wait_until(lambda: fake.is_ready("run-1"))
            fake.preempt(fake.hosts("run-1")[number], grace=0.5 if number else 0.0)
            support.wait_until(lambda: read_state(root).get("in_repair"))

    return preempt


def read_state(root: str) -> dict[str, object]:
    try:
        with open(f"{root}/bucket/run-1/supervisor/state.json", encoding="utf-8") as file:
            found: dict[str, object] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return {}


@pytest.mark.nightly
def test_a_run_goes_on_while_its_group_replaces_hosts(tmp_path: Path) -> None:
    """The command, the real client, the real script and watcher on each of two hosts."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        thread = support.in_background(preempted(fake, root))
        status, result = support.run(
            support.command(
                root, fake, "--accelerator_type=v5p-16", "--zones=us-central1-a", steps=500
            ),
            fake,
        )
        thread.join(5)
        assert (status, result["reason"], result["global_step"]) == (0, "finished", 500)
        assert (result["preemptions"], result["failures"]) == (2, 0)
        assert (fake.node_names(), fake.slices.leftovers()) == ([], [])
    events = [e["event"] for e in support.events_of(root) if e.get("source") == "supervisor"]
    assert events.count("creating") == 1 and events.count("repairing") == 2
