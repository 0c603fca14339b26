"""Our clients of the Cloud TPU API and of Compute Engine, with fake servers."""

import time
from dataclasses import replace

import pytest

from bigbird_ja.launch.backends import MODULES
from bigbird_ja.launch.leftovers import delete_all
from bigbird_ja.launch.machine.watcher import Host, Terms
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ID_LABEL, RUN_DIR_KEY, Presence, Tpu, make_labels
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support
from tests.launch.support import finished

VM = replace(support.NODE, accelerator_type="v6e-8", service="compute")
METADATA = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}


KINDS = pytest.mark.parametrize(
    ("kind", "run"),
    [(FakeTpu, support.NODE), (FakeTpu, support.QUEUED), (FakeCompute, VM)],
    ids=["node", "queued", "vm"],
)


@KINDS
def test_life_of_a_machine_and_deletion_of_only_the_listed_one(tmp_path, kind, run):
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        assert (
            finished(service, service.create(run, support.ZONE, 3, METADATA, 3600.0)).fault is None
        )
        support.wait_until(lambda: service.list()[0].presence is Presence.READY, 10)
        (tpu,) = service.list()
        assert service.find(support.ZONE, "run-1") == tpu
        assert (tpu.name, tpu.zone) == ("run-1", support.ZONE)
        assert (tpu.run, tpu.run_id, tpu.attempt) == ("run-1", "id-1", 3)
        assert (tpu.accelerator_type, tpu.run_dir) == (run.accelerator_type, "gs://b/run-1")
        assert tpu.is_queued == (tpu.state == "ACTIVE/READY") == (run is support.QUEUED)
        assert tpu.created == pytest.approx(time.time(), abs=60)
        assert service.find("us-central1-a", "run-1") is None
        # Repeat the request to create the machine, as a client does if the first answer was lost.
        with pytest.raises(ServiceFault) as caught:
            service.create(run, support.ZONE, 3, METADATA, 3600.0)
        assert caught.value.kind is Kind.EXISTS and len(service.list()) == 1
        # `delete` must keep a machine that is not the expected one, although the names are equal.
        # It may be a machine of another run, or a newer machine of this run.
        of_another = replace(tpu, labels={**tpu.labels, ID_LABEL: "id-2"})
        of_a_copy = replace(tpu, run_dir="gs://b/run-2")
        for expected in (of_another, of_a_copy, replace(tpu, created=tpu.created - 60)):
            with pytest.raises(ServiceFault) as caught:
                service.delete(expected)
            assert caught.value.kind is Kind.NOT_FOUND and fake.node_names()
        assert (
            delete_all({(tpu.service, "p"): service}, [tpu], 20, time.monotonic, time.sleep) == []
        )
        assert service.list() == [] and fake.node_names() == []


@KINDS
def test_a_failed_creation(tmp_path, kind, run):
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        for word, expected in (("stockout", Kind.STOCKOUT), ("internal", Kind.INTERNAL)):
            fake.script.append(word)
            fault = finished(service, service.create(run, support.ZONE, 1, {}, 3600.0)).fault
            assert fault is not None and fault.kind is expected
            assert fake.node_names() == []


@KINDS
def test_a_machine_deletes_itself_at_its_addresses(tmp_path, kind, run):
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        finished(service, service.create(run, support.ZONE, 1, METADATA, 3600.0))
        api = f"{fake.url}/{'compute/v1' if run is VM else 'v2'}"
        addresses = MODULES[run.service].delete_addresses(api, run, support.ZONE)
        Host(Terms(1, 1.0, 1.0, "", "", delete=addresses, metadata=fake.url), "").delete()
        support.wait_until(lambda: service.find(support.ZONE, "run-1") is None)


def test_a_copied_folder_has_the_id_of_its_run_and_none_of_its_machines():
    run = support.NODE
    tpu = Tpu(
        "run-1", "z", Presence.READY, "READY", labels=make_labels(run, 1), run_dir=run.run_dir
    )
    assert tpu.belongs_to(run)
    assert not tpu.belongs_to(replace(run, bucket="gs://copy"))
