"""`launch`: dry run, refusals, and whole runs on a fake service with real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from bigbird_ja.cli import main
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.values import mask_rates
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support


@pytest.fixture
def root(tmp_path: object) -> str:
    return str(tmp_path)


@pytest.fixture
def fake(root: str) -> Iterator[FakeTpu]:
    # The disk is kept between nodes: installing the package is tested once, below.
    with FakeTpu(f"{root}/vms", dict(os.environ), keep_disk=True) as server:
        yield server


def run_plain(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.run_command_line(list(arguments))
    return status, out.getvalue(), err.getvalue()


def test_dry_run_needs_nothing_and_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")
    status, out, _ = run_plain("launch", "--config=base-4096", "--dry_run", "--json")
    assert status == 0
    result = json.loads(out)
    methods = [request["method"] for request in result["requests"]]
    for method in ("storage.write", "ListNodes", "CreateNode", "GetOperation", "DeleteNode"):
        assert method in methods
    created = next(r["request"] for r in result["requests"] if r["method"] == "CreateNode")
    assert created["body"]["acceleratorType"] == "v3-8"
    assert created["body"]["runtimeVersion"] == "tpu-vm-tf-2.15.0-se"
    assert created["body"]["schedulingConfig"]["spot"] is True
    script = created["body"]["metadata"]["startup-script"]
    assert "pretrain" in script and "@@" not in script.split("set -euo")[1]
    assert result["cost"]["usd_per_hour"] > 0
    assert result["cost"]["run"]["cost_usd"] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--accelerator_type=v5litepod-8", "--engine=estimator"], "90807"),
        (["--accelerator_type=v3-32"], "estimator engine uses one"),
        (["--accelerator_type=A100"], "no TPU type"),
        (["--accelerator_type=v3-9x"], "did you mean 'v3-8'"),
        (["--accelerator_type=v6e-2", "--zones=us-east5-b"], "sizes v6e-1, v6e-4, v6e-8"),
        (["--accelerator_type=v6e-512", "--zones=us-east5-b"], "largest is v6e-256"),
        (["--accelerator_type=v6e-8", "--zones=us-east5-b", "--queued"], "has no queue"),
        (["--name=Bad_Name"], "lower-case"),
        (["--max_cost=nan"], "must lie between 0"),
        (["--data_dir=/tmp/data", "--bucket=gs://b"], "make-data --output_dir"),
        (["--bucket=/tmp/b"], "gs:// only"),
        (["--prices=/nonexistent.yaml"], "no such file"),
        (["--zones=us-central9-z"], "v3-8 is not offered there"),
        (["--accelerator_type=v4-8", "--zones=us-central1-a"], "zones: us-central2-b"),
    ],
)
def test_refusals_are_one_line_before_anything(flags: list[str], words: str) -> None:
    status, _, err = run_plain("launch", "--dry_run", *flags)
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "engine", "installed"),
    [
        ([], "", ""),
        (["--engine=pjrt"], "--engine=pjrt", "jax==0.4.34 jaxlib==0.4.34 libtpu>=0.0.2,<0.0.12"),
        (["--accelerator_type=v4-8"], "", "jax==0.4.34 jaxlib==0.4.34 libtpu>=0.0.2,<0.0.12"),
        (["--accelerator_type=v4-8", "--engine=estimator"], "--engine=estimator", ""),
        (
            ["--accelerator_type=v5litepod-8", "--zones=us-west4-a", "--runtime_version=other"],
            "", "tensorflow-cpu>=2.15 jax>=0.4.34 libtpu>=0.0.2",
        ),
    ],
)  # fmt: skip
def test_the_vm_gets_the_engine_and_what_it_needs(
    flags: list[str], engine: str, installed: str
) -> None:
    status, out, err = run_plain("launch", "--dry_run", "--json", *flags)
    assert status == 0, err
    asked = {r["method"]: r["request"] for r in reversed(json.loads(out)["requests"])}
    if "CreateNode" in asked:
        script = asked["CreateNode"]["body"]["metadata"]["startup-script"]
    else:
        items = asked["instances.insert"]["body"]["metadata"]["items"]
        (script,) = [item["value"] for item in items if item["key"] == "startup-script"]
    (pretrain,) = re.findall(r"PRETRAIN_FLAGS=\((.*)\)", script)
    assert [word for word in pretrain.split() if "engine" in word] == engine.split()
    (lacking,) = re.findall(r"LACKING=(.*?) +#", script)
    assert lacking.strip("'") == installed


@pytest.mark.parametrize(
    ("kind", "flags"), [(FakeTpu, []), (FakeCompute, ["--accelerator_type=v6e-8"])]
)
def test_preempted_run_finishes_and_leaves_nothing(
    root: str, kind: type[support.Fake], flags: list[str]
) -> None:
    """Killed before the first step, early, and late; then finished, each on a fresh machine."""

    def preempt() -> None:
        support.wait_until(lambda: fake.is_ready("run-1"))
        fake.preempt("run-1")
        for at in (30, 70):
            support.wait_until(lambda at=at: support.step_of(root) >= at)
            fake.preempt("run-1", grace=2.0 if at == 30 else 0.0)

    with kind(f"{root}/vms", dict(os.environ), keep_disk=kind is FakeCompute) as fake:
        preempting = support.in_background(preempt)
        command = support.command(root, fake, *flags)
        status, result = support.run(command, fake)
        preempting.join(1)
        assert not preempting.is_alive()
        assert (status, result["reason"], result["global_step"]) == (0, "finished", 100)
        assert (result["preemptions"], result["failures"]) == (3, 0)
        assert (fake.node_names(), fake.most_at_once, len(fake.created)) == ([], 1, 4)
        events = [event["event"] for event in support.events_of(root)]
        assert events.count("preempted") == 3 and events[-1] == "ended"
        # The same command again: finished work costs nothing.
        status, result = support.run(command, fake)
        assert (status, result["state"], len(fake.created)) == (0, "ended", 4)
        status, result = support.run(
            ["status", f"--bucket={root}/bucket", "--name=run-1", "--events=9", "--json"], fake
        )
        (shown,) = result["runs"]
        assert (shown["state"], shown["step"], shown["preemptions"]) == ("finished", 100, 3)


def test_queued_resources_stockout_and_next_zone(root: str, fake: FakeTpu) -> None:
    fake.script.append("stockout")
    status, _ = support.run(support.command(root, fake, "--queued", steps=40), fake)
    assert status == 0
    (name,) = fake.created
    assert "/us-central1-b/" in name
    assert fake.node_names() == fake.queued_names() == []


def test_an_api_that_is_off_is_reported_before_renting(root: str, fake: FakeTpu) -> None:
    fake.list_script += ["disabled"] * 2  # in both zones
    status, result = support.run(support.command(root, fake), fake)
    assert status == 2
    assert "gcloud services enable tpu.googleapis.com" in result["error"]
    assert fake.created == []


def test_what_would_repeat_is_not_paid_for_again(root: str, status: int = 70) -> None:
    """The other reasons: tests/launch/test_machine_lease.py, in virtual time."""
    environ = {**os.environ, "FAKE_TRAINER": f"exit:{status}"}
    with FakeTpu(f"{root}/failing", environ, keep_disk=True) as failing:
        ended, result = support.run(support.command(root, failing), failing)
        assert failing.node_names() == []
        assert len(failing.created) == 1
    assert ended == status
    assert "it would come again" in result["error"]


def test_killed_supervisor_is_followed_by_one_that_adopts(root: str, fake: FakeTpu) -> None:
    process = support.start(root, fake)
    support.wait_until(lambda: support.step_of(root) >= 10)
    process.kill()
    process.communicate()
    status, result = support.run(support.command(root, fake, steps=400), fake)
    assert (status, result["global_step"], result["preemptions"]) == (0, 400, 0)
    assert len(fake.created) == 1
    assert fake.node_names() == []


def test_second_supervisor_is_refused(root: str, fake: FakeTpu) -> None:
    process = support.start(root, fake)
    try:
        support.wait_until(lambda: support.step_of(root) >= 10)
        status, result = support.run(support.command(root, fake, steps=400), fake)
        assert status == 2
        assert f"process {process.pid}" in result["error"]
        # And `down` does not delete under its hands.
        arguments = ["down", "--project=p", f"--bucket={root}/bucket", "--yes", "--json"]
        status, result = support.run(arguments, fake)
        assert status == 2
        assert "is watched" in result["error"]
        assert len(fake.node_names()) == 1
    finally:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["global_step"] == 400


@pytest.mark.parametrize(("policy", "status", "left"), [("ask", 75, 0), ("detach", 0, 1)])
def test_ctrl_c_without_a_terminal(
    root: str, fake: FakeTpu, policy: str, status: int, left: int
) -> None:
    process = support.start(root, fake, f"--on_interrupt={policy}", steps=100_000)
    support.wait_until(lambda: support.step_of(root) >= 10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert len(fake.node_names()) == left
    assert b"Traceback" not in err
    result = json.loads(out)
    assert result.get("ending", result.get("state")) == ("detached" if left else "interrupted")


def test_a_log_without_a_reader_deletes_the_tpu(root: str, fake: FakeTpu) -> None:
    process = support.start(root, fake, "--json", steps=100_000)
    support.wait_until(lambda: support.step_of(root) >= 10)
    assert process.stdout is not None and process.stderr is not None
    process.stderr.close()
    fake.preempt(fake.node_names()[0].rsplit("/")[-1])  # so that there is something to tell
    out = process.stdout.read()
    assert process.wait(timeout=120) == 75
    assert fake.node_names() == []
    assert json.loads(out)["ending"] == "interrupted"


def test_other_config_under_the_same_name_is_refused(root: str, fake: FakeTpu) -> None:
    status, _ = support.run(support.command(root, fake, steps=10), fake)
    assert status == 0
    more = ["--set=model.num_layers=3"]
    status, result = support.run(support.command(root, fake, *more, steps=10), fake)
    assert status == 2
    assert "model.num_layers: 2 -> 3" in result["error"]


def test_the_machine_gets_no_preset_s_settings_for_other_data(root: str, fake: FakeTpu) -> None:
    """A file says there what the preset said here, and a file's mask rates for static masks are
    refused: after renting."""
    arguments = support.command(root, fake, "--config=base-4096", steps=10)
    support.write_manifest(f"{root}/data", masking="static")
    assert support.run(arguments, fake)[0] == 0
    config = read_config(f"{root}/bucket/run-1/supervisor/config.yaml")
    assert (config.training.schedule, mask_rates(config)) == ("wsd", None)


def test_dead_mans_switch_deletes_when_nobody_comes(root: str, fake: FakeTpu) -> None:
    # On a busy machine, too, the supervisor is gone before its run has ended, and how it ended is
    # told before the machine goes.
    process = support.start(root, fake, "--on_interrupt=detach", steps=1000, ended_seconds=8)
    support.wait_until(lambda: support.step_of(root) >= 5)
    process.kill()
    process.communicate()
    support.wait_until(lambda: fake.node_names() == [])
    assert "machine DELETE" in fake.requests
    with open(f"{root}/bucket/run-1/supervisor/exit.json", encoding="utf-8") as file:
        assert json.load(file)["status"] == 0


def test_no_secret_reaches_the_files(root: str, fake: FakeTpu) -> None:
    status, _ = support.run(support.command(root, fake, steps=10), fake)
    assert status == 0
    for directory, _, names in os.walk(f"{root}/bucket"):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                assert not re.search(rb"token-of-the-vm|Bearer", file.read()) or name.endswith(
                    ".whl"
                )
