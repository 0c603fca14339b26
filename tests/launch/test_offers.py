"""What `launch` and `doctor` learn from the services' own lists before anything is created."""

import shutil
from dataclasses import replace

import pytest

from bigbird_ja.accelerators.chips import find
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.launch import backends, flex_start, offers, prepare, tpu_api
from bigbird_ja.launch.advice import TRC, advise
from bigbird_ja.launch.decide import lacks_quota
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import Ending, Phase, RunState
from bigbird_ja.process.errors import BadInput
from testkit.fakes.compute import FakeCompute
from tests.launch import support

TABLE = load_prices()
FLAGS = {"service": "auto", "pricing": "spot", "queued": False, "zones": [], "max_hours": 9.0}
FLAGS |= {"runtime_version": None, "max_cost": None, "dry_run": False}


@pytest.fixture
def fake_compute(tmp_path):
    with FakeCompute(f"{tmp_path}/vms") as fake:
        yield fake


@pytest.fixture
def serve(monkeypatch):
    """`serve(fake, ...)`: this process finds these services."""

    def serve(*fakes):
        for fake in fakes:
            for name, value in support.environment(fake).items():
                monkeypatch.setenv(name, value)

    return serve


@pytest.fixture
def settle(serve, tmp_path):
    """`settle(machine, fakes, **flags)`: the record, the lines, and the services that remain."""

    def settle(kind, fakes, **flags):
        serve(*fakes)
        flags = {**FLAGS, "accelerator_type": kind, **flags}
        run = support.vm_of("run-1", "id-1", kind, pricing=flags["pricing"])
        offered = prepare.offered(replace(run, bucket=str(tmp_path)), flags, TABLE)
        return *next(offered), offered

    return settle


def test_zones_that_lack_the_type_or_its_image_are_left_out_with_a_line(settle, fake_tpu):
    fake_tpu.types["us-central1-a"].remove("v5litepod-8")
    fake_tpu.images["us-west4-a"].remove("v2-alpha-tpuv5-lite")
    zones = ["us-central1-a", "us-west4-a", "us-east1-d", "us-nowhere1-x"]
    run, notes, _ = settle("v5litepod-8", [fake_tpu], zones=zones)
    assert run.zones == ("us-east1-d",)  # not in the table: the service knows better
    assert (run.service, run.runtime_version) == ("tpu", "v2-alpha-tpuv5-lite")
    assert notes == [
        "us-central1-a is left out: the Cloud TPU API does not offer v5litepod-8",
        "us-west4-a is left out: no image v2-alpha-tpuv5-lite",
        "us-nowhere1-x is left out: the Cloud TPU API does not offer v5litepod-8",
        "warning: no spot price for v5litepod-8 in us-east1-d: add it in a file for --price_file:"
        " costs are not counted",
    ]
    # Where the usual zones lack it, others of the table are taken, at their price.
    fake_tpu.types["europe-west4-b"] = ["v5litepod-8"]
    fake_tpu.images["europe-west4-b"] = ["v2-alpha-tpuv5-lite"]
    run, _, _ = settle("v5litepod-8", [fake_tpu])
    assert run.zones == ("europe-west4-b",)
    assert run.usd_per_hour == TABLE.per_hour(find("v5e-8"), "spot", ["europe-west4-b"])


def test_no_zone_is_left(settle, fake_tpu):
    for zone in ("us-central1-a", "us-west4-a"):
        fake_tpu.types[zone].remove("v5litepod-8")
    with pytest.raises(
        BadInput, match="zones that offer it: europe-west4-a, us-central1-b, us-c"
    ) as caught:
        settle("v5litepod-8", [fake_tpu], zones=["us-central1-a", "us-west4-a"])
    assert "\n" not in str(caught.value) and fake_tpu.created == []


@pytest.mark.parametrize("answer", ["permission", "internal_call", "unavailable"])
@pytest.mark.parametrize("kind", ["locations", "acceleratorTypes", "runtimeVersions"])
def test_a_list_that_cannot_be_read_leaves_the_table_in_force(
    settle, fake_tpu, kind, answer, monkeypatch
):
    monkeypatch.setattr(offers, "RETRY_SECONDS", 0.1)
    fake_tpu.unread[kind] = answer
    run, notes, _ = settle("v3-8", [fake_tpu], zones=["us-central1-a", "us-east1-d"])
    assert notes[0].startswith("not all lists of the Cloud TPU API can be read (")
    assert "2026" in notes[0] and "us-central1-a" in run.zones
    # Zones are asked one by one all the same; a service that is away is asked for no more.
    assert ("us-east1-d" in run.zones) == (kind != "acceleratorTypes" and answer != "unavailable")


