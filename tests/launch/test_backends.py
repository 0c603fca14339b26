"""The choice of the service that rents a machine."""

import pytest

from bigbird_ja.launch import backends, tpu_api
from tests.launch import support


@pytest.mark.parametrize(
    ("kind", "image"),
    [("v2-8", "2.15.0-se"), ("v5e-32", "v2-alpha-tpuv5-lite"), ("v6e-32", "v2-alpha-tpuv6e")],
)
def test_everything_that_the_cloud_tpu_api_serves_may_be_queued(kind, image):
    machine = backends.find_accelerator(kind)
    (rental,) = backends.find_rentals(machine, "auto", "spot", True, support.TABLE)
    run = backends.rented(support.vm_of("run-1", kind=kind, queued=True), rental)
    assert run.service == "tpu" and run.runtime_version.endswith(image)
    body = tpu_api.creation(run, "z", 1, {}, 1.0)
    assert body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == kind.replace("5e", "5litepod")
