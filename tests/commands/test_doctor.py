"""`doctor`: what a machine has, what it lacks, and whether it can train."""

from bigbird_ja.launch import compute
from bigbird_ja.train import engines
from bigbird_ja.train.engines import devices
from testkit.command_line import run_cli
from testkit.fakes.compute import FakeCompute


def named(ended):
    return {check["name"]: check for check in ended.json["checks"]}


def test_a_machine_that_can_train_and_what_the_cloud_says(tmp_path):
    with FakeCompute(str(tmp_path)) as service:
        emulator = {compute.EMULATOR_VARIABLE: service.address}
        ended = run_cli("doctor", "--project=my-project", "--json", env=emulator)
    checks = named(ended)
    assert ended.status == 0 and ended.json["can_train"]
    assert "cpu" in checks["engine pjrt"]["observed"].lower() and checks["tensorflow"]["is_well"]
    quota = "us-central1 PREEMPTIBLE_TPU_LITE_PODSLICE_V5 4 of 8"
    assert checks["quota"]["observed"] == quota and checks["project"]["observed"] == "my-project"


def test_a_machine_without_an_engine_is_refused_and_told_what_to_install(
    monkeypatch, tmp_path, run
):
    monkeypatch.setattr(devices, "is_installed", lambda: False)
    monkeypatch.setattr(engines, "has_estimator", lambda: False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")
    ended = run("doctor", "--json")
    assert ended.status == 2 and not ended.json["can_train"]
    checks = named(ended)
    assert checks["engine pjrt"]["advice"].endswith("pip install 'bigbird-ja[cpu]'")
    assert "no Google credentials" in checks["credentials"]["observed"]
