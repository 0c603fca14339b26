"""The measured rate of a run is shown with the planned one."""

import json

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.plan.compare import describe_rate
from testkit import synthetic
from tests.report import fake_run


@pytest.mark.parametrize(
    ("device", "machine"),
    [
        ("8 x TPU v5 lite", "v5e-8"),
        ("8 x TPU v3", "v3-8"),
        ("8 x TPU7x", "v7x-8"),
        ("1 x cpu", None),
        ("TPU v3, 8 cores", None),
    ],
)
def test_the_measured_rate_is_next_to_the_planned_one(device, machine, tmp_path):
    run = fake_run.write(tmp_path / "run")
    event = {"event": "resumed", "time": fake_run.end_of(run), "environment": {"device": device}}
    with open(run / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    synthetic.write(tmp_path / "data")
    manifest = manifest_lib.load(str(tmp_path / "data"))
    line = describe_rate(str(run), manifest)
    if machine is None:
        assert line is None
    else:
        measured = fake_run.STEADY["tokens_per_second"] / manifest.density / 1e3
        assert line.startswith(f"measured {measured:,.0f} k tokens/s")
        assert line.endswith(f" for a {machine}") and "`plan` predicts" in line