def test_an_answer_of_another_form_is_a_passing_fault(settle, fake_tpu, monkeypatch):
    listed = {"locations": [{"locationId": 7}], "acceleratorTypes": 7}
    monkeypatch.setattr(fake_tpu, "offer", lambda *more: (200, listed))
    run, notes, _ = settle("v3-8", [fake_tpu])
    assert "an answer of another form: projects/p/locations: locations" in notes[0]
    assert run.zones == TABLE.usual_zones(find("v3-8"), "spot")
    with pytest.raises(ServiceFault) as caught:
        monkeypatch.setattr(fake_tpu, "answer", lambda *more: (200, {"nodes": [{"name": "x"}]}))
        support.client(fake_tpu).list("z")
    assert caught.value.is_passing


def test_compute_engine_is_preferred_and_bills(settle, fake_tpu, fake_compute):
    fake_compute.types["us-east1-d"] = []
    run, notes, left = settle("v6e-8", [fake_tpu, fake_compute])
    assert (run.service, run.zones) == ("compute", ("us-central1-b",))
    assert run.usd_per_hour == TABLE.per_hour(find("v6e-8"), "spot", ["us-central1-b"])
    left_out = "us-east1-d is left out: Compute Engine does not offer ct6e-standard-8t"
    assert notes == [left_out, f"warning: {TRC}"] and fake_tpu.requests == []
    run, notes = next(left)  # Compute Engine lacked quota
    assert run.service == "tpu" and "limited by the machine's own watcher" in notes[-1]
    assert [*left] == []


@pytest.mark.parametrize(
    ("kind", "lack", "words"),
    [
        ("v6e-8", {"types": {}}, "does not offer ct6e-standard-8t"),
        ("v6e-8", {"images": []}, "no image ubuntu-accelerator"),
        ("v6e-8", {"unread": {"machineTypes": "disabled"}}, "gcloud services enable compute"),
        (
            "v5p-8",
            {"quotas": [{"metric": "PREEMPTIBLE_TPU_PODSLICE_V5P", "limit": 0.0}]},
            "quota PREEMPTIBLE_TPU_PODSLICE_V5P is 0 in us-central1, and 4 chips",
        ),
    ],
    ids=["type", "image", "API off", "quota"],
)
def test_auto_falls_back_to_the_cloud_tpu_api(settle, fake_tpu, fake_compute, kind, lack, words):
    vars(fake_compute).update(lack)
    run, notes, left = settle(kind, [fake_tpu, fake_compute])
    assert (run.service, [*left]) == ("tpu", [])
    assert run.runtime_version == {"v6e-8": "v2-alpha-tpuv6e", "v5p-8": "v2-alpha-tpuv5"}[kind]
    assert words in notes[-1] and "limited by the machine's own watcher" in notes[-1]
    with pytest.raises(BadInput, match="--accelerator_type v") as caught:
        settle(kind, [fake_tpu, fake_compute], service="compute")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_resumed_run_is_not_blocked(settle, fake_tpu, tmp_path):
    run = support.vm_of("run-1", "id-1", "v3-8", zones=("us-central1-a",))
    files = RunFiles(replace(run, bucket=str(tmp_path)))
    files.prepare()
    files.save_run()
    fake_tpu.types.clear()
    fake_tpu.types["us-east1-d"] = []
    run, notes, _ = settle("v3-8", [fake_tpu], zones=["us-central1-a"])
    assert run.zones == ("us-central1-a",) and "does not offer v3-8" in notes[-1]


