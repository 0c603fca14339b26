"""`doctor`: what a machine has, what it lacks, and whether it can train."""

import importlib.util
import json

import pytest
import yaml

from bigbird_ja.launch import compute
from bigbird_ja.train.engines import choose, devices
from testkit import killing
from testkit.fakes.compute import FakeCompute


def named(ended):
    return {check["name"]: check for check in ended.json["checks"]}


def test_a_machine_that_can_train_and_what_the_cloud_says(tmp_path, run, monkeypatch):
    with FakeCompute(str(tmp_path)) as service:
        service.types["us-central1-a"] = []
        monkeypatch.setenv(compute.EMULATOR_VARIABLE, service.address)
        ended = run("doctor", "--project=my-project", "--json")
    checks = named(ended)
    assert ended.status == 0 and ended.json["can_train"]
    assert "cpu" in checks["engine pjrt"]["observed"].lower() and checks["tensorflow"]["is_well"]
    assert checks["project"]["observed"] == "my-project"
    offered = {row["accelerator_type"]: row for row in ended.json["offers"]}
    assert offered["v5p-8"]["quota"] == "PREEMPTIBLE_TPU_PODSLICE_V5P 4 of 8"
    assert offered["v5p-8"]["zones"]["us-central1-a"].endswith("does not offer ct5p-hightpu-4t")
    assert offered["v6e-8"]["zones"]["us-central1-b"] == ""
    lines = [" ".join(one.split()) for one in ended.stderr.splitlines()]
    assert "v6e-8 compute counts against the quota PREEMPTIBLE_TPUS" in " ".join(lines)
    assert any(one.startswith("v7x-8 compute offered us-central1-c, ") for one in lines)


def test_a_machine_without_an_engine_is_refused_and_told_what_to_install(
    monkeypatch, tmp_path, run
):
    find = importlib.util.find_spec
    missing = {"jax": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: missing.get(name, find(name, *more))
    )
    monkeypatch.setattr(choose, "has_estimator", lambda: False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")
    ended = run("doctor", "--json")
    assert ended.status == 2 and not ended.json["can_train"]
    checks = named(ended)
    assert "pip install 'bigbird-ja[cpu]'" in checks["engine pjrt"]["advice"]
    assert "no Google credentials" in checks["credentials"]["observed"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # six commands, each with its imports, and the TPU compiler
def test_steps_are_measured_and_set_beside_what_was_predicted(tmp_path, run, monkeypatch):
    pytest.importorskip("libtpu")
    monkeypatch.setitem(devices.CHIP_OF_KIND, "cpu", "v5e")
    tiny = {section: killing.CONFIG[section] for section in ("model", "data", "training")}
    made = {"seq_length": 128, "max_predictions_per_seq": 20}
    tiny |= {"tokenize": {"vocab_size": 2100}, "make_data": made}
    config, work = tmp_path / "tiny.yaml", tmp_path / "work"
    config.write_text(yaml.safe_dump(tiny))
    ended = run("doctor", "--json", "--measure", f"--measure_config={config}", f"--work_dir={work}")
    assert ended.status == 0, ended.stderr
    result = json.loads((work / "measured.json").read_text())
    assert result.items() <= ended.json.items() and "credentials" not in result["machine"]
    measured = result["runs"][str(config)]
    assert measured["global_batch_size"] == 1  # four sequences on eight cores, at least one
    for key in ("step_ms", "tokens_per_second", "memory_bytes", "input_wait_ms", "compile_seconds"):
        assert measured[key] > 0
    run_dir = work / "tiny/run"
    assert list(run_dir.glob(f"{measured['profile_folder']}/*.xplane.pb"))
    assert json.loads((work / "tiny/data/manifest.json").read_text())["vocab_size"] == 2100
    predicted = measured["predicted"]
    assert 0 < predicted["step_ms"] < measured["step_ms"] and predicted["memory_bytes"] > 0
    page = (work / "measured.html").read_text()
    assert "Measured" in page and "(predicted " in page
