"""Flex-start: gcloud asks for the machine, and the cloud deletes it."""

import os
import shutil
import sys

import pytest

from bigbird_ja.launch import flex_start
from bigbird_ja.launch.rest import Kind, ServiceFault
from testkit import ROOT
from tests.launch import support


def test_flex_start_trains_and_is_deleted_by_the_cloud(tmp_path, fake_tpu, monkeypatch):
    root = str(tmp_path)
    fake = f'exec env PYTHONPATH={ROOT} {sys.executable} -m testkit.fakes.gcloud "$@"'
    support.write_tool(f"{root}/bin/gcloud", fake)
    monkeypatch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")
    flags = ["--accelerator_type=v6e-8", "--pricing=flex-start", "--max_hours=2"]
    flags += ["--zones=us-east5-a"]
    status, result = support.run(support.command(root, *flags), fake_tpu)
    assert (status, result["global_step"]) == (0, 100), result
    assert fake_tpu.durations == [pytest.approx(7200, abs=60)]
    assert (len(fake_tpu.created), fake_tpu.node_names(), fake_tpu.queued_names()) == (1, [], [])
    assert support.read(root, "supervisor/launch.json", "queued") is True


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
