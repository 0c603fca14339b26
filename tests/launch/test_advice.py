"""Advice to the user when a service refuses a request."""

import pytest

from bigbird_ja.launch import rest
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.rest import Kind, ServiceFault
from tests.launch import support


@pytest.mark.parametrize(
    ("kind", "service", "pricing", "words"),
    [
        ("v5e-8", "tpu", "spot", ["tpu-v5s-litepod-serving-preemptible", "tpu.google"]),
        ("v5e-32", "tpu", "spot", ["tpu-v5s-litepod-preemptible"]),
        ("v5e-8", "tpu", "on_demand", ["tpu-v5s-litepod-serving (v5litepod-1"]),
        ("v6e-8", "compute", "spot", ["PREEMPTIBLE_TPUS_PER_TPU_FAMILY for CT6E", "`service` tpu"]),
        ("v7x-8", "compute", "spot", ["TPU7X", "compute.googleapis.com"]),
        ("v3-8", "tpu", "spot", ["preemptible v3 cores"]),
    ],
)
def test_a_refusal_for_missing_quota_names_it_and_the_page(kind, service, pricing, words):
    fault = ServiceFault(Kind.QUOTA, "Quota limit 'X' has been exceeded. Limit: 0")
    run = support.vm_of("run-1", kind=kind, service=service, pricing=pricing)
    text = advise(fault, run, "us-central1-a")
    for word in (*words, fault.message, "console.cloud.google.com/iam-admin/quotas (service "):
        assert word in text
    assert "\n" not in text and ("`service` tpu" in text) == (service == "compute")


def test_a_machine_type_that_compute_engine_does_not_rent():
    message = "This user agent is not allowed to use the machine type."
    run = support.vm_of("run-1", kind="v5p-8", service="compute")
    assert "`service` tpu" in advise(ServiceFault(Kind.BAD_REQUEST, message), run)


def test_a_missing_role_is_named():
    message = "The caller does not have permission actAs on service account x"
    text = advise(rest.make_fault(7, message), support.NODE, support.ZONE)
    assert "serviceAccountUser" in text and message in text and "\n" not in text