@pytest.mark.parametrize(
    ("state", "has"),
    [
        (RunState(), False),
        (RunState(Phase.RUNNING, attempt=1), True),
        (RunState(Phase.ENDED, attempt=1), False),
        (RunState(Phase.ENDED, attempt=1, billing=True), True),
    ],
)
def test_a_run_that_may_have_a_machine_keeps_its_service(state, has, tmp_path):
    run = replace(support.vm_of("run-1", kind="v6e-8", service="compute"), bucket=str(tmp_path))
    files = RunFiles(run)
    files.prepare()
    files.save_state(state)
    assert (prepare.machine_of(run) is not None) == has


def test_a_run_that_never_had_quota_is_told_from_one_that_had():
    run = support.vm_of("run-1", zones=("a", "b"))
    state = RunState(Phase.ENDED, ending=Ending.GAVE_UP, struck_zones={"a": "x", "b": "x"})
    assert lacks_quota(state, run)
    assert not lacks_quota(replace(state, ready_zones=("a",)), run)
    assert not lacks_quota(replace(state, struck_zones={"a": "x"}), run)


def test_quota_that_only_a_request_shows_leads_to_the_other_service(tmp_path, fake_tpu):
    """As with TPUS_PER_TPU_FAMILY, which no list has."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/cvms") as compute:
        compute.script += ["quota"] * 2
        command = support.command(root, "--accelerator_type=v6e-8")
        status, result = support.run(command, compute, fake_tpu)
        assert (status, result["global_step"]) == (0, 100), result
        assert compute.created == [] and len(fake_tpu.created) == 1
    assert support.read(root, "supervisor/launch.json", "service") == "tpu"
    errors = [one.get("error", "") for one in support.events_of(root)]
    assert any("TPUS_PER_TPU_FAMILY" in error for error in errors)


@pytest.mark.parametrize(
    ("kind", "image"),
    [("v2-8", "2.15.0-se"), ("v5e-32", "v2-alpha-tpuv5-lite"), ("v6e-32", "v2-alpha-tpuv6e")],
)
def test_everything_that_the_cloud_tpu_api_serves_may_be_queued(kind, image):
    flags = {**FLAGS, "accelerator_type": kind, "queued": True}
    (rental,) = backends.find_rentals(flags, TABLE)
    assert rental.service == "tpu" and backends.image(rental, kind, "auto").endswith(image)
    run = support.vm_of("run-1", kind=kind, queued=True)
    body = tpu_api.creation(run, "z", 1, {}, 1.0)
    assert body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == kind.replace("5e", "5litepod")


# --- flex-start -----------------------------------------------------------------------------------


def test_flex_start_trains_and_is_deleted_by_the_cloud(tmp_path, fake_tpu, monkeypatch):
    root = str(tmp_path)
    monkeypatch.setenv("PATH", support.install_gcloud(f"{root}/bin"))
    flags = ["--accelerator_type=v6e-8", "--pricing=flex-start", "--max_hours=2"]
    flags += ["--zones=us-east5-a"]
    status, result = support.run(support.command(root, *flags), fake_tpu)
    assert (status, result["global_step"]) == (0, 100), result
    assert fake_tpu.durations == [pytest.approx(7200, abs=60)]
    assert (len(fake_tpu.created), fake_tpu.node_names(), fake_tpu.queued_names()) == (1, [], [])
    assert support.read(root, "supervisor/launch.json", "queued") is True


def test_flex_start_has_zones_of_its_own(settle, fake_tpu):
    flags = {"pricing": "flex-start", "max_hours": 9.0}
    run, notes, _ = settle("v6e-8", [fake_tpu], zones=["us-central1-b", "us-east5-a"], **flags)
    assert run.zones == ("us-east5-a",) and "flex-start is documented for us-east5-a" in notes[0]
    with pytest.raises(BadInput, match="zones that offer it: us-west4-a"):
        settle("v5e-8", [fake_tpu], zones=["us-central1-b"], **flags)


def test_flex_start_without_gcloud_says_how(tmp_path, fake_tpu, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    flags = ["--accelerator_type=v6e-8", "--pricing=flex-start", "--max_hours=2"]
    status, result = support.run(support.command(str(tmp_path), *flags), fake_tpu)
    assert status == 2 and "gcloud components install alpha" in result["error"]
    assert fake_tpu.requests == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ERROR: (gcloud.alpha.x) RESOURCE_EXHAUSTED: Quota limit 'x' exceeded", Kind.QUOTA),
        ("ERROR: (gcloud.alpha.x) ALREADY_EXISTS: x", Kind.EXISTS),
        ("ERROR: (gcloud) Invalid choice: 'alpha'.", Kind.BAD_REQUEST),
        (
            "ERROR: (gcloud.alpha.x) You do not currently have an active account selected."
            " Please run: gcloud auth login to obtain new credentials.",
            Kind.PERMISSION,
        ),
        ("Traceback", Kind.INTERNAL),
    ],
)
def test_what_gcloud_prints_is_a_fault_of_the_service(tmp_path, monkeypatch, text, kind):
    support.write_tool(f"{tmp_path}/gcloud", f'echo "{text}" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ServiceFault) as caught:
        flex_start.create(["gcloud"], {"startup-script": "true"})
    assert caught.value.kind is kind
    support.write_tool(f"{tmp_path}/gcloud", "true")  # it says nothing: the listing decides
    with pytest.raises(ServiceFault, match="named no operation"):
        flex_start.create(["gcloud"], {})


# --- in the user's words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "service", "pricing", "words"),
    [
        ("v5e-8", "tpu", "spot", ["tpu-v5s-litepod-serving-preemptible", "tpu.google"]),
        ("v5e-32", "tpu", "spot", ["tpu-v5s-litepod-preemptible"]),
        ("v5e-8", "tpu", "on_demand", ["tpu-v5s-litepod-serving (v5litepod-1"]),
        ("v6e-8", "compute", "spot", ["PREEMPTIBLE_TPUS_PER_TPU_FAMILY for CT6E", "--service tpu"]),
        ("v7x-8", "compute", "spot", ["TPU7X", "compute.googleapis.com"]),
        ("v3-8", "tpu", "spot", ["preemptible v3 cores"]),
    ],
)
def test_a_refusal_for_want_of_quota_names_it_and_the_page(kind, service, pricing, words):
    fault = ServiceFault(Kind.QUOTA, "Quota limit 'X' has been exceeded. Limit: 0")
    run = support.vm_of("run-1", kind=kind, service=service, pricing=pricing)
    text = advise(fault, run, "us-central1-a")
    for word in (*words, fault.message, "console.cloud.google.com/iam-admin/quotas (service "):
        assert word in text
    assert "\n" not in text and ("--service tpu" in text) == (service == "compute")


def test_a_machine_type_that_compute_engine_keeps_for_itself():
    message = "This user agent is not allowed to use the machine type."
    run = support.vm_of("run-1", kind="v5p-8", service="compute")
    assert "--service tpu" in advise(ServiceFault(Kind.BAD_REQUEST, message), run)


# --- doctor ---------------------------------------------------------------------------------------


def test_the_table_of_a_project(serve, fake_tpu, fake_compute):
    serve(fake_tpu, fake_compute)
    fake_tpu.types["us-west4-a"].remove("v5litepod-8")
    rows, faults = offers.make_rows("p", TABLE)
    by_name = {(row["accelerator_type"], row["service"]): row for row in rows}
    assert faults == [] and {*by_name} >= {("v6e-8", "compute"), ("v6e-8", "tpu"), ("v2-8", "tpu")}
    zones = by_name["v5litepod-8", "tpu"]["zones"]
    assert zones["us-west4-a"] == "the Cloud TPU API does not offer v5litepod-8"
    assert zones["us-central1-a"] == zones["us-east1-d"] == ""
    assert by_name["v5p-8", "compute"]["quota"] == "PREEMPTIBLE_TPU_PODSLICE_V5P 4 of 8"


def test_what_cannot_be_read_is_not_called_missing(serve, fake_tpu, fake_compute):
    serve(fake_tpu, fake_compute)
    fake_compute.unread["images"] = "permission"
    rows, faults = offers.make_rows("p", TABLE)
    zones = {one["accelerator_type"]: one["zones"] for one in rows if one["service"] == "compute"}
    assert {fault.kind for fault in faults} == {Kind.PERMISSION}
    assert zones["v7x-8"]["us-central1-c"] == zones["v6e-8"]["us-east1-d"] == ""
    fake_tpu.unread["locations"] = fake_compute.unread["machineTypes"] = "permission"
    _, faults = offers.make_rows("p", TABLE)
    assert {fault.kind for fault in faults} == {Kind.PERMISSION}
