"""`launch`: dry runs, refusals, and whole runs with real trainers on a fake cloud service."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from bigbird_ja.accelerators import environment
from bigbird_ja.launch.service import ID_LABEL, RUN_DIR_KEY, RUN_LABEL
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.settings.values import get_mask_rates
from testkit.fakes.compute import FakeCompute
from testkit.fakes.service import in_background
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

ZONE = "us-central1-a"


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


DRY_RUN = ("launch", "--dry_run", "--config=tiny-cpu", *support.EIGHT_CORES, "--max_hours=100")


def dry_run(*flags):
    """Return the results of a dry run, and the first request to each method of the API."""
    status, result = support.run([*DRY_RUN, *flags])
    assert status == 0, result
    return result, {one["method"]: one["request"] for one in reversed(result["requests"])}


def test_dry_run_needs_nothing_and_shows_everything(monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")
    result, requests = dry_run("--config=base-4096", "--accelerator_type=v3-8")
    assert requests.keys() == {"CreateNode", "DeleteNode"}
    node = requests["CreateNode"]["body"]
    assert node["runtimeVersion"] == "tpu-vm-tf-2.15.0-se"
    script = node["metadata"]["startup-script"]
    assert "pretrain" in script and "@@" not in script.split("set -euo")[1]
    assert result["cost"]["usd_per_hour"] > 0
    assert result["machine"]["zones_by"] == "cloud.google.com/tpu/docs/regions-zones"
    (warning,) = [text for text in result["warnings"] if "service_account" in text]
    assert "roles/storage.objectUser" in warning and "roles/tpu.admin" in warning
    result, requests = dry_run(
        "--queued", "--accelerator_type=v3-8", "--zones=us-central1-a", "--pricing=on-demand"
    )
    assert requests.keys() == {"CreateQueuedResource", "DeleteQueuedResource"}
    queued = requests["CreateQueuedResource"]["body"]
    assert "guaranteed" in queued and "spot" not in queued


def test_dry_run_of_a_slice_is_one_node_whose_hosts_wait_for_each_other():
    _, requests = dry_run("--set=training.global_batch_size=16", "--accelerator_type=v5e-16")
    scripts = json.dumps(requests)
    assert "HOSTS=4" in scripts and "--pod_wait_seconds=1200" in scripts
    assert "nodes/my-run" in scripts  # The watcher deletes the node at this address.


@pytest.mark.parametrize(
    ("kind", "engine", "lock"),
    [("v3", "auto", "image"), ("v3", "pjrt", "machine")]
    + [("v4", "auto", "machine"), ("v4", "estimator", "image")],
)
def test_the_vm_gets_the_engine_and_its_environment(kind, engine, lock):
    _, requests = dry_run(f"--accelerator_type={kind}-8", f"--engine={engine}")
    script = requests["CreateNode"]["body"]["metadata"]["startup-script"]
    (pretrain,) = re.findall(r"PRETRAIN_FLAGS=\((.*?)\)", script)
    assert (f"--engine={engine}" in pretrain.split()) == (engine != "auto")
    assert f"LOCK={lock}.lock " in script


def test_a_lock_of_versions_that_were_not_tested_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(environment.PACKAGES, "libtpu", "0.0.52")
    status, _ = support.run([*DRY_RUN])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and "installs libtpu 0.0.42.1, but" in line and "tested with 0.0.52" in line


def test_a_machine_without_a_price_needs_a_limit_in_hours(capsys):
    flags = ["--accelerator_type=v7x-8", "--zones=us-central1-c"]
    assert support.run([*DRY_RUN, *flags, "--max_cost=30"])[0] == 2
    assert "requires a price: no spot price for v7x-8" in capsys.readouterr().err
    result, _ = dry_run(*flags)
    assert any(text.endswith("costs are not counted") for text in result["warnings"])
    assert result["needs"]["hours"] > 0 and result["needs"]["cost_usd"] is None


def test_a_grant_shows_hours_without_dollars_and_warns_where_it_does_not_count(capsys):
    flags = ["--config=base-4096", "--price_per_hour=0", "--accelerator_type=v6e-8"]
    result, _ = dry_run(*flags)
    assert any("Compute Engine bills this machine" in text for text in result["warnings"])
    assert result["needs"]["hours"] > 0 and result["needs"]["cost_usd"] is None
    shown = capsys.readouterr().err
    assert "USD" not in shown and "cost     not counted\n" in shown


def test_a_limit_below_the_plan_is_reported(capsys):
    batch = support.EIGHT_CORES[0]
    row = support.run(["plan", "--config=base-4096", batch])[1]["cheapest"]
    assert (row["accelerator"], row["pricing"]) == ("v5e-8", "spot"), "the default of `launch`"
    capsys.readouterr()
    result, _ = dry_run("--config=base-4096", "--max_hours=100", "--max_cost=5")
    needs, share = result["needs"], 5 / row["cost_usd"]
    assert (needs["hours"], needs["cost_usd"]) == (row["hours"], row["cost_usd"])
    assert needs["covered"] == pytest.approx(share)
    shown = capsys.readouterr().err
    assert f"{row['cost_usd']:.2f} (" in shown and f"cover {share:.0%}\n" in shown
    dry_run("--config=base-4096")
    assert "the limits cover all of it" in capsys.readouterr().err


def test_an_api_that_is_off_is_reported_before_renting(root, fake_tpu):
    fake_tpu.unread = "disabled"
    status, result = support.run(support.command(root), fake_tpu)
    assert status == 2
    assert result["error"].count("gcloud services enable tpu.googleapis.com") == 1
    assert fake_tpu.created == []


@pytest.mark.parametrize("labels", [{}, {RUN_LABEL: "run-1", ID_LABEL: "other"}])
def test_a_taken_name_is_refused_before_anything_is_written(root, fake_tpu, labels):
    zone = "us-central1-a"
    support.client(fake_tpu).create(support.vm_of("run-1"), zone, 1, {}, 3600.0)
    machine = fake_tpu.machine("run-1")
    assert machine is not None
    machine.resource["labels"] = labels
    status, result = support.run(support.command(root), fake_tpu)
    assert status == 2 and f"{zone}/nodes/run-1 belongs to another owner" in result["error"]
    assert all(value in result["error"] for value in labels.values())
    assert fake_tpu.machine("run-1") is machine and len(fake_tpu.created) == 1
    assert not [request for request in fake_tpu.requests if request.startswith("DELETE")]
    assert not os.path.exists(f"{root}/bucket")


def test_a_copied_folder_is_not_the_run(root, fake_tpu):
    place = f"{root}/bucket/run"
    support.make_run(f"{root}/bucket", "run-1", cost_usd=3.0)
    machine = support.vm_of("run-1", "id-run-1")
    support.client(fake_tpu).create(machine, ZONE, 1, {RUN_DIR_KEY: f"{place}-1"}, 3600.0)
    shutil.copytree(f"{place}-1", f"{place}-2")
    launch = [*support.command(root), "--name=run-2"]
    status, result = support.run(launch, fake_tpu)
    assert status == 2 and f"{place}-2 is a copy of the run {place}-1: continue" in result["error"]
    _, result = support.run(["status", f"--bucket={root}/bucket", "--project=p"], fake_tpu)
    assert [len(shown["tpus"]) for shown in result["runs"]] == [1, 0]
    assert [shown["message"][:6] for shown in result["runs"]] == ["", "a copy"]
    # Without the supervisor's folder, the copy is a new run.
    shutil.rmtree(f"{place}-2/supervisor")
    status, result = support.run(launch, fake_tpu)
    assert (status, result["global_step"], result["cost_usd"] < 3) == (0, 100, True)
    assert [name.rpartition("/")[2] for name in fake_tpu.node_names()] == ["run-1"]


def test_a_lost_state_is_refused(root, fake_tpu):
    run = support.make_run(f"{root}/bucket", "run-1")
    os.remove(run.supervisor("state.json"))
    launch = [*support.command(root), "--max_cost=3"]
    status, result = support.run(launch, fake_tpu)
    assert status == 2 and "state.json is missing, so the cost of the run" in result["error"]
    assert fake_tpu.created == []


@pytest.mark.parametrize(
    ("kind", "flags"), [(FakeTpu, []), (FakeCompute, ["--accelerator_type=v6e-8"])]
)
def test_preempted_run_finishes_and_leaves_nothing(root, kind, flags):
    """Preempt the machine before the first step, at step 30 and at step 70.

    `launch` creates a new machine after each preemption.
    """

    def preempt():
        support.wait_until(lambda: fake.machine("run-1"))
        fake.preempt("run-1")
        for step, grace in ((30, 2.0), (70, 0.0)):
            support.wait_for_step(root, step)
            fake.preempt("run-1", grace)

    with kind(f"{root}/vms", dict(os.environ), keep_disk=kind is FakeCompute) as fake:
        preempting = in_background(preempt)
        command = support.command(root, *flags)
        status, result = support.run(command, fake)
        preempting.join(1)
        assert not preempting.is_alive()
        assert (status, result["reason"], result["global_step"]) == (0, "finished", 100)
        assert (result["preemptions"], result["failures"]) == (3, 0)
        assert (fake.node_names(), fake.most_at_once, len(fake.created)) == ([], 1, 4)
        events = [event["event"] for event in support.events_of(root)]
        assert events.count("preempted") == 3 and events[-1] == "ended"
        # A rerun of the command creates no machine, and the run keeps its id.
        run_id = support.read(root, "supervisor/launch.json", "run_id")
        status, result = support.run(command, fake)
        assert (status, result["state"], len(fake.created)) == (0, "ended", 4)
        assert len(run_id) == 16
        assert support.read(root, "supervisor/launch.json", "run_id") == run_id
        status, result = support.run(["status", f"--bucket={root}/bucket", "--name=run-1"], fake)
        (shown,) = result["runs"]
        assert (shown["state"], shown["step"], shown["preemptions"]) == ("finished", 100, 3)
        assert shown["compile_seconds"] == 37.2
        changed = [*flags, "--set=model.num_layers=3"]
        status, result = support.run(support.command(root, *changed), fake)
        assert status == 2 and "model.num_layers: 2 -> 3" in result["error"]
    for path in Path(root, "bucket").rglob("*"):
        if path.is_file() and path.suffix != ".zip":
            assert not re.search(rb"token-of-the-vm|Bearer", path.read_bytes()), path


def test_a_second_supervisor_is_refused_unless_the_first_one_was_killed(root, fake_tpu, capsys):
    # With so many steps, the run still trains when the second command starts.
    process = support.start(root, fake_tpu, steps=1000)
    support.wait_for_step(root, 10)
    status, result = support.run(support.command(root, steps=1000), fake_tpu)
    assert (status, f"process {process.pid}" in result["error"]) == (2, True)
    assert len(fake_tpu.node_names()) == 1
    process.kill()
    process.communicate()
    status, result = support.run(support.command(root, steps=1000), fake_tpu)
    assert (status, result["global_step"], result["preemptions"]) == (0, 1000, 0)
    assert "tokens/s; 37 s to compile or load the step" in capsys.readouterr().err
    assert (len(fake_tpu.created), fake_tpu.node_names()) == (1, [])


def test_a_detached_machine_finishes_its_run_and_deletes_itself(root, fake_tpu):
    # `steps` and `ended` are large enough for a busy computer: the supervisor detaches before the
    # run ends, and the watcher reports the result before it deletes the machine.
    process = support.start(root, fake_tpu, "--on_interrupt=detach", steps=1000, ended=5)
    support.wait_for_step(root, 5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["state"]) == (0, "detached"), errors
    assert len(fake_tpu.node_names()) == 1
    support.wait_until(lambda: fake_tpu.node_names() == [])
    assert "machine DELETE" in fake_tpu.requests
    assert support.read(root, "supervisor/exit.json", "status") == 0


def test_a_log_without_a_reader_deletes_the_tpu(root, fake_tpu):
    process = support.start(root, fake_tpu, steps=100_000)
    support.wait_for_step(root, 10)
    assert process.stdout is not None and process.stderr is not None
    process.stderr.close()
    # A preemption makes the supervisor write to its log, whose reader has closed the pipe.
    fake_tpu.preempt("run-1")
    out = process.stdout.read()
    assert process.wait(timeout=120) == 75
    assert fake_tpu.node_names() == []
    assert json.loads(out)["ending"] == "interrupted"


def test_the_machine_gets_no_settings_of_a_preset_for_other_data(root, fake_tpu):
    """Send the machine a config that fits a data set with static masks.

    The trainer on the rented machine would refuse the preset's settings for dynamic masks.
    """
    arguments = support.command(root, "--config=base-4096", steps=10)
    support.write_manifest(f"{root}/data", masking="static")
    assert support.run(arguments, fake_tpu)[0] == 0
    config, data = read_config(f"{root}/bucket/run-1/supervisor/config.yaml")
    assert data.masking == "static"
    assert (config.training.schedule, get_mask_rates(config)) == ("wsd", None)


@pytest.mark.parametrize(
    ("word", "answer"),
    [("quota", "TPUS_PER_TPU_FAMILY"), ("no_type", "type is not available"), ("", "is off in pro")],
)
def test_a_service_that_refuses_everywhere_is_followed_by_the_other(
    word, answer, tmp_path, fake_tpu, capsys
):
    root = str(tmp_path)
    with FakeCompute(f"{root}/cvms") as compute:
        compute.script += [word] * 2
        compute.unread = "" if word else "disabled"
        command = support.command(root, "--accelerator_type=v6e-8")
        status, result = support.run(command, compute, fake_tpu)
        assert (status, result["global_step"]) == (0, 100), result
        assert compute.created == [] and len(fake_tpu.created) == 1
    assert support.read(root, "supervisor/launch.json", "service") == "tpu"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "falling back" in line]
    assert answer in line and "only a program on the machine limits its lifetime" in line


def test_zones_that_refuse_the_type_are_left_out_and_the_table_names_others(root, fake_tpu):
    fake_tpu.script += ["no_type"]
    status, result = support.run(support.command(root), fake_tpu)
    assert (status, result["global_step"]) == (0, 100), result
    assert "us-central1-b" in fake_tpu.created[0]
    fake_tpu.script += ["no_type"] * 2
    status, result = support.run(support.command(f"{root}/other"), fake_tpu)
    assert status == 2 and len(fake_tpu.created) == 1
    assert "the service refused the request for v3-8 in us-central1-a" in result["error"]
    zones = "us-central1-a, us-central1-b, europe-west4-a"
    listed = f"the page tpu/docs/regions-zones of 2026-11-26 lists this machine in {zones}"
    assert listed in result["error"]


def test_input_that_the_machine_would_refuse_is_refused_before_it_is_rented(root, fake_tpu):
    command = [*support.command(root), "--mode=train_and_eval"]
    without = Path(root, "without")
    support.write_manifest(without, eval_counts=())
    for flags, words in (
        (["--set=training.global_batch_size=12"], "not divisible by 8 cores"),
        ([f"--data_dir={without}"], "no held-out records"),
    ):
        status, result = support.run([*command, *flags], fake_tpu)
        assert status == 2 and words in result["error"]
    (shard,) = [*Path(root, "data").glob("train-*")][:1]
    shard.write_bytes(shard.read_bytes()[:-1])
    status, result = support.run(command, fake_tpu)
    assert status == 2 and shard.name in result["error"]
    assert fake_tpu.requests == [] and not Path(root, "bucket").exists()
